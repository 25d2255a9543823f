"""Which faults of an open incident are news to it, and which only say again what it knows.

One thing that is wrong may be reported under many fingerprints: by a rule whose labels differ from alert to
alert, or by an alert that flaps. The first few are told as they come. From then on only a later onset is
news, since it may refute a repair that was proven in between.
"""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_runbooks.activities.model.plan import FaultReport

FREE = 10
"""Faults of one kind that an incident takes as they come: five events each."""

PACE = 60.0
"""Seconds between two later onsets of a kind that join."""

SAME_MOMENT = timedelta(seconds=10)
"""Two onsets of a kind that are no further apart are one. No repair is begun and proven in that time."""

MOST_KINDS = 100
"""Kinds of an incident that are told as they come."""

KIND_PACE = 1.0
"""Seconds between two kinds beyond those."""

KEPT_KINDS = 500
"""One that is forgotten counts as another kind when it comes again."""


@dataclass(frozen=True)
class Verdict:
    """What is to be done with a fault. Without a word in it: told, now."""

    same_as: str = ""
    """Fingerprint of a fault that the incident has, which this one only repeats."""
    wait: float = 0.0
    """Seconds until it may be told."""


@dataclass
class _Kind:
    fingerprint: str
    """Of the fault with the latest onset that was told."""
    onset: datetime
    joined: int
    next_at: float
    """Clock from which on a later onset may join."""
    awaited: datetime | None = None
    """Latest onset that had to wait. It joins before others, and then answers for them."""
    awaited_until: float = 0.0


def kind_of(report: FaultReport) -> tuple[str, ...]:
    """What makes two faults of a node say the same: what, where, and what policy does about it."""
    fault, treatment = report.fault, report.plan.treatment
    return (
        *(str(fault.source), fault.code, fault.status, fault.reason, fault.grade),
        *(str(fault.recovery_action), fault.place, fault.boot_id),
        *(fault.entity.kind, fault.entity.uuid or "", fault.entity.pci_address or ""),
        *(treatment.rule, treatment.ladder),
    )


class News:
    """What one run of an incident was told, by kind. `clock` is monotonic, in seconds."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[tuple[str, ...], _Kind] = OrderedDict()
        self._told_kinds = 0
        self._next_kind_at = 0.0

    def judge(self, report: FaultReport, clock: float) -> Verdict:
        """Whether a fault that the incident does not know by its fingerprint is to be told."""
        kind, onset = self._kinds.get(kind_of(report)), report.fault.first_seen
        if kind is None:
            crowded = self._told_kinds >= MOST_KINDS and clock < self._next_kind_at
            return Verdict(wait=self._next_kind_at - clock) if crowded else Verdict()
        if kind.joined < FREE:
            return Verdict()
        if onset <= kind.onset + SAME_MOMENT:
            return Verdict(same_as=kind.fingerprint)
        outdone = kind.awaited is not None and onset < kind.awaited and clock < kind.awaited_until
        if clock >= kind.next_at and not outdone:
            return Verdict()
        if not outdone:
            kind.awaited, kind.awaited_until = onset, max(kind.next_at, clock) + PACE
        return Verdict(wait=max(kind.next_at - clock, 1.0))

    def told(self, report: FaultReport, clock: float) -> None:
        """Remember that the incident has a fault."""
        name, fault = kind_of(report), report.fault
        kind = self._kinds.get(name)
        if kind is None:
            self._kinds[name] = _Kind(fault.fingerprint, fault.first_seen, 1, clock + PACE)
            self._told_kinds += 1
            self._next_kind_at = clock + KIND_PACE
        else:
            kind.joined += 1
            kind.next_at = clock + PACE
            if fault.first_seen >= kind.onset:
                kind.fingerprint, kind.onset = fault.fingerprint, fault.first_seen
            if kind.awaited is not None and kind.awaited <= kind.onset:
                kind.awaited = None
        self._kinds.move_to_end(name)
        while len(self._kinds) > KEPT_KINDS:
            self._kinds.popitem(last=False)
