"""Who is in the way of a drain, for how long, and whether it can end by itself. Pure."""

from datetime import datetime, timedelta

from gpu_runbooks.activities.draining.obstacles import DELETION_DUE
from gpu_runbooks.activities.draining.pods import KUBELET_SLACK
from gpu_runbooks.activities.draining.state import LONGEST_MESSAGE, LONGEST_NAME, DrainState
from gpu_runbooks.activities.draining.target import Target
from gpu_runbooks.activities.model.drain import BlockerReason, PodBlocker

MOST_BLOCKERS = 20
"""Pods in the way that are shown."""

PASSING = frozenset({BlockerReason.NOT_TRIED, BlockerReason.TERMINATING})
"""Reasons that end by themselves within a grace period: nobody has to do anything."""

HOPELESS = frozenset(BlockerReason) - {
    BlockerReason.NOT_TRIED,
    BlockerReason.TERMINATING,
    BlockerReason.COMPLETION,
    BlockerReason.CHECKPOINT,
    BlockerReason.THROTTLED,
    BlockerReason.API_SERVER,
    BlockerReason.BUDGET_NOT_OBSERVED,
}
"""Reasons out of which no pod of a silent node gets without a person, or only into one that is as bad."""


def stuck_on_silent_node(state: DrainState, now: datetime) -> bool:
    """The node is silent for longer than policy waits, and nothing that is left can go on without it."""
    if state.node_ready == "True" or not state.targets:
        return False
    silent_since = max(state.request.started, state.node_ready_since or state.request.started)
    if now < silent_since + state.request.policy.silent_node:
        return False
    return not any(
        target.asking
        or target.step.obstacle.reason not in HOPELESS
        or (target.step.obstacle.reason is BlockerReason.DO_NOT_DISRUPT and target.step.obstacle.until)
        for target in state.targets.values()
    )


def grace_ends(state: DrainState, latest: datetime) -> datetime | None:
    """When the last grace period is over, where all that is left takes its own; at most `latest`.

    None where anything else is left.
    """
    if state.unreadable:
        return None
    if not state.targets:  # the list that proves it is on its way
        return min(max(state.left, state.settled) + KUBELET_SLACK, latest)
    ends = []
    for target in state.targets.values():
        obstacle, accepted = target.step.obstacle, target.record.accepted
        if obstacle.reason is not BlockerReason.TERMINATING:
            return None
        if obstacle.until is not None:
            ends.append(min(obstacle.until, latest) + KUBELET_SLACK)
        elif accepted is not None:  # its deletion is about to begin
            ends.append(accepted + timedelta(seconds=DELETION_DUE))
    return min(max(ends), latest) if ends else None


def in_the_way(state: DrainState) -> frozenset[tuple[str, BlockerReason]]:
    """The pods that do not just take their grace period, each with its reason."""
    return frozenset(
        (target.uid, target.step.obstacle.reason)
        for target in state.targets.values()
        if target.step.obstacle.reason not in PASSING
    )


def blockers(state: DrainState) -> tuple[PodBlocker, ...]:
    """The first twenty pods that are still there, each with why: those that need somebody come first."""
    shown = [
        PodBlocker(
            namespace=target.record.namespace,
            name=target.record.name,
            uid=target.uid,
            workload=target.record.workload,
            reason=target.step.obstacle.reason,
            names=tuple(name[:LONGEST_NAME] for name in target.step.obstacle.names[:3]),
            message=target.step.obstacle.message[:LONGEST_MESSAGE],
            attempts=target.attempts,
            since=target.since,
        )
        for target in ordered(state)[:MOST_BLOCKERS]
    ]
    return tuple(shown)


def ordered(state: DrainState) -> list[Target]:
    """The pods that are still there: those that need somebody, then by how long they have been so."""
    return sorted(
        state.targets.values(), key=lambda target: (target.step.obstacle.reason in PASSING, target.since)
    )
