"""Other lines of NVIDIA's drivers: NVSwitches, GPUs that are gone or do not start, peer memory, NCCL.

    nvidia-nvswitch2: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 09 demo fault

Sources of the shapes: NVIDIA/open-gpu-kernel-modules 595.45.04 (nvswitch headers, `osinit.c`, `kernel_rc.c`),
and lines of older drivers in public reports.
"""

import re
from dataclasses import dataclass

from gpu_runbooks.activities.kernel_log.address import PATTERN, pci_address
from gpu_runbooks.activities.kernel_log.event import LONGEST_PROCESS, Finding, Grade, Kind, printable

LOST = "79"
"""Xid of a GPU that has fallen off the bus. Two forms of the line have no number."""

PEERMEM_INVALID_CONTEXT = "peermem-invalid-context"
NCCL_SEGFAULT = "nccl-segfault"
INIT_FAILED = "rm-init-adapter-failed"

_SXID = re.compile(r"(nvidia-nvswitch[0-9]{1,4}):? SXid \(([^)]{1,80})\): ([0-9]{1,6}), ?", re.ASCII)
_SEVERITY = re.compile(
    r"(?:Always )?(Fatal|Non-?fatal)\b(?:,? ?Link ([0-9]{1,3})(?![0-9]))?", re.ASCII | re.IGNORECASE
)
_DETAIL = re.compile(r"(?:Severity [0-9]{1,3}\b|Data \{|Raw data\b)", re.ASCII | re.IGNORECASE)

_UUID = re.compile(
    rf"NVRM: GPU at ({PATTERN}): (GPU-[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})\s*$",
    re.ASCII | re.IGNORECASE,
)
_FELL_OFF = re.compile(rf"NVRM: GPU (?:at )?({PATTERN}):? (?:GPU )?has fallen off the bus\b", re.ASCII)
_INIT = re.compile(rf"NVRM: GPU ({PATTERN}): RmInitAdapter failed!", re.ASCII)

_PEERMEM = re.compile(
    r"(?:nvidia[-_]peermem|nv_peer_mem)\b[^\n]{0,120}\bERROR detected invalid context\b", re.ASCII
)
_SEGFAULT = re.compile(
    r"(.{1,15}?)\[([0-9]{1,10})\]: segfault at [0-9a-f]{1,16} ip [^\n]{1,200}? in (libnccl\.so[^\s\[]{0,40})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class SwitchLine:
    """One of the lines that a fault of an NVSwitch leaves."""

    finding: Finding
    headline: bool
    """Whether it says the severity. The others repeat the code, with raw data."""


def read_sxid(text: str) -> SwitchLine | None:
    line = _SXID.match(text)
    if line is None or not int(line[3]):
        return None
    pci = pci_address(line[2])
    if pci is None:
        return None
    said = text[line.end() :]
    severity = _SEVERITY.match(said)
    if severity is None and not _DETAIL.match(said):
        return None
    grade: Grade = ""
    link = None
    if severity:
        grade = "fatal" if severity[1].lower() == "fatal" else "nonfatal"
        link = int(severity[2]) if severity[2] else None
    finding = Finding(
        kind=Kind.SXID,
        code=str(int(line[3])),
        text=printable(said),
        pci=pci,
        device=line[1],
        grade=grade,
        link=link,
        place="" if link is None else f"link {link}",
    )
    return SwitchLine(finding, headline=severity is not None)


def read_uuid(text: str) -> tuple[str, str] | None:
    """Address and UUID, from the line that the driver writes once before a GPU's first Xid."""
    line = _UUID.match(text)
    pci = pci_address(line[1]) if line else None
    return (pci, f"GPU-{line[2][4:].lower()}") if line and pci else None


def read_fell_off(text: str) -> Finding | None:
    """A GPU that fell off the bus, as the driver says it without a number on one line."""
    line = _FELL_OFF.match(text)
    return lost(pci_address(line[1]), text) if line else None


def lost(pci: str | None, text: str) -> Finding:
    return Finding(kind=Kind.XID, code=LOST, text=printable(text.removeprefix("NVRM: ")), pci=pci)


def read_other(text: str) -> Finding | None:
    """A GPU that does not start, GPUDirect in trouble, or a process that died within NCCL."""
    if line := _INIT.match(text):
        return Finding(
            kind=Kind.INIT,
            code=INIT_FAILED,
            text=printable(text.removeprefix("NVRM: ")),
            pci=pci_address(line[1]),
        )
    if _PEERMEM.match(text):
        return Finding(kind=Kind.PEERMEM, code=PEERMEM_INVALID_CONTEXT, text=printable(text))
    if line := _SEGFAULT.match(text):
        return Finding(
            kind=Kind.NCCL,
            code=NCCL_SEGFAULT,
            text=printable(text),
            pid=int(line[2]),
            process=printable(line[1], LONGEST_PROCESS),
        )
    return None
