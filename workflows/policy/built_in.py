"""The answer to a fault where no rule of the site is for it. Pure.

The order: what the driver wants done with the GPU, then a repeat that makes the hardware suspect, then the
table of the fault's source. Whatever is in no table only blocks and calls a person: nothing destructive is
done on a guess.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.workflows.policy import catalogue
from gpu_runbooks.workflows.policy.catalogue import UnreadableXidError
from gpu_runbooks.workflows.policy.condition_reasons import RECOVERY_ACTION
from gpu_runbooks.workflows.policy.known_codes import (
    aws_events,
    dcgm_codes,
    kernel_log_codes,
    recovery_actions,
    sxids,
)
from gpu_runbooks.workflows.policy.ladders import BLOCK_ONLY, NO_TOUCH, NOTIFY
from gpu_runbooks.workflows.policy.node_conditions import built_in_statuses, condition_of
from gpu_runbooks.workflows.policy.repeats import is_repeated
from gpu_runbooks.workflows.policy.rows import FirstRung

MANUAL = "manual"
"""Code of a fault that a person starts a runbook with, and the built-in rule for it."""

MANUAL_LADDER = "reset"
"""What a person gets who starts a runbook and names no ladder."""

UNREADABLE_XID = "xid-unreadable"
UNKNOWN_ACTION = "recovery-unknown"
GOOD_CONDITION = "condition-not-bad"

LADDER_OF = {
    FirstRung.NONE: NO_TOUCH,
    FirstRung.BLOCK: BLOCK_ONLY,
    FirstRung.DRAIN: "drain",
    FirstRung.DRAIN_THEN_RESET: "reset",
    FirstRung.DRAIN_THEN_REBOOT: "reboot",
    FirstRung.REPLACE: "replace",
}

ACTION_CHANGED = 154
"""Xid by which the driver says that it wants something else done now."""


@dataclass(frozen=True)
class Answer:
    """What a fault gets."""

    rule: str
    ladder: str
    application: bool = False
    """The workload is at fault: the node is not touched."""
    toleration: timedelta = timedelta(0)
    """How long the fault may stand before anything is done."""
    of_site: bool = False
    """Whether the rule is the site's; a name alone does not tell."""

    def called(self, rule: str) -> "Answer":
        """The same under the name of another rule."""
        return replace(self, rule=rule)


def built_in_answer(fault: Fault) -> Answer:
    """Answer to a fault. The name of its rule is valid as the value of a taint."""
    if fault.source is FaultSource.MANUAL:
        return Answer(MANUAL, MANUAL_LADDER)
    if wanted := _wanted_by_the_driver(fault):
        return wanted
    if repeated := is_repeated(fault):
        return Answer(repeated.rule, LADDER_OF[repeated.first_rung])
    return BY_SOURCE[fault.source](fault)


def unknown_to_us(source: FaultSource) -> Answer:
    """Answer to a fault that is in no table."""
    return Answer(f"{source}-unknown", BLOCK_ONLY)


def _wanted_by_the_driver(fault: Fault) -> Answer | None:
    """NVIDIA's recovery action comes before any table. None where the code keeps its own answer."""
    action = fault.recovery_action
    if action is None or (action == 0 and not _is_about_the_action(fault)):
        return None
    known = recovery_actions().get(str(action))
    if known is None:
        return Answer(UNKNOWN_ACTION, BLOCK_ONLY)
    return Answer(f"recovery-{known.group}", LADDER_OF[known.first_rung])


def _is_about_the_action(fault: Fault) -> bool:
    if fault.source is FaultSource.NVML:
        return fault.code.strip() == RECOVERY_ACTION
    return fault.source is FaultSource.XID and _number(fault.code) == ACTION_CHANGED


def _xid(fault: Fault) -> Answer:
    number = _number(fault.code)
    if number is None:
        return Answer(UNREADABLE_XID, BLOCK_ONLY)
    first = catalogue.first_rung(number, fault.grade)
    if first is FirstRung.NONE and catalogue.is_applications(number):
        return Answer(f"xid-{number}", NOTIFY, application=True)
    return Answer(f"xid-{number}", LADDER_OF[first])


def _sxid(fault: Fault) -> Answer:
    """The word of the line counts before the table, for the codes that the table has.

    An unknown code blocks whatever the word: nobody knows what it means for the fabric.
    """
    known = sxids().get(str(_number(fault.code)))
    if known is None:
        return unknown_to_us(fault.source)
    by_word = {"fatal": FirstRung.DRAIN_THEN_REBOOT, "nonfatal": FirstRung.NONE}
    return Answer(f"sxid-{known.code}", LADDER_OF[by_word.get(fault.grade, known.first_rung)])


def _dcgm(fault: Fault) -> Answer:
    known = dcgm_codes().get(str(_number(fault.code)))
    return Answer(f"dcgm-{known.code}", LADDER_OF[known.first_rung]) if known else unknown_to_us(fault.source)


def _kernel_log(fault: Fault) -> Answer:
    known = kernel_log_codes().get(fault.code.strip())
    if known is None or known.fault_source is not fault.source:
        return unknown_to_us(fault.source)
    return Answer(known.code, LADDER_OF[known.first_rung])


def _aws(fault: Fault) -> Answer:
    known = aws_events().get(fault.code.strip())
    return Answer(known.rule, LADDER_OF[known.first_rung]) if known else unknown_to_us(fault.source)


def _condition(fault: Fault) -> Answer:
    """By type and status alone. A status that is not bad needs nothing, where it is one at all."""
    kind = fault.code.strip()
    row = condition_of(kind, fault.status)
    if row is not None:
        return Answer(row.rule, LADDER_OF[row.first_rung], toleration=row.toleration)
    if built_in_statuses(kind) and fault.status in {"True", "False", "Unknown"}:
        return Answer(GOOD_CONDITION, NO_TOUCH)
    return unknown_to_us(fault.source)


def _number(code: str) -> int | None:
    try:
        return catalogue.parse_code(code)
    except UnreadableXidError:
        return None


BY_SOURCE: dict[FaultSource, Callable[[Fault], Answer]] = {
    FaultSource.XID: _xid,
    FaultSource.SXID: _sxid,
    FaultSource.DCGM: _dcgm,
    FaultSource.EFA: _kernel_log,
    FaultSource.KERNEL: _kernel_log,
    FaultSource.AWS: _aws,
    FaultSource.CONDITION: _condition,
    FaultSource.NVML: lambda fault: unknown_to_us(fault.source),
    FaultSource.ALERT: lambda fault: unknown_to_us(fault.source),
}
