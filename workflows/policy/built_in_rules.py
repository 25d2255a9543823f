"""Names of the built-in rules, as other sections of the policy may write them, and their faults."""

import re
from functools import cache

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workflows.policy import condition_reasons
from gpu_runbooks.workflows.policy.built_in import (
    GOOD_CONDITION,
    MANUAL,
    UNKNOWN_ACTION,
    UNREADABLE_XID,
    unknown_to_us,
)
from gpu_runbooks.workflows.policy.condition_reasons import known_reasons
from gpu_runbooks.workflows.policy.known_codes import (
    aws_events,
    dcgm_codes,
    kernel_log_codes,
    recovery_actions,
    sxids,
)
from gpu_runbooks.workflows.policy.node_conditions import conditions
from gpu_runbooks.workflows.policy.repeats import repeat_rules

_XID = re.compile(r"xid-(0|[1-9][0-9]{0,5})", re.ASCII)

SHAPES = (
    "xid-<code>",
    "sxid-<code>",
    "dcgm-<code>",
    "condition-<type>",
    "reason-<reason>",
    "aws-<event>",
    "recovery-<action>",
    "efa-<event>",
    "ena-<event>",
)
"""How most of them are written; the others are `other_names`."""

_UNKNOWN = tuple(
    unknown_to_us(source).rule
    for source in FaultSource
    if source not in {FaultSource.MANUAL, FaultSource.XID}
)

Named = tuple[FaultSource, str]
"""Source and code of a fault."""


def is_built_in(name: str) -> bool:
    """Whether a fault can have a built-in rule of this name."""
    return bool(name in _names() or _XID.fullmatch(name) or condition_reasons.RULES.fullmatch(name))


def fault_of(name: str) -> Named | None:
    """The one fault that a built-in rule is for; None for a rule of several, and for an unknown name."""
    if xid := _XID.fullmatch(name):
        return FaultSource.XID, xid[1]
    return _names().get(name)


def other_names() -> tuple[str, ...]:
    """Names that have none of the shapes, sorted."""
    beginnings = tuple(shape.partition("<")[0] for shape in SHAPES)
    others = {name for name in _names() if not name.startswith(beginnings)}
    return tuple(sorted({*others, *_UNKNOWN, UNKNOWN_ACTION, UNREADABLE_XID, GOOD_CONDITION}))


@cache
def _names() -> dict[str, Named | None]:
    """All names that can be listed; None for a rule of several faults."""
    several = [
        UNREADABLE_XID,
        UNKNOWN_ACTION,
        GOOD_CONDITION,
        *_UNKNOWN,
        *(f"recovery-{action.group}" for action in recovery_actions().values()),
        *(rule.rule for rule in repeat_rules().values()),
        *(f"{condition_reasons.RULE}{word}" for word in known_reasons()),
    ]
    return {
        **dict.fromkeys(several),
        MANUAL: (FaultSource.MANUAL, MANUAL),
        **{f"sxid-{code}": (FaultSource.SXID, code) for code in sxids()},
        **{f"dcgm-{code}": (FaultSource.DCGM, code) for code in dcgm_codes()},
        **{row.rule: (FaultSource.AWS, row.code) for row in aws_events().values()},
        **{row.rule: (FaultSource.CONDITION, row.type) for row in conditions().values()},
        **{row.code: (row.fault_source, row.code) for row in kernel_log_codes().values()},
    }
