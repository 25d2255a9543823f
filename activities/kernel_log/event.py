"""What one line of the kernel log, or several that belong together, says of the hardware."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from gpu_runbooks.activities.kernel_log.marker import Marker

LONGEST_TEXT = 512
"""Characters of an event's text."""

LONGEST_PROCESS = 64
"""Characters of a process name. The kernel keeps 15; the driver may have more of a client's name."""

_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")

Grade = Literal["", "fatal", "nonfatal"]


class Kind(StrEnum):
    XID = "xid"
    SXID = "sxid"
    EFA = "efa"
    ENA = "ena"
    NCCL = "nccl"
    """A process died within the library."""
    PEERMEM = "peermem"
    INIT = "init"
    """The driver could not start a GPU."""
    MARKER = "marker"
    """A line of our own: a reset begins or ends."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the text of a record says, without when and where it was logged."""

    kind: Kind
    code: str
    """Xid, SXid, or a name of ours for what has no number."""
    text: str
    """What the line says beyond the fields, printable ASCII of at most `LONGEST_TEXT` characters."""
    pci: str | None = None
    """Without function, lower case, as `0000:4c:00`."""
    device: str | None = None
    """Name of a NIC or an NVSwitch, such as `efa_3`."""
    gi: int | None = None
    """GPU instance under MIG."""
    ci: int | None = None
    """Compute instance under MIG."""
    pid: int | None = None
    process: str | None = None
    place: str = ""
    """Where on the device: `GPC 2 TPC 1`, `link 5`, `NETIR_LINK_EVT link 3`."""
    sm: int | None = None
    """Streaming multiprocessor within the place, which says too little to belong to it."""
    grade: Grade = ""
    recovery_action: int | None = None
    """What the driver wants done now, NVML's field 230: of an Xid 154, or a reset flag that is `Yes`."""
    previous_action: int | None = None
    """What it wanted before, of an Xid 154."""
    caused_by: int | None = None
    """Xid that an Xid 45 comes from."""
    unit: str = ""
    """Part of NVLink that an Xid 144 to 150 names."""
    link: int | None = None
    """None where the line names none, or -1."""
    registers: tuple[int, ...] = ()
    """Of an Xid 74 seven registers; of an Xid 144 to 150 the status words."""
    cross_contained: bool | None = None
    """`XC1` of an Xid 144 to 150."""
    injected: bool | None = None
    """`i1` of an Xid 144 to 150."""
    marker: Marker | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """A finding with the record it stands in."""

    finding: Finding
    identity: str
    """The same for the same record however often it is read: boot and sequence, or boot and content."""
    boot_id: str
    """Empty where nobody knows it."""
    sequence: int | None
    """Of `/dev/kmsg`."""
    uptime: float | None
    """Seconds since the boot."""
    time: datetime | None
    """In UTC; None where the record says neither this nor, with a known moment of the boot, its uptime."""
    uuid: str | None
    """Of the GPU, as far as the log or the caller told whose address it is. None is no reason to drop it."""

    @property
    def kind(self) -> Kind:
        return self.finding.kind

    @property
    def code(self) -> str:
        return self.finding.code

    @property
    def pci(self) -> str | None:
        return self.finding.pci

    @property
    def text(self) -> str:
        return self.finding.text


def printable(text: str, longest: int = LONGEST_TEXT) -> str:
    """Text that does nothing to a terminal, and fits: each other character is a question mark."""
    return _UNPRINTABLE.sub("?", text[:longest]).strip()
