"""What to do about a Node condition that stays bad: the built-in answer by its type.

Types and tolerations are those of Karpenter's AWS provider and of EKS' own node repair
(`activities/karpenter/repair_policies.csv`). Both replace the node at the end of the toleration. We begin
with the mildest repair that the reasons behind a type may need, and go on only by proof. A site's rule
overrides any.
"""

from dataclasses import dataclass
from datetime import timedelta
from functools import cache

from gpu_runbooks.activities.karpenter.repair_policies import EKS, repaired_by

PROVIDERS = ("aws", EKS)

LADDER_OF_CONDITION = {
    # Of the monitoring agent's reasons (double bit errors, NVLink, Xids, the Fabric Manager, DCGM's health)
    # most are what a reset cures. The condition names no GPU, so all of them are reset. Where one is missing
    # (NvidiaDeviceCountMismatch) no reset reaches it: that ends without proof, and the reboot follows.
    "AcceleratedHardwareReady": "reset",
    # A kubelet that is silent has no agent beside it that would reset anything. Whether its pods have ended
    # nobody can say, so the drain before the reboot asks a person.
    "Ready": "reboot",
    # No GPU is at fault, so no reset helps. A reboot brings up interfaces, daemons and process tables anew
    # (InterfaceNotUp, IPAMDNotRunning, PodStuckTerminating, ForkFailedOutOfPIDs).
    "ContainerRuntimeReady": "reboot",
    "KernelReady": "reboot",
    "NetworkingReady": "reboot",
    "StorageReady": "reboot",
}
"""Ladder by the type of the condition. Any other type only blocks: nothing destructive is done on a guess."""


@dataclass(frozen=True)
class ConditionAnswer:
    ladder: str
    toleration: timedelta


@cache
def answer_to(condition: str) -> ConditionAnswer | None:
    """Built-in answer to a condition of this type, exactly as Kubernetes spells it; None for any other.

    A fault does not carry the condition's status, so the longest toleration of its statuses counts.
    """
    ladder = LADDER_OF_CONDITION.get(condition)
    rows = (row for provider in PROVIDERS for row in repaired_by(provider) if row.condition == condition)
    tolerations = [row.toleration for row in rows]
    return ConditionAnswer(ladder, max(tolerations)) if ladder and tolerations else None


@cache
def built_in_statuses(condition: str) -> frozenset[str]:
    """Statuses that are bad of a condition of this type; empty for a type that is not built in."""
    rows = (row for provider in PROVIDERS for row in repaired_by(provider) if row.condition == condition)
    return frozenset(row.status for row in rows) if condition in LADDER_OF_CONDITION else frozenset()
