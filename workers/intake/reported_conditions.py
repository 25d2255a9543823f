"""The conditions that a Node reports of itself, read with care. Pure.

Which types are watched and which of their statuses are bad, policy says. A condition that is missing, or
whose status is neither bad nor surely good, is unknown: it is no fault, and ends none.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.names import digest
from gpu_runbooks.workers.intake.plain_text import one_line

Watched = Mapping[str, frozenset[str]]
"""Bad statuses by type of condition."""

STATUSES = frozenset({"True", "False"})
"""Statuses that say something. One of them that is not bad is good."""

LONGEST_REASON = 256
LONGEST_SUMMARY = 300
LONGEST_MESSAGE = 4096
"""Characters of a message in which a GPU is looked for. Of a longer one nobody knows what else it names."""

MOST_BAD = 50
"""Bad conditions of a node that are looked at. Honestly there is one of each watched type at most."""

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
    """The watched conditions of a Node. What is neither bad nor good is unknown."""

    bad: tuple[BadCondition, ...] = ()
    good: frozenset[str] = frozenset()
    """Types."""
    absent: frozenset[str] = frozenset()
    """Watched types of which the Node has no condition."""


def conditions_of(node: Object, watched: Watched) -> Conditions:
    """Read the watched conditions of a Node. Whatever else is in it changes nothing, and nothing raises."""
    status = node.get("status")
    bad: list[BadCondition] = []
    good: set[str] = set()
    present: set[str] = set()
    for condition in objects_in(status.get("conditions") if isinstance(status, dict) else None):
        kind, state = condition.get("type"), condition.get("status")
        if not isinstance(kind, str) or not isinstance(state, str) or kind not in watched:
            continue
        present.add(kind)
        if state in watched[kind]:
            if len(bad) < MOST_BAD:
                bad.append(_bad(sys.intern(kind), sys.intern(state), watched[kind], condition))
        elif state in STATUSES:
            good.add(sys.intern(kind))
    return Conditions(
        tuple(bad),
        shared(frozenset(good - {each.type for each in bad})),
        shared(frozenset(watched.keys() - present)),
    )


@lru_cache(maxsize=1024)
def shared(types: frozenset[str]) -> frozenset[str]:
    """One object for the thousands of nodes on which the same types are good, or absent."""
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
    return f"{one_line(text, LONGEST_REASON - 22)}... {digest(repr(text))[:12]}"


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
