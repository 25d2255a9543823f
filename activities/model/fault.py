"""A fault: one thing wrong, at one place."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from gpu_runbooks.activities.model.wire import Wire


class FaultSource(StrEnum):
    """Where a fault was seen."""

    CONDITION = "condition"
    XID = "xid"
    SXID = "sxid"
    NVML = "nvml"
    DCGM = "dcgm"
    EFA = "efa"
    ALERT = "alert"
    MANUAL = "manual"


class Entity(Wire):
    """The part of the node that a fault names. With neither UUID nor address it is the whole node."""

    kind: Literal["node", "gpu", "nic"] = "node"
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
    summary: str = ""
    first_seen: datetime
    last_seen: datetime
    count: int = 1
    fingerprint: str
    """Same fault, same onset: same fingerprint. Used to tell repeats from news."""
    reporter: str
    """Who or what said so: `alertmanager`, or the operator's name."""
