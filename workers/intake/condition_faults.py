"""Conditions of a Node as faults, each with a clock of its own. Pure.

Which types are watched and which of their statuses are bad, policy says. A condition that is missing, or
whose status is neither bad nor surely good, is unknown: it is no fault, and ends none.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.model.fault import ConditionCleared, Entity, Fault, FaultSource
from gpu_runbooks.activities.names import digest
from gpu_runbooks.workers.intake.plain_text import one_line

Watched = Mapping[str, frozenset[str]]
"""Bad statuses by type of condition."""

REPORTER = "node conditions"

STATUSES = frozenset({"True", "False"})
"""Statuses that say something. One of them that is not bad is good."""

LONGEST_REASON = 256
LONGEST_SUMMARY = 300
LONGEST_MESSAGE = 4096
"""Characters of a message in which a GPU is looked for. Of a longer one nobody knows what else it names."""

MOST_BAD = 50
"""Bad conditions of a node that are looked at. Honestly there is one of each watched type at most."""

MOST_REASONS = 20
"""Reasons of one type, from the first that was bad until it is good, that are faults of their own. A detector
that writes a number into its reason would otherwise report for ever."""

SKEW = timedelta(minutes=5)
"""By how much the clock of whoever writes the condition may differ from ours."""

EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
"""What claims to be older has no time: Go's zero time is the year 1."""

GPU_UUID = re.compile(r"(?<![\w-])GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-])")


@dataclass(frozen=True, slots=True)
class BadCondition:
    """A condition whose status is bad."""

    type: str
    status: str
    good_status: str
    reason: str
    summary: str
    gpu: str | None
    """UUID of the one GPU that reason and message name."""
    since: datetime | None
    """`lastTransitionTime`, where it is one."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The watched conditions of a Node. What is in neither is unknown."""

    bad: tuple[BadCondition, ...] = ()
    good: frozenset[str] = frozenset()
    """Types."""


def conditions_of(node: Object, watched: Watched) -> Conditions:
    """Read the watched conditions of a Node. Whatever else is in it changes nothing, and nothing raises."""
    status = node.get("status")
    bad: list[BadCondition] = []
    good: set[str] = set()
    for condition in objects_in(status.get("conditions") if isinstance(status, dict) else None):
        kind, state = condition.get("type"), condition.get("status")
        if not isinstance(kind, str) or not isinstance(state, str) or kind not in watched:
            continue
        if state in watched[kind]:
            if len(bad) < MOST_BAD:
                bad.append(_bad(sys.intern(kind), sys.intern(state), watched[kind], condition))
        elif state in STATUSES:
            good.add(sys.intern(kind))
    return Conditions(tuple(bad), _shared(frozenset(good - {each.type for each in bad})))


@lru_cache(maxsize=1024)
def _shared(types: frozenset[str]) -> frozenset[str]:
    """One object for the thousands of nodes on which the same types are good."""
    return types


def _bad(kind: str, status: str, statuses: frozenset[str], condition: Object) -> BadCondition:
    reason, message = _text(condition.get("reason")), _text(condition.get("message"))
    return BadCondition(
        type=kind,
        status=status,
        good_status=next(iter(sorted(STATUSES - statuses)), ""),
        reason=_reason(reason),
        summary=one_line(message or reason, LONGEST_SUMMARY),
        gpu=_gpu(reason, message),
        since=moment(condition.get("lastTransitionTime")),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _reason(text: str) -> str:
    """A reason in one short line. It may be anything: GKE writes JSON such as `{"31":true}`.

    One that is too long is told apart from others by a digest at its end.
    """
    if len(text) <= LONGEST_REASON:
        return one_line(text, LONGEST_REASON)
    return f"{one_line(text, LONGEST_REASON - 22)}... {digest(text)[:12]}"


def _gpu(*texts: str) -> str | None:
    if any(len(text) > LONGEST_MESSAGE for text in texts):
        return None
    uuids = {f"GPU-{found[4:].lower()}" for text in texts for found in GPU_UUID.findall(text)}
    return uuids.pop() if len(uuids) == 1 else None


def moment(written: Any) -> datetime | None:
    """A time of the API; None for what is none: missing, no text, without a zone, the year 1."""
    try:
        time = datetime.fromisoformat(written).astimezone(UTC) if "T" in written else None
    except (TypeError, ValueError, OverflowError):
        return None
    return time if time is not None and time >= EARLIEST and _has_zone(written) else None


def _has_zone(written: str) -> bool:
    return re.search(r"(?:[zZ]|[+-]\d\d:?\d\d)\Z", written) is not None


@dataclass(slots=True)
class Clock:
    """How long a condition of one type has been bad for one reason, on one GPU or the node."""

    first_seen: datetime
    onsets: dict[str, str] = field(default_factory=dict)
    """By status, what its fingerprint has for the onset: the same before and after a restart of ours."""


@dataclass(frozen=True)
class Look:
    """What one look at a node showed."""

    faults: tuple[Fault, ...] = ()
    """All that is bad now, news or not."""
    cleared: tuple[ConditionCleared, ...] = ()
    """Types that were bad and have become good."""
    overlooked: tuple[str, ...] = ()
    """Types with more reasons than are faults of their own; each is told once."""


class Clocks:
    """The clocks of one Node object, by type, reason and GPU.

    A clock begins when the status turned bad, as the condition says, or when we saw it turn. It goes on while
    the status is bad, unknown or missing, whatever the reason and `lastTransitionTime` are rewritten to, and
    ends when the status is good.
    """

    __slots__ = ("_clocks", "_created", "_ended", "_good", "_looked", "_overlooked", "_since", "_uid")

    def __init__(self, uid: str, created: datetime | None) -> None:
        self._uid = uid
        self._created = created
        self._clocks: dict[str, dict[tuple[str, str | None], Clock]] = {}
        self._since: dict[str, datetime | None] = {}
        self._ended: dict[str, datetime] = {}
        self._good: frozenset[str] = frozenset()
        self._overlooked: frozenset[str] = frozenset()
        self._looked: datetime | None = None

    def look(self, conditions: Conditions, now: datetime) -> Look:
        """Take a look at the conditions as they are now."""
        cleared = tuple(self._end(kind, now) for kind in sorted(conditions.good & self._clocks.keys()))
        faults: list[Fault] = []
        overlooked: set[str] = set()
        for bad in conditions.bad:
            clock = self._clock(bad, now)
            if clock is not None:
                faults.append(self._fault(bad, clock, now))
            elif bad.type not in self._overlooked:
                overlooked.add(bad.type)
        self._overlooked = (self._overlooked | overlooked) - conditions.good
        for bad in conditions.bad:
            self._since[bad.type] = bad.since
        self._good, self._looked = conditions.good, now
        return Look(tuple(faults), cleared, tuple(sorted(overlooked)))

    def _end(self, kind: str, now: datetime) -> ConditionCleared:
        del self._clocks[kind]
        since = self._since.pop(kind, None)
        if since is not None:
            self._ended[kind] = since
        return ConditionCleared(type=kind, uid=self._uid, at=now)

    def _clock(self, bad: BadCondition, now: datetime) -> Clock | None:
        """The clock of a bad condition, begun if need be; None for one reason too many."""
        clocks = self._clocks.setdefault(bad.type, {})
        turned = self._turned(bad, now)
        clock = clocks.get((bad.reason, bad.gpu))
        if clock is None:
            if len(clocks) >= MOST_REASONS:
                return None
            clock = clocks[bad.reason, bad.gpu] = Clock(self._begin(bad, turned, now))
        if bad.status not in clock.onsets:
            clock.onsets[bad.status] = self._onset(bad, turned, now)
        return clock

    def _turned(self, bad: BadCondition, now: datetime) -> datetime | None:
        """When the status turned bad, as the condition says; None where that cannot be."""
        since = bad.since
        if since is None or since > now + SKEW:
            return None
        if bad.type in self._ended and since <= self._ended[bad.type]:
            return None  # it was good in between
        if bad.type in self._good and self._looked is not None and since < self._looked - SKEW:
            return None  # it was good then
        return since

    def _begin(self, bad: BadCondition, turned: datetime | None, now: datetime) -> datetime:
        """When a clock begins that we have not seen before."""
        if bad.type in self._since and bad.since == self._since[bad.type]:
            return now  # another reason, and the status has been bad since the time that it says
        if turned is not None:
            return min(turned, now)
        return now if bad.type in self._good else self._oldest(now)

    def _onset(self, bad: BadCondition, turned: datetime | None, now: datetime) -> str:
        if turned is not None:
            return turned.isoformat()
        return (now if bad.type in self._good else self._oldest(now)).isoformat()

    def _oldest(self, now: datetime) -> datetime:
        """For what was bad when we first looked and does not say since when: the same after each restart."""
        return self._created or now

    def _fault(self, bad: BadCondition, clock: Clock, now: datetime) -> Fault:
        onset = clock.onsets[bad.status]
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
            fingerprint=digest(self._uid, bad.type, bad.status, bad.reason, bad.gpu or "", onset),
            reporter=REPORTER,
        )
