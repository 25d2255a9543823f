"""Bad conditions of a Node as faults, each with a clock of its own. Pure.

A fault is known by what the Node itself says: type, status, reason, GPU and `lastTransitionTime`. So every
process gives it the same fingerprint. Only the clock, from which a toleration counts, comes from memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpu_runbooks.activities.model.fault import ConditionCleared, Entity, Fault, FaultSource
from gpu_runbooks.activities.names import digest
from gpu_runbooks.workers.intake.reported_conditions import BadCondition, Conditions, shared

REPORTER = "node conditions"

READY = "Ready"

MOST_REASONS = 20
"""Reasons of one type, from the first that was bad until it is good, that are faults of their own. A detector
that writes a number into its reason would otherwise report for ever."""

SKEW = timedelta(minutes=5)
"""By how much the clock of whoever writes the condition may differ from ours."""

BOOTING = timedelta(minutes=2)
"""Since so soon after its creation a Node is not ready that still joins the cluster."""


@dataclass(slots=True)
class Clock:
    """How long a condition of one type has been bad for one reason, on one GPU or the node."""

    first_seen: datetime
    fingerprints: dict[str, str] = field(default_factory=dict)
    """By status, as the Node was when it first showed it."""


@dataclass(frozen=True)
class Look:
    """What one look at a node showed."""

    faults: tuple[Fault, ...] = ()
    """All that is bad now, news or not."""
    cleared: tuple[ConditionCleared, ...] = ()
    """Types that were bad and have become good."""
    overlooked: tuple[str, ...] = ()
    """Types with more reasons than are faults of their own; each is told once."""
    anew: Mapping[str, Fault] = field(default_factory=dict)
    """By fingerprint, faults that may have been over unseen, as what they are then: another fault since."""
    booting: frozenset[str] = frozenset()
    """Fingerprints of faults that only say that the node has not joined the cluster yet."""


class Clocks:
    """The clocks of one Node object, by type, reason and GPU.

    A clock begins when the status turned bad, as the condition says, or when we saw it turn, and not before
    the Node was created. It goes on while the status is bad, unknown or missing, whatever the reason and
    `lastTransitionTime` are rewritten to, and ends when the status is good.
    """

    __slots__ = (
        "_absent",
        "_clocks",
        "_created",
        "_ended",
        "_good",
        "_last",
        "_looked",
        "_overlooked",
        "_rewritten",
        "_since",
        "_uid",
        "_was_good",
    )

    def __init__(self, uid: str, created: datetime | None) -> None:
        self._uid = uid
        self._created = created
        self._clocks: dict[str, dict[tuple[str, str | None], Clock]] = {}
        self._since: dict[str, datetime | None] = {}
        self._last: dict[str, BadCondition] = {}
        self._rewritten: dict[str, datetime | None] = {}
        self._ended: dict[str, datetime | None] = {}
        self._good: frozenset[str] = frozenset()
        self._absent: frozenset[str] = frozenset()
        self._was_good: frozenset[str] = frozenset()
        self._overlooked: frozenset[str] = frozenset()
        self._looked: datetime | None = None

    def look(self, conditions: Conditions, now: datetime) -> Look:
        """Take a look at the conditions as they are now."""
        cleared = tuple(self._end(kind, now) for kind in sorted(conditions.good & self._clocks.keys()))
        faults: list[Fault] = []
        anew: dict[str, Fault] = {}
        overlooked: set[str] = set()
        for bad in conditions.bad:
            self._notice_rewriting(bad)
            clock = self._clock(bad, now)
            if clock is not None:
                fault = self._fault(bad, clock, now)
                faults.append(fault)
                anew |= self._anew(bad, fault, now)
            elif bad.type not in self._overlooked:
                overlooked.add(bad.type)
        self._overlooked = (self._overlooked | overlooked) - conditions.good
        self._last = {bad.type: bad for bad in conditions.bad}
        self._since |= {bad.type: bad.since for bad in conditions.bad}
        if not conditions.good <= self._was_good:
            self._was_good = shared(self._was_good | conditions.good)
        self._good, self._absent, self._looked = conditions.good, conditions.absent, now
        booting = frozenset(fault.fingerprint for fault in faults if self._is_booting(fault))
        return Look(tuple(faults), cleared, tuple(sorted(overlooked)), anew, booting)

    def _end(self, kind: str, now: datetime) -> ConditionCleared:
        del self._clocks[kind]
        self._rewritten.pop(kind, None)
        self._ended[kind] = self._since.pop(kind, None)
        return ConditionCleared(type=kind, uid=self._uid, at=now)

    def _clock(self, bad: BadCondition, now: datetime) -> Clock | None:
        """The clock of a bad condition, begun if need be; None for one reason too many."""
        clocks = self._clocks.setdefault(bad.type, {})
        clock = clocks.get((bad.reason, bad.gpu))
        if clock is None:
            if len(clocks) >= MOST_REASONS:
                return None
            clock = clocks[bad.reason, bad.gpu] = Clock(self._begin(bad, now))
        if bad.status not in clock.fingerprints:
            clock.fingerprints[bad.status] = self._fingerprint(bad, now)
        return clock

    def _begin(self, bad: BadCondition, now: datetime) -> datetime:
        """When a clock begins that we have not seen before."""
        if bad.type in self._since and bad.since == self._since[bad.type]:
            return now  # another reason, and the status has been bad since the time that it says
        if bad.since is not None and self._is_believed(bad, bad.since, now):
            return min(self._no_earlier(bad, bad.since), now)
        return now if bad.type in self._was_good else self._created or now

    def _no_earlier(self, bad: BadCondition, since: datetime) -> datetime:
        """The time, or the latest one at which the Node is known not to have had the condition.

        A Node has none before it is created: a detector that writes an earlier time speaks of a machine, or a
        boot, before this one, and its fault would have outlived every toleration when it is first seen.
        """
        earliest = since if self._created is None else max(since, self._created)
        if self._looked is not None and bad.type in self._good | self._absent:
            return max(earliest, self._looked)
        return earliest

    def _is_believed(self, bad: BadCondition, since: datetime, now: datetime) -> bool:
        """Whether the status may have turned bad when the condition says so."""
        if since > now + SKEW or self._is_stale(bad, now):
            return False
        was_good_then = bad.type in self._good and self._looked is not None and since < self._looked - SKEW
        return not was_good_then

    def _is_stale(self, bad: BadCondition, now: datetime) -> bool:
        """Whether the condition tells the time of a transition after which it was good."""
        if bad.type not in self._ended:
            return False
        ended = self._ended[bad.type]
        if bad.since is None or ended is None or ended > now + SKEW:
            return bad.since == ended
        return bad.since <= ended

    def _fingerprint(self, bad: BadCondition, now: datetime) -> str:
        """What the fault is known by: what the Node says of it, and nothing that only we know.

        Where it says the same as of a fault that is over, our time tells them apart. A restart of ours then
        takes the fault for the earlier one: nobody can tell them apart, and that one was answered.
        """
        onset = now if self._is_stale(bad, now) else bad.since
        written = onset.isoformat() if onset is not None else ""
        return digest(self._uid, bad.type, bad.status, bad.reason, bad.gpu or "", written)

    def _notice_rewriting(self, bad: BadCondition) -> None:
        """Notice a new time beside the same status and reason.

        Either it was good in between, and the watch or the detector passed over that, or the detector writes
        new times as it likes. The second one says that it does.
        """
        before = self._last.get(bad.type)
        if before is None or (before.status, before.reason, before.gpu) != (bad.status, bad.reason, bad.gpu):
            return
        if bad.since is None or bad.since == before.since:
            return
        forward = before.since is None or bad.since > before.since
        first = bad.type not in self._rewritten and forward
        self._rewritten[bad.type] = bad.since if first else None

    def _anew(self, bad: BadCondition, fault: Fault, now: datetime) -> dict[str, Fault]:
        """The fault as one that began at the rewritten time, by the fingerprint that it has."""
        since = self._rewritten.get(bad.type)
        if since is None or bad.since != since or since > now + SKEW:
            return {}
        fingerprint = self._fingerprint(bad, now)
        if fingerprint == fault.fingerprint:
            return {}
        update = {"first_seen": min(self._no_earlier(bad, since), now), "fingerprint": fingerprint}
        return {fault.fingerprint: fault.model_copy(update=update)}

    def _is_booting(self, fault: Fault) -> bool:
        """Whether a node is not ready that never was since its Node was created."""
        if fault.code != READY or READY in self._was_good or self._created is None:
            return False
        return fault.first_seen <= self._created + BOOTING

    def _fault(self, bad: BadCondition, clock: Clock, now: datetime) -> Fault:
        return Fault(
            source=FaultSource.CONDITION,
            code=bad.type,
            entity=Entity(kind="gpu", uuid=bad.gpu) if bad.gpu else Entity(),
            status=bad.status,
            good_status=bad.good_status,
            reason=bad.reason,
            summary=bad.summary,
            first_seen=clock.first_seen,
            last_seen=now,
            fingerprint=clock.fingerprints[bad.status],
            reporter=REPORTER,
        )
