"""What the reason of a Node condition means: more than its type says.

`condition_reasons.csv` has the reasons of the EKS node monitoring agent and of our own agent. Others name a
code, and mean what that code means: `NvidiaXID79Error` Xid 79, `DCGMHealthCode80` DCGM's code 80. GKE's
plugin writes Xids as JSON, `{"31":true}`. A reason counts only in a condition of its own agent.
"""

import json
import re
from dataclasses import dataclass
from functools import cache

from gpu_runbooks.activities import names
from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.workflows.policy.rows import Entry, FirstRung, load, outside

EKS_AGENT, NODE_AGENT = "eks", "node-agent"

AGENT_OF = {
    "AcceleratedHardwareReady": EKS_AGENT,
    "ContainerRuntimeReady": EKS_AGENT,
    "KernelReady": EKS_AGENT,
    "NetworkingReady": EKS_AGENT,
    "StorageReady": EKS_AGENT,
    names.HEALTHY_CONDITION: NODE_AGENT,
}
"""Who writes the reasons of a type."""

GKE_XIDS = "XidCriticalError"
"""Type of a condition whose reason is JSON with Xids.

Source: GoogleCloudPlatform/container-engine-accelerators.
"""

RECOVERY_ACTION = "recovery-action"
"""Code of a fault of which nothing but the action that the driver wants is known."""

DOUBTS = frozenset({"DriverUnresponsive", "DriverUnavailable", "GPUUnanswered", "InstanceTypeUnknown"})
"""Reasons by which our agent says why it does not know: what they mean, they mean with status Unknown."""

LONGEST_REASON = 1024
"""Characters. Source: the validation of metav1.Condition; those of Nodes are not validated."""

MOST_WORDS = 16
"""Reasons that are read of one condition."""

_SEPARATORS = re.compile(r"[\s,;|]+")
_XID = re.compile(r"NvidiaXID([0-9]{1,6})(?:Error|Warning)", re.ASCII)
_DCGM = re.compile(r"DCGMHealthCode([0-9]{1,6})", re.ASCII)
_DCGM_FIELD = re.compile(r"DCGMFieldError[0-9]{1,6}", re.ASCII)
_ACTION = re.compile(r"RecoveryAction([0-9]{1,10})Needed", re.ASCII)
_JSON_XID = re.compile(r"[0-9]{1,6}", re.ASCII)

RULE = "reason-"
"""Beginning of the name of the built-in rule for a reason."""

RULES = re.compile(
    r"reason-(?:NvidiaXID[0-9]{1,6}(?:Error|Warning)|DCGMHealthCode[0-9]{1,6}|DCGMFieldError[0-9]{1,6}"
    r"|RecoveryAction[0-9]{1,10}Needed|xid-[0-9]{1,6})",
    re.ASCII,
)
"""Names of rules for the reasons that name a code."""


class KnownReason(Entry):
    """A reason that names no code. The group is the agent that writes it."""

    def contradiction(self) -> str | None:
        """What is wrong with the row."""
        return outside(self, dict.fromkeys((EKS_AGENT, NODE_AGENT), frozenset(FirstRung)))


@dataclass(frozen=True)
class Meaning:
    """What one reason says."""

    rule: str
    means: FirstRung | Fault
    """Where the repair begins; or another fault, whose answer it has."""


@cache
def known_reasons() -> dict[str, KnownReason]:
    """Reasons that name no code, by their word."""
    return load("condition_reasons", KnownReason, lambda row: row.code)


def words_of(reason: str) -> tuple[str, ...]:
    """The reasons in the field `reason` of a condition: one, or several with commas or spaces between."""
    return tuple(word for word in _SEPARATORS.split(reason[:LONGEST_REASON].strip()) if word)[:MOST_WORDS]


def by_reason(fault: Fault) -> list[Fault]:
    """A condition fault as one for each of its reasons; itself where it has none, or one."""
    if fault.code.strip() == GKE_XIDS:
        words = [f'{{"{number}":true}}' for number in _json_xids(fault.reason)]
    else:
        words = list(words_of(fault.reason))
    if words in ([], [fault.reason]):
        return [fault]
    return [fault.model_copy(update={"reason": word}) for word in words]


def meaning_of(fault: Fault) -> Meaning | None:
    """What the one reason of a condition fault means; None for one that nobody knows."""
    if fault.code.strip() == GKE_XIDS:
        number = next(iter(_json_xids(fault.reason)), None)
        return _xid(fault, number, f"{RULE}xid-{int(number)}") if number else None
    agent = AGENT_OF.get(fault.code.strip())
    return _meaning(fault, fault.reason, agent) if agent else None


def _meaning(fault: Fault, word: str, agent: str) -> Meaning | None:
    known = known_reasons().get(word)
    if known is not None:
        return Meaning(f"{RULE}{word}", known.first_rung) if known.group == agent else None
    if agent == NODE_AGENT:
        return _action(fault, word, found[1]) if (found := _ACTION.fullmatch(word)) else None
    if found := _XID.fullmatch(word):
        return _xid(fault, found[1], f"{RULE}{word}")
    if found := _DCGM.fullmatch(word):
        meant = fault.model_copy(update={"source": FaultSource.DCGM, "code": found[1]})
        return Meaning(f"{RULE}{word}", meant)
    if _DCGM_FIELD.fullmatch(word):
        return Meaning(f"{RULE}{word}", FirstRung.NONE)
    return None


def _xid(fault: Fault, number: str, rule: str) -> Meaning:
    return Meaning(rule, fault.model_copy(update={"source": FaultSource.XID, "code": number}))


def _action(fault: Fault, word: str, number: str) -> Meaning:
    update = {"source": FaultSource.NVML, "code": RECOVERY_ACTION, "recovery_action": int(number)}
    return Meaning(f"{RULE}{word}", fault.model_copy(update=update))


def _json_xids(reason: str) -> list[str]:
    """Xids that the JSON says are there; none of anything that is not such JSON."""
    if len(reason) > LONGEST_REASON:
        return []
    try:
        said = json.loads(reason)
    except (ValueError, RecursionError):
        return []
    if not isinstance(said, dict):
        return []
    return [xid for xid, there in said.items() if there is True and _JSON_XID.fullmatch(xid)][:MOST_WORDS]
