"""Node conditions that are watched: their types, the statuses that are bad, and the answer to each.

`conditions.csv` has each type with its bad statuses, and says of every type what Unknown means. A condition
is bad in one polarity only: `Ready` when False, `KernelDeadlock` when True. A type that neither the table nor
a site's rule names is not watched.

Tolerations are those of Karpenter and of EKS' own node repair (`activities/karpenter/repair_policies.csv`)
where one of them repairs this status of the type. Both replace the node at its end. We begin with the
mildest repair that helps, and go on only by proof.
"""

from collections.abc import Mapping
from datetime import timedelta
from functools import cache, cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from gpu_runbooks.activities.karpenter.repair_policies import EKS, repaired_by
from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workflows.policy.policy import Policy
from gpu_runbooks.workflows.policy.rows import FirstRung, Row, load, read_rows

PROVIDERS = ("aws", EKS, "gcp")
"""Whose toleration counts: the first of them that repairs the condition."""

RULE = "condition-"
"""Beginning of the name of the built-in rule for a type of Node conditions."""

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"


class Condition(Row):
    """A status of a type of Node conditions. First rung `none`: the status is not bad."""

    type: Annotated[str, Field(min_length=1)]
    status: Literal["True", "False", "Unknown"]
    toleration_seconds: Annotated[
        Annotated[int, Field(ge=0)] | None, BeforeValidator(lambda value: value or None)
    ] = None
    """How long it may last where no provider says so."""

    @cached_property
    def toleration(self) -> timedelta:
        """How long the condition may last before anything is done."""
        if self.toleration_seconds is not None:
            return timedelta(seconds=self.toleration_seconds)
        return next(iter(self._providers()), timedelta(0))

    @property
    def rule(self) -> str:
        """Name of its rule: the type without its domain, in the letters of a taint's value."""
        return f"{RULE}{self.type.rpartition('/')[2]}"

    def contradiction(self) -> str | None:
        """What the row says against itself, or against the tables of the providers."""
        if self.status != UNKNOWN and self.first_rung is FirstRung.NONE:
            return "neither good nor bad"
        if self.toleration_seconds is not None and self._providers():
            return "a toleration of ours, and a provider has one"
        if (
            self.first_rung is not FirstRung.NONE
            and self.toleration_seconds is None
            and not self._providers()
        ):
            return "no toleration"
        return None

    def _providers(self) -> list[timedelta]:
        return [
            row.toleration
            for provider in PROVIDERS
            for row in repaired_by(provider)
            if (row.condition, row.status) == (self.type, self.status)
        ]


def read_conditions(text: str) -> dict[tuple[str, str], Condition]:
    """Parse the table, as `read_rows`.

    Raises `ValueError` too for a type that is bad both when True and when False, or of which it does not say
    what Unknown means.
    """
    return _checked(read_rows(text, Condition, lambda row: (row.type, row.status)))


@cache
def conditions() -> dict[tuple[str, str], Condition]:
    """What is built in, by type and status."""
    return _checked(load("conditions", Condition, lambda row: (row.type, row.status)))


def condition_types() -> frozenset[str]:
    """Types that are built in."""
    return frozenset(kind for kind, _ in conditions())


@cache
def built_in_statuses(condition: str) -> frozenset[str]:
    """Statuses that are bad of a condition of this type; empty for a type that is not built in."""
    return frozenset(
        row.status
        for row in conditions().values()
        if row.type == condition and row.first_rung is not FirstRung.NONE
    )


def condition_of(kind: str, status: str) -> Condition | None:
    """The row for a type, exactly as Kubernetes spells it, and a bad status.

    Without a status, as where a person names the type alone, it is the one that is surely bad. None for a
    type that is not built in, and for a status of it that is good or counts for nothing.
    """
    for each in (status,) if status else (FALSE, TRUE):
        row = conditions().get((kind, each))
        if row is not None and row.first_rung is not FirstRung.NONE:
            return row
    return None


def watched_conditions(policy: Policy) -> Mapping[str, frozenset[str]]:
    """Types to watch with the statuses that are bad: the built-in ones and those of the site's rules."""
    watched = {kind: built_in_statuses(kind) for kind in condition_types()}
    for rule in policy.faults:
        if rule.match.source is FaultSource.CONDITION:
            for kind in rule.match.written_codes():
                statuses = rule.match.bad_statuses or built_in_statuses(kind)
                watched[kind] = watched.get(kind, frozenset()) | statuses
    return {kind: statuses for kind, statuses in watched.items() if statuses}


def _checked(rows: dict[tuple[str, str], Condition]) -> dict[tuple[str, str], Condition]:
    for kind, _ in rows:
        if len({TRUE, FALSE} & {status for other, status in rows if other == kind}) != 1:
            raise ValueError(f"{kind} is bad when True or when False: one of them has a row")
        if (kind, UNKNOWN) not in rows:
            raise ValueError(f"{kind}: nothing says what status Unknown means")
    return rows
