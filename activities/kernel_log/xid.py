"""Xid lines of the NVIDIA driver.

    NVRM: Xid (PCI:0000:4c:00 GPU-I:07 GPU-CI:00): 94, pid=91, name=infer, Contained: demo

Sources of the shapes: `kernel_rc.c` and `gpu.c` of NVIDIA/open-gpu-kernel-modules 595.45.04, NVIDIA's
catalogue of Xids of October 2025, and lines of older drivers in public reports.
"""

import re
from typing import Any

from gpu_runbooks.activities.kernel_log.address import pci_address
from gpu_runbooks.activities.kernel_log.event import LONGEST_PROCESS, Finding, Grade, Kind, printable

_XID = re.compile(r"NVRM: Xid \(([^)]{1,80})\): ([0-9]{1,6})(?:, ?|[ \t]*$)", re.ASCII)
_WHERE = re.compile(r"([^ ,;]+)(?:[ ,;]|$)")
_GPU_INSTANCE = re.compile(r"\bGPU-I:([0-9]{1,4})\b", re.ASCII)
_COMPUTE_INSTANCE = re.compile(r"\bGPU-CI:([0-9]{1,4})\b", re.ASCII)

_PID = re.compile(r"pid=(?:'?([0-9]{1,10})'?|'?<[^<>,]{0,20}>'?|'')(?:, ?|$)", re.ASCII)
_NO_NAME = re.compile(r"name='?(?:<[^<>,]{0,20}>)?'?(?:, ?|$)")
_NAME = "name="
_TEXT_BEGINS = re.compile(
    r"(?:Ch|ch|channel|Channel|Graphics|GPU|GSP|GPC|MMU|NVLink|DBE|SBE|ECC|PMU|FBHUB|Timeout"
    r"|Contained|Uncontained|Row|Dynamic|Page|Fault|Engine|Reset"
    r"|[A-Z][A-Z0-9_]{2,40} (?:Link )?(?:Fatal|Non-?fatal))\b",
    re.ASCII,
)
"""How the driver's own text may begin: a process may have a comma in its name."""

_PLACE = re.compile(r"GPC ([0-9]{1,3}), TPC ([0-9]{1,3})(?:, SM ([0-9]{1,3}))?(?![0-9])", re.ASCII)
_CAUSED_BY = re.compile(r"caused by previous Xid ([0-9]{1,6})(?!\w|\.[0-9])", re.ASCII)
_FLAGS = re.compile(r"\bRST: (Yes|No), D-RST: (Yes|No)\b")
_RECOVERY = re.compile(
    r"GPU recovery action changed from 0x([0-9a-f]{1,8})\b(?: \([^()]{0,60}\))? to 0x([0-9a-f]{1,8})\b",
    re.IGNORECASE | re.ASCII,
)
_COMMA = re.compile(", ")
_NVLINK5 = re.compile(
    r"\b([A-Z][A-Z0-9_]{0,40}) (?:Link )?(Fatal|Non-?fatal)(?: XC([01]))?(?: i([0-9]))?"
    r"(?: Link (-?[0-9]{1,3}))?(?![0-9])(?: ?\(([0-9a-fx, ]{1,200})\))?",
    re.IGNORECASE | re.ASCII,
)
_LINK_AND_REGISTERS = re.compile(
    r"\blink ([0-9]{1,3})(?![0-9])(?: ?\(([0-9a-fx, ]{1,200})\))?", re.IGNORECASE | re.ASCII
)
_WORD = re.compile(r"0x([0-9a-f]{1,16})(?![0-9a-fx])", re.IGNORECASE | re.ASCII)

_RESET, _DRAIN_AND_RESET = 1, 4
"""NVML's numbers of these recovery actions."""


def read_xid(text: str) -> Finding | None:
    """The finding of a record whose text begins as an Xid line; None for any other."""
    line = _XID.match(text)
    if line is None or not (code := int(line[2])):
        return None
    where = _WHERE.match(line[1])
    pci = pci_address(where[1]) if where else None
    if pci is None:
        return None
    said = text[line.end() :]
    pid, process = None, None
    if found := _PID.match(said):
        pid, said = int(found[1]) if found[1] else None, said[found.end() :]
    if said.startswith(_NAME):
        process, said = _process(said)
    return Finding(
        kind=Kind.XID,
        code=str(code),
        text=printable(said),
        pci=pci,
        gi=_number(_GPU_INSTANCE.search(line[1])),
        ci=_number(_COMPUTE_INSTANCE.search(line[1])),
        pid=pid,
        process=process,
        **_details(code, said),
    )


def _process(said: str) -> tuple[str | None, str]:
    """Name of the process, and the text behind it.

    The name ends at the first comma behind which the driver's own text begins; without one, at the first.
    """
    if unknown := _NO_NAME.match(said):
        return None, said[unknown.end() :]
    said = said.removeprefix(_NAME)
    first = end = said.find(", ")
    while 0 <= end <= LONGEST_PROCESS:
        if _TEXT_BEGINS.match(said, end + 2):
            return printable(said[:end]), said[end + 2 :]
        end = said.find(", ", end + 1)
    if first < 0:
        return printable(said, LONGEST_PROCESS), ""
    return printable(said[:first], LONGEST_PROCESS), said[first + 2 :]


def _details(code: int, said: str) -> dict[str, Any]:
    """What the text of this code has beyond words, as fields of `Finding`."""
    if code == 13:
        return _place(said)
    if code == 45:
        return _cause(said)
    if code == 74:
        return _link(said)
    if code in {94, 95}:
        return _reset_flags(said)
    if 144 <= code <= 150:
        return _nvlink5(said)
    if code == 154 and (change := _RECOVERY.search(said)):
        return {"previous_action": int(change[1], 16), "recovery_action": int(change[2], 16)}
    return {}


def _cause(said: str) -> dict[str, Any]:
    causes = list(_CAUSED_BY.finditer(said))
    # A process may call itself like this, and the driver's own text begins behind a comma.
    if not causes or any(
        _TEXT_BEGINS.match(said, comma.end()) for comma in _COMMA.finditer(said, causes[-1].end())
    ):
        return {}
    cause = int(causes[-1][1])
    return {"caused_by": cause} if cause else {}


def _place(said: str) -> dict[str, Any]:
    # The last one: a process may call itself like a place, and its name stands before.
    places = _PLACE.findall(said)
    if not places:
        return {}
    gpc, tpc, sm = places[-1]
    return {"place": f"GPC {int(gpc)} TPC {int(tpc)}", "sm": int(sm) if sm else None}


def _link(said: str) -> dict[str, Any]:
    line = _LINK_AND_REGISTERS.search(said)
    if line is None:
        return {}
    registers = _words(line[2])
    link = int(line[1])
    return {"link": link, "place": f"link {link}", "registers": registers if len(registers) == 7 else ()}


def _reset_flags(said: str) -> dict[str, Any]:
    flags = _FLAGS.search(said)
    if flags is None:
        return {}
    if flags[1] == "Yes":
        return {"recovery_action": _RESET}
    # Two times No is not taken as "nothing to do": the flags are of this error alone.
    return {"recovery_action": _DRAIN_AND_RESET} if flags[2] == "Yes" else {}


def _nvlink5(said: str) -> dict[str, Any]:
    line = _NVLINK5.search(said)
    if line is None:
        return {}
    unit = line[1].upper()
    grade: Grade = "fatal" if line[2].lower() == "fatal" else "nonfatal"
    link = int(line[5]) if line[5] and int(line[5]) >= 0 else None
    return {
        "unit": unit,
        "grade": grade,
        "cross_contained": line[3] == "1" if line[3] else None,
        "injected": line[4] != "0" if line[4] else None,
        "link": link,
        "place": unit if link is None else f"{unit} link {link}",
        "registers": _words(line[6]),
    }


def _words(text: str | None) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in _WORD.findall(text or ""))


def _number(found: re.Match[str] | None) -> int | None:
    return int(found[1]) if found else None
