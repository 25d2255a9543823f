"""Why a built-in rule says what it says: what the tables know of a fault, in one sentence. Pure."""

from collections.abc import Callable, Mapping

from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.workflows.policy import catalogue
from gpu_runbooks.workflows.policy.built_in import GOOD_CONDITION, MANUAL
from gpu_runbooks.workflows.policy.catalogue import UnreadableXidError
from gpu_runbooks.workflows.policy.condition_reasons import by_reason, known_reasons, meaning_of
from gpu_runbooks.workflows.policy.faults import canonical_code
from gpu_runbooks.workflows.policy.known_codes import (
    aws_events,
    dcgm_codes,
    kernel_log_codes,
    recovery_actions,
    sxids,
)
from gpu_runbooks.workflows.policy.node_conditions import condition_of
from gpu_runbooks.workflows.policy.repeats import is_repeated
from gpu_runbooks.workflows.policy.rows import Entry

ON_A_GUESS = "no rule of the site and no built-in table has it, and nothing destructive is done on a guess"

TABLES: Mapping[FaultSource, Callable[[], Mapping[str, Entry]]] = {
    FaultSource.SXID: sxids,
    FaultSource.DCGM: dcgm_codes,
    FaultSource.AWS: aws_events,
    FaultSource.EFA: kernel_log_codes,
    FaultSource.KERNEL: kernel_log_codes,
}


def meaning(fault: Fault, rule: str) -> str:
    """What is known of a fault for which this built-in rule is."""
    if rule == MANUAL:
        return "a person asks for it"
    if rule == GOOD_CONDITION:
        return "this status of the condition is not a bad one"
    if rule.startswith("recovery-"):
        known = recovery_actions().get(str(fault.recovery_action))
        return (
            f"the driver wants: {known.meaning}" if known else "nobody knows the action that the driver wants"
        )
    if repeated := is_repeated(fault):
        return f"{repeated.times} within {repeated.hours} hours at one place make the hardware suspect"
    if fault.source is FaultSource.CONDITION:
        return _of_condition(fault) or ON_A_GUESS
    return _of_code(fault) or ON_A_GUESS


def _of_code(fault: Fault) -> str:
    try:
        code = canonical_code(fault.source, fault.code)
    except UnreadableXidError:
        return ""
    if fault.source is FaultSource.XID:
        xid = catalogue.find(code)
        return f"{xid.meaning} ({xid.origin})" if xid else ""
    known = TABLES[fault.source]().get(code) if fault.source in TABLES else None
    return known.meaning if known else ""


def _of_condition(fault: Fault) -> str:
    """What the reasons mean, or else that the type is bad with this status."""
    said = []
    for each in by_reason(fault):
        found = meaning_of(each)
        if found is not None and isinstance(found.means, Fault):
            said.append(_of_code(found.means))
        elif each.reason in known_reasons():
            said.append(known_reasons()[each.reason].meaning)
    if words := "; ".join(filter(None, said)):
        return words
    row = condition_of(fault.code.strip(), fault.status)
    return f"the condition is bad ({row.source})" if row else ""
