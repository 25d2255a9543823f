"""What a drain tells: its result with the list for the evidence, its progress, its heartbeat. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gpu_runbooks.activities.draining.memory import MOST_PODS, DrainMemory, PodMemory
from gpu_runbooks.activities.draining.outlook import blockers, ordered
from gpu_runbooks.activities.draining.pod_record import PodRecord
from gpu_runbooks.activities.draining.state import YOUNGER, DrainState
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.model.drain import DrainProgress, DrainResult

Outcome = Literal["drained", "blocked", "cancelled", "failed"]

LONGEST_MESSAGE = 1000
"""Characters of a result's message: it goes into the history."""

NAMED = 10
"""Pods that a message names."""

BARE = "bare: "
LOST = "emptyDir volumes lost: "
"""Beginnings of the notes that a message sums up."""


@dataclass(frozen=True)
class DrainReport:
    """A drain's result, and what was done to every pod."""

    result: DrainResult
    pods: list[PodRecord]


def report_of(state: DrainState, outcome: Outcome, message: str = "") -> DrainReport:
    """Put the outcome together with counts, blockers and what else a person has to know."""
    ends = state.ends()
    parts = [message, _unreadable(state), _younger(state), *_losses(state), _earlier(state)]
    words = ". ".join(part for part in parts if part)
    result = DrainResult(
        outcome=outcome,
        gone=state.gone_total,
        evicted=ends["evicted"],
        completed=ends["completed"],
        checkpointed=ends["checkpointed"],
        deleted=ends["deleted"],
        abandoned=len(state.abandoned),
        skipped=len(state.skipped),
        blockers=blockers(state),
        blocked_total=state.remaining,
        message=words if len(words) <= LONGEST_MESSAGE else words[: LONGEST_MESSAGE - 3] + "...",
    )
    return DrainReport(result, state.records())


def progress_of(state: DrainState) -> DrainProgress:
    return DrainProgress(
        started=state.request.started,
        remaining=state.remaining,
        gone=state.gone_total,
        blockers=blockers(state),
    )


def heartbeat_of(state: DrainState, words: int = 0) -> Object:
    """Details of a heartbeat: what `temporal workflow describe` shows of a drain that runs.

    `memory` is for the worker that takes the drain over, should this one die.
    """
    progress = progress_of(state)
    fields = {"namespace", "name", "reason", "names", "attempts", "since", "message"}
    return {
        "remaining": progress.remaining,
        "gone": progress.gone,
        "blockers": [blocker.model_dump(mode="json", include=fields) for blocker in progress.blockers],
        "memory": memory_of(state, words).model_dump(mode="json", exclude_defaults=True),
    }


def memory_of(state: DrainState, words: int) -> DrainMemory:
    """What another worker needs to go on; `words` is how many the incident was told."""
    if not state.seen:
        return state.memory.model_copy(update={"words": words})
    unlisted = Counter(record.end for uid, record in state.gone.items() if uid not in state.listed)
    going = [
        (target.uid, PodMemory.of(target.record, attempts=target.attempts, since=target.since))
        for target in ordered(state)
    ]
    listed = [
        (uid, PodMemory.of(record, attempts=record.evictions, gone=record.end))
        for uid, record in state.gone.items()
        if uid in state.listed
    ]
    pods = dict([*going, *listed][:MOST_PODS])
    return DrainMemory(ends=dict(state.earlier + unlisted), words=words, pods=pods)


def _unreadable(state: DrainState) -> str:
    if not state.unreadable:
        return ""
    return (
        f"{state.unreadable} objects in the node's list of pods cannot be read, so it is not known "
        "to be empty: see the worker's log, and kubectl get pods -A --field-selector spec.nodeName="
        f"{state.request.identity.name}"
    )


def _earlier(state: DrainState) -> str:
    """A list for the evidence that lacks pods has to say so."""
    earlier = state.earlier.total()
    return (
        f"{earlier} pods went before this worker took over, and are counted but not listed" if earlier else ""
    )


def _younger(state: DrainState) -> str:
    younger = [record for record in state.skipped.values() if YOUNGER in record.notes]
    if not younger:
        return ""
    return f"{len(younger)} pods that hold the GPU came after the fault was seen, and stay: " + _names(
        record.full_name for record in younger
    )


def _losses(state: DrainState) -> list[str]:
    """What went with pods that nobody brings back, and what was left by order."""
    gone = [record for record in state.gone.values() if record.end != "completed"]
    lost = [record for record in gone if _noted(record, LOST)]
    bare = [record for record in gone if _noted(record, BARE)]
    left = [
        f"{record.full_name} by order of {record.abandoned_by.operator} ({record.abandoned_by.reason})"
        for record in state.abandoned.values()
        if record.abandoned_by
    ]
    parts = []
    if lost:
        parts.append(
            f"{len(lost)} pods lost their emptyDir volumes: {_names(record.full_name for record in lost)}"
        )
    if bare:
        parts.append(
            f"{len(bare)} pods had no controller and are gone: {_names(record.full_name for record in bare)}"
        )
    if left:
        parts.append(f"{len(left)} pods are still there, abandoned: {_names(left)}")
    return parts


def _noted(record: PodRecord, beginning: str) -> bool:
    return any(note.startswith(beginning) for note in record.notes)


def _names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:NAMED]) + (", ..." if len(ordered) > NAMED else "")
