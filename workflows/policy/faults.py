"""The section `faults`: which faults a rule is for, and what it gives them."""

import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.workflows.policy.catalogue import parse_code
from gpu_runbooks.workflows.policy.fields import Code, ConditionStatus, Duration, Flag, Name, Reason, Written

LONGEST_LOOK_BACK = timedelta(days=30)
"""At an application's earlier faults."""

NUMBERED = {FaultSource.XID: "an Xid", FaultSource.SXID: "an SXid", FaultSource.DCGM: "a code of DCGM"}
"""Sources whose codes are numbers, and what one of them is called."""

DCGM_NAME = re.compile(r"DCGM_FR_[A-Z0-9_]{1,80}", re.ASCII)
"""DCGM's codes by their names, as some exporters write them. No table has these. Source: dcgm_errors.h."""

ONE_OF_CODES: dict[str, Any] = {"oneOf": [{"required": ["code"]}, {"required": ["codes"]}]}
ONE_ANSWER: dict[str, Any] = {
    "anyOf": [
        {"required": ["ladder"]},
        {"required": ["application"], "properties": {"application": {"const": True}}},
    ]
}


class Match(Written):
    """Which faults a rule is for: one source, and one code or several."""

    model_config = ConfigDict(json_schema_extra=ONE_OF_CODES)

    source: FaultSource
    """Where the fault was seen: xid, sxid, nvml, dcgm, efa, kernel, condition, aws, alert or manual."""
    code: Code | None = None
    """An Xid, the type of a Node condition, the name of an alert, the code of an event, or manual."""
    codes: Annotated[tuple[Code, ...], Field(max_length=200)] = ()
    """Several codes."""
    status: ConditionStatus | None = None
    """Status of a Node condition that is bad: True, False or Unknown."""
    statuses: Annotated[tuple[ConditionStatus, ...], Field(max_length=3)] = ()
    """Several bad statuses of a Node condition."""
    reasons: Annotated[tuple[Reason, ...], Field(max_length=50)] = ()
    """Reasons of a Node condition, exactly as it has them; all where none is written."""

    @model_validator(mode="after")
    def _readable(self) -> "Match":
        if (self.code is None) == (not self.codes):
            raise ValueError("write either `code: 79` or `codes: [79, 95]`, not both and not neither")
        self.written_codes()
        if self.status is not None and self.statuses:
            raise ValueError("write either `status: False` or `statuses: [False, Unknown]`, not both")
        if self.source is not FaultSource.CONDITION and (self.bad_statuses or self.reasons):
            raise ValueError(
                f"status, statuses and reasons are of Node conditions, and a fault of {self.source} has "
                "none: drop them, or write `source: condition`"
            )
        return self

    def written_codes(self) -> tuple[str, ...]:
        """Codes in their one spelling."""
        codes = self.codes if self.code is None else (self.code,)
        return tuple(canonical_code(self.source, code) for code in codes)

    @property
    def bad_statuses(self) -> frozenset[str]:
        """Statuses that are bad, as written; empty for those that are built in for the type."""
        return frozenset(self.statuses if self.status is None else (self.status,))

    def fits(self, fault: Fault, built_in_statuses: frozenset[str]) -> bool:
        """Whether a fault with a code of this rule is one of the rule, by its status and its one reason.

        A fault without them, such as one that a person names, fits where no reason is written.
        `built_in_statuses` are those of the fault's type.
        """
        if self.source is not FaultSource.CONDITION:
            return True
        statuses = self.bad_statuses or built_in_statuses
        return (not fault.status or fault.status in statuses) and (
            not self.reasons or fault.reason in self.reasons
        )


def canonical_code(source: FaultSource, code: str) -> str:
    """Code of a fault in its one spelling, so that " 79" and "79.0" meet the rule for 79.

    Raises `UnreadableXidError` for an Xid, SXid or code of DCGM that is none.
    """
    what = NUMBERED.get(source)
    if what is None or (source is FaultSource.DCGM and DCGM_NAME.fullmatch(code.strip())):
        return code.strip()
    return str(parse_code(code, what))


class Recurrence(Written):
    """When an application's fault is suspected to be the hardware's after all."""

    times: Annotated[int, Field(ge=2, le=100, strict=True)] = 2
    """How often the fault is seen."""
    by: Literal["gpu", "place"] = "gpu"
    """Where it is seen so often: on one `gpu`, or at one `place` of it, where the driver names that."""
    within: Duration = timedelta(hours=24)
    """Time within which it is seen so often."""
    ladder: str
    """Name of the ladder that the last of them gets, such as reset."""

    def is_reached(self, fault: Fault) -> bool:
        """Whether a fault is one too many by those that were counted before it.

        A GPU or a place that nobody knows is never the same one.
        """
        known = fault.entity.kind == "gpu" and (self.by == "gpu" or fault.place != "")
        return known and fault.before + 1 >= self.times

    @field_validator("within")
    @classmethod
    def _looks_back(cls, value: timedelta) -> timedelta:
        if not timedelta(minutes=1) <= value <= LONGEST_LOOK_BACK:
            raise ValueError(f"write a time of at least 1m and at most {LONGEST_LOOK_BACK.days}d")
        return value


class FaultRule(Written):
    """What to do about some faults, in place of the built-in answer."""

    model_config = ConfigDict(json_schema_extra=ONE_ANSWER)

    name: Name
    """Name of the rule: value of the block's taint, and what the audit shows."""
    match: Match
    """Faults that the rule is for, such as {source: xid, codes: [79]}."""
    application: Flag = False
    """The workload is at fault: the node is not touched."""
    toleration: Duration = timedelta(0)
    """How long the fault may stand before anything is done."""
    ladder: str | None = None
    """Name of the ladder; none where `application` is true and no workload is restarted."""
    repeats: Recurrence | None = None
    """When the hardware is suspected after all, such as {times: 2, within: 24h, ladder: reset}."""

    @model_validator(mode="after")
    def _one_answer(self) -> "FaultRule":
        if not self.application and self.ladder is None:
            raise ValueError("write the ladder to climb, such as `ladder: reset`, or `application: true`")
        if not self.application and self.repeats is not None:
            raise ValueError("repeats are of an application's fault: write `application: true`, or drop them")
        return self
