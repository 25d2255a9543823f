"""A fault: one thing wrong, at one place."""

from enum import StrEnum
from typing import Literal

from gpu_runbooks.activities.model.wire import Moment, Wire


class FaultSource(StrEnum):
    """Where a fault was seen."""

    CONDITION = "condition"
    XID = "xid"
    SXID = "sxid"
    NVML = "nvml"
    DCGM = "dcgm"
    EFA = "efa"
    KERNEL = "kernel"
    """What else the kernel's log tells: ENA, a GPU that does not start, GPUDirect, a crash within NCCL."""
    ALERT = "alert"
    AWS = "aws"
    MANUAL = "manual"


class Entity(Wire):
    """The part of the node that a fault names. With neither UUID nor address it is the whole node."""

    kind: Literal["node", "gpu", "nic", "nvswitch"] = "node"
    uuid: str | None = None
    """GPU UUID as NVML spells it, `GPU-...`."""
    pci_address: str | None = None
    """PCI address without function, lower case: `0000:4c:00`."""


class Fault(Wire):
    """One thing wrong, at one place."""

    source: FaultSource
    code: str
    """Xid number, condition type, alert name: what the policy matches."""
    entity: Entity = Entity()
    status: str = ""
    """Of a Node condition: the status that is bad."""
    good_status: str = ""
    """Of a Node condition: the status that is good, so that a later look can tell that the fault is over."""
    reason: str = ""
    """Of a Node condition: its reason, which says more than its type. Several may follow one another."""
    grade: Literal["", "fatal", "nonfatal"] = ""
    """The word for the severity in the line itself, where the driver writes one: SXids, and NVLink's Xids."""
    recovery_action: int | None = None
    """What the driver wants done with the GPU (NVML's field 230), where the source tells it."""
    place: str = ""
    """Where on the GPU, as the driver says, such as `GPC 2 TPC 1`: the same place again is suspect."""
    before: int = 0
    """How often the same code was seen at this place of the GPU within the window before."""
    pod: str = ""
    """`namespace/name` of the pod at work there, where the source tells it."""
    boot_id: str = ""
    """Boot of the machine in which it was seen, where the source tells it."""
    summary: str = ""
    first_seen: Moment
    last_seen: Moment
    count: int = 1
    fingerprint: str
    """Same fault, same onset: same fingerprint. Used to tell repeats from news."""
    reporter: str
    """Who or what said so: `alertmanager`, or the operator's name."""


class ConditionCleared(Wire):
    """A Node condition became good again, as a watch saw it. Argument of the signal `condition_cleared`."""

    type: str
    uid: str
    """Of the Node."""
    at: Moment


class Repeated(Wire):
    """Faults that came again while their incident was open. Argument of the signal `repeated`."""

    counts: dict[str, int]
    """By fingerprint: how often since the last word about it."""
    last_seen: Moment
