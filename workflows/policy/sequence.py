"""Faults of one node that come from one another: which of them count. Pure.

One broken part logs many lines. A hardware Xid ends the channels of all processes (43, 45), a fatal SXid
shows as Xid 74 on the GPUs, a time-out of NCCL comes from a fault of another rank. What follows from another
fault needs no answer of its own, and what a later line takes back needs none any more.

Sources of the relations: NVIDIA's Xid workbook of October 2025 ("sympathetic" buckets, workflows 45, 48 and
74), the Fabric Manager guide by way of gpud, NVSentinel (bursts of three minutes), nvidia-resiliency-ext
(NCCL's time-outs are cascades). What is written here is code and no table: open incidents replay it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource
from gpu_runbooks.workflows.aftermath import is_of_our_reset

CASCADE = timedelta(seconds=30)
"""How long after a fault its consequences on the same GPU may begin."""

BURST = timedelta(minutes=3)
"""Time within which faults that accompany one another are logged, in any order."""

DISORDER = timedelta(seconds=5)
"""How far a consequence may seem to come before its cause: two drivers, or two clocks, log them."""

TEARDOWN = frozenset({43, 45})
"""Channels that end with their process, or because another fault came first."""

APPLICATION = frozenset({13, 31})
"""Faults of a kernel's code, or of the memory below it."""

FATAL = frozenset(
    {46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, *range(143, 147), 149, 150, 151, 155, 156}
    | {158, 167, 168, 169, 171, 172, 173, 175}
)
"""Xids that the catalogue calls fatal: each of them needs a reset or more."""

DETAIL = frozenset({171, 172})
"""Say whether the error of an Xid 48 was in DRAM or SRAM."""

ROOT = FATAL - DETAIL
CAUSES = {
    **dict.fromkeys(TEARDOWN, ROOT | {94} | APPLICATION),
    **dict.fromkeys(APPLICATION, ROOT | {94}),
    94: ROOT,
    95: ROOT - {95},
    159: ROOT,
    63: frozenset({48, 95}),
    **dict.fromkeys(DETAIL, frozenset({48})),
}
"""What an Xid may be a consequence of, on the same GPU. A cause needs at least as strong a repair as it."""

WINDOWS = {
    **dict.fromkeys(TEARDOWN | APPLICATION, (DISORDER, CASCADE)),
    **dict.fromkeys((94, 95, 159, 63, *DETAIL), (BURST, BURST)),
}
"""How long before and how long after its cause it may begin."""

WHY = {
    **dict.fromkeys(TEARDOWN, "it ended the work on the GPU"),
    **dict.fromkeys(APPLICATION, "work on a broken GPU fails"),
    **dict.fromkeys((94, 95, 159), "expected beside another error, which is cured first"),
    63: "its repair applies the row remap",
    **dict.fromkeys(DETAIL, "a detail of it"),
}

NVLINK = 74
ACTION_CHANGED = 154

_CAUSED_BY = re.compile(r"caused by previous Xid ([0-9]{1,6})\b", re.ASCII)
_NCCL = re.compile("nccl", re.IGNORECASE)
NCCL_CODES = {(FaultSource.DCGM, "129")}


class Kind(StrEnum):
    CONSEQUENCE = "consequence"
    CANCELLED = "cancelled"
    OURS = "ours"


@dataclass(frozen=True)
class Explanation:
    """Why a fault needs no answer of its own."""

    kind: Kind
    why: str
    by: Fault | None = None
    """The other fault; None for what we did ourselves, and for a cause that is somewhere else."""


@dataclass(frozen=True)
class Ours:
    """A reset, or an end of pods, that was ours."""

    gpu: tuple[str | None, str | None]
    """UUID and PCI address; (None, None) for all GPUs of the node."""
    began: datetime
    ended: datetime | None = None
    """None while it lasts."""


def explained(fault: Fault, others: Iterable[Fault], ours: Iterable[Ours] = ()) -> Explanation | None:
    """Why a fault needs no answer of its own; None for one that counts.

    `others` are faults of the same node, before or after it; the fault itself may be among them. An
    explanation by a fault holds only as long as that one's answer is at least as strong: a site's rule may
    have made it milder. That is for the caller to see.
    """
    rest = [other for other in others if other != fault and _of_one_boot(fault, other)]
    if any(is_of_our_reset(fault, each.gpu, each.began, each.ended) for each in ours):
        return Explanation(Kind.OURS, "the driver cleans up after what we did")
    number = _xid(fault)
    if number == ACTION_CHANGED:
        return _cancelled(fault, rest)
    if _is_nccls(fault):
        return _of_nccl(fault, rest)
    if number is None or fault.recovery_action:
        return None  # the driver asks for something because of this very fault
    if number == NVLINK:
        return _of_switch(fault, rest)
    return _named_in_line(fault, number, rest) or _of_xid(fault, number, rest)


def _cancelled(fault: Fault, others: Iterable[Fault]) -> Explanation | None:
    """By a later line that says that this GPU needs nothing any more."""
    if not fault.recovery_action:
        return None
    for other in others:
        if takes_back(other, fault):
            return Explanation(Kind.CANCELLED, "the driver wants nothing more done with this GPU", other)
    return None


def takes_back(later: Fault, fault: Fault) -> bool:
    """Whether a line says that the driver wants nothing more done with the GPU of an earlier one."""
    asks = _xid(fault) == ACTION_CHANGED and bool(fault.recovery_action)
    return (
        asks
        and _is_taken_back(later)
        and later.first_seen >= fault.first_seen
        and _of_one_boot(later, fault)
        and _same_gpu(fault, later)
    )


def _is_taken_back(fault: Fault) -> bool:
    return _xid(fault) == ACTION_CHANGED and fault.recovery_action == 0


def _of_nccl(fault: Fault, others: Iterable[Fault]) -> Explanation | None:
    earlier = [other for other in others if _xid(other) in ROOT and other.first_seen <= fault.first_seen]
    if earlier:
        return Explanation(Kind.CONSEQUENCE, "NCCL waits for work on a broken GPU", earlier[-1])
    if fault.source is FaultSource.ALERT:
        return None  # policy has an answer to the alert itself
    return Explanation(Kind.CONSEQUENCE, "NCCL's errors follow from a fault elsewhere")


def _of_switch(fault: Fault, others: Iterable[Fault]) -> Explanation | None:
    """A fatal error of an NVSwitch reaches the GPUs of the node as Xid 74."""
    for other in others:
        fatal = other.source is FaultSource.SXID and other.grade == "fatal"
        if fatal and -DISORDER <= fault.first_seen - other.first_seen <= BURST:
            return Explanation(Kind.CONSEQUENCE, "a fatal error of an NVSwitch reaches the GPUs as it", other)
    return None


def _named_in_line(fault: Fault, number: int, others: Iterable[Fault]) -> Explanation | None:
    """The line of an Xid 45 may name the Xid that it comes from."""
    named = _CAUSED_BY.search(fault.summary) if number in TEARDOWN else None
    if named is None:
        return None
    for other in others:
        gap = abs(fault.first_seen - other.first_seen)
        if _xid(other) == int(named[1]) != number and _same_gpu(fault, other) and gap <= BURST:
            return Explanation(Kind.CONSEQUENCE, "the driver names it as the cause", other)
    return None


def _of_xid(fault: Fault, number: int, others: Iterable[Fault]) -> Explanation | None:
    causes = CAUSES.get(number)
    if causes is None:
        return None
    before, after = WINDOWS[number]
    for other in others:
        near = -before <= fault.first_seen - other.first_seen <= after
        if _xid(other) in causes and near and _same_gpu(fault, other):
            return Explanation(Kind.CONSEQUENCE, WHY[number], other)
    return None


def _xid(fault: Fault) -> int | None:
    code = fault.code.strip()
    return int(code) if fault.source is FaultSource.XID and code.isascii() and code.isdecimal() else None


def _is_nccls(fault: Fault) -> bool:
    if fault.source in {FaultSource.ALERT, FaultSource.KERNEL}:
        return _NCCL.search(fault.code) is not None
    return (fault.source, fault.code.strip()) in NCCL_CODES


def _of_one_boot(one: Fault, other: Fault) -> bool:
    return not one.boot_id or not other.boot_id or one.boot_id == other.boot_id


def _same_gpu(one: Fault, other: Fault) -> bool:
    """Whether both name one GPU. Where either names none, nobody can say."""
    return _is_same(one.entity, other.entity) and one.entity.kind == other.entity.kind == "gpu"


def _is_same(one: Entity, other: Entity) -> bool:
    if one.uuid is not None and other.uuid is not None:
        return one.uuid == other.uuid
    return one.pci_address is not None and one.pci_address == other.pci_address
