"""The block of a node: our taint, our cordon, and the marker that says what was there before.

Taints are one list to a merge patch, so every write names the resource version that it was made from: whoever
wrote in between keeps what they wrote, and we read again.
"""

import asyncio
from typing import Any

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.model.node import BlockMarker, BlockNode, BlockResult, UnblockNode, UnblockResult
from gpu_runbooks.activities.nodes.block_state import (
    blocking_patch,
    kept_on,
    marker_for,
    stands,
    unblocking_patch,
)
from gpu_runbooks.activities.nodes.node import (
    NODES,
    is_held_from,
    is_unschedulable,
    labels_of,
    marker_of,
    require_same_machine,
)

ATTEMPTS = 20
"""Writes against concurrent writers before the activity fails, and is retried as a whole."""

PAUSE = 0.05
"""Seconds after the first write that does not stand; each further one adds as much."""

CONFLICT = "another writer was faster (409)"
UNDONE = "the API server accepted the write, and what was read back is not what was written"


async def block(kubernetes: Kubernetes, request: BlockNode) -> BlockResult:
    """Block the node for the incident and read the block back. A block of this incident is taken over.

    The reasons of the block that stands are kept, and the request's is added. A block that lost a part is
    made whole, also with `only_adopt`: `kubectl uncordon` leaves taint and marker, and a node that is about
    to be validated must take no pods. Where all is as it should be, nothing is written.

    Raises `ApplicationError` NODE_CHANGED for another machine, BLOCKED_BY_OTHER for another incident's (or an
    unreadable) marker, HELD for a block that a person holds by an earlier run, NOT_BLOCKED where there is
    nothing to adopt, OPTED_OUT for a node whose owners want nothing done to it, NOT_VERIFIED when the block
    does not stand after all attempts; `KubernetesError`.
    """
    path = f"{NODES}/{request.identity.name}"
    ours: BlockMarker | None = None
    adopted, last = False, ""
    for attempt in range(ATTEMPTS):
        await asyncio.sleep(PAUSE * attempt)
        node = await kubernetes.request("GET", path)
        require_same_machine(node, request.identity)
        standing = _adoptable(node, request)
        if standing is None and not request.take_opted_out and names.is_opted_out(labels_of(node)):
            raise errors.refusal(
                errors.OPTED_OUT,
                f"the owners of node {request.identity.name} want nothing done to it: its label "
                f"{names.OPT_OUT_LABEL} is true. Take the label off first: "
                f"kubectl label node {request.identity.name} {names.OPT_OUT_LABEL}-",
            )
        if attempt == 0:
            adopted = standing is not None
        # After a write of ours the cordon is ours, even if somebody has taken the marker away since.
        marker = marker_for(node, request, standing or ours)
        if stands(node, marker, request.rule):
            return BlockResult(marker=marker, adopted=adopted)
        if await _written(kubernetes, path, blocking_patch(node, marker, request.rule)) is None:
            last = CONFLICT
            continue
        ours = marker
        if stands(await kubernetes.request("GET", path), marker, request.rule):
            return BlockResult(marker=marker, adopted=adopted)
        last = UNDONE
    raise _not_verified(f"the block of node {request.identity.name}", last)


async def unblock(kubernetes: Kubernetes, request: UnblockNode) -> UnblockResult:
    """Remove what is ours from the node and read back. A Node that is gone, or another machine, has nothing.

    The marker of another incident or run, or one that cannot be read, leaves everything as it is. Without a
    marker nobody knows whose the cordon is, so it stays; so does one that comes after our last write.

    Raises `ApplicationError` NOT_VERIFIED when ours is still there after all attempts, for good where
    admission keeps the cordon and not the marker, since a next attempt could not know the cordon for ours;
    `KubernetesError`.
    """
    path = f"{NODES}/{request.identity.name}"
    removed: tuple[str, ...] = ()
    kept_by_admission: BlockMarker | None = None
    last = ""
    for attempt in range(ATTEMPTS):
        await asyncio.sleep(PAUSE * attempt)
        node = await kubernetes.find(path)
        if node is None or node["metadata"]["uid"] != request.identity.uid:
            return UnblockResult(removed=removed, kept=(), node_gone=True)
        try:
            marker = marker_of(node)
        except ValueError:
            return UnblockResult(removed=removed, kept=("a block marker that cannot be read, and its block",))
        if marker is not None and (marker.incident, marker.run_id) != (request.incident, request.run_id):
            kept = f"the block of incident {marker.incident}, run {marker.run_id}"
            return UnblockResult(removed=removed, kept=(kept,))
        patch, going = unblocking_patch(node, marker or kept_by_admission, request.incident)
        if not going:
            return UnblockResult(removed=removed, kept=kept_on(node))
        answer = await _written(kubernetes, path, patch)
        if answer is None:
            last = CONFLICT
            continue
        removed, last = tuple(dict.fromkeys((*removed, *going))), UNDONE
        # The answer is what was stored by this very write: nobody can have cordoned in between.
        undone = "cordon" in going and is_unschedulable(answer)
        kept_by_admission = (marker or kept_by_admission) if undone else None
    what = f"the removal of our block from node {request.identity.name}"
    raise _not_verified(what, last, for_good=kept_by_admission is not None)


def _adoptable(node: Object, request: BlockNode) -> BlockMarker | None:
    """The marker of this incident that may be taken over, or None where there is none; others are refused."""
    name = node["metadata"]["name"]
    try:
        marker = marker_of(node)
    except ValueError as error:
        raise errors.refusal(
            errors.NOT_BLOCKED if request.only_adopt else errors.BLOCKED_BY_OTHER,
            f"node {name} has an annotation {names.BLOCK_ANNOTATION} that cannot be read; "
            "find out whose block it is and remove the annotation",
        ) from error
    if marker is None:
        if request.only_adopt:
            raise errors.refusal(
                errors.NOT_BLOCKED,
                f"node {name} has no block of ours (no annotation {names.BLOCK_ANNOTATION}): "
                "there is nothing to give back",
            )
        return None
    since = f"since {marker.since.isoformat()}: {'; '.join(marker.reasons)}"
    if marker.incident != request.incident:
        raise errors.refusal(
            errors.NOT_BLOCKED if request.only_adopt else errors.BLOCKED_BY_OTHER,
            f"node {name} is blocked by incident {marker.incident} {since}. "
            "End that incident first, or unblock the node if it has ended",
        )
    if is_held_from(marker, request.run_id) and not request.take_held:
        raise errors.refusal(
            errors.HELD,
            f"node {name} is held for a person by run {marker.run_id} of {marker.incident} {since}. "
            "The runbook `ReturnNode` validates the node and gives it back",
        )
    return marker


async def _written(kubernetes: Kubernetes, path: str, patch: dict[str, Any]) -> Object | None:
    """The Node as the API server says to have stored it; None when somebody else wrote first."""
    try:
        return await kubernetes.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
    except KubernetesError as error:
        if error.status == 409:
            return None
        raise


def _not_verified(what: str, last: str, *, for_good: bool = False) -> ApplicationError:
    return ApplicationError(
        f"{what} does not stand after {ATTEMPTS} attempts, the last time because {last}. "
        "Look for a controller or an admission webhook that writes to this node: "
        "`kubectl get node NAME -o yaml --show-managed-fields` names the writers",
        type=errors.NOT_VERIFIED,
        non_retryable=for_good,
    )
