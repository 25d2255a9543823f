"""The block of a node: our taint, our cordon, and the marker that says what was there before.

Taints are one list to a merge patch, so every write names the resource version that it was made from: whoever
wrote in between keeps what they wrote, and we read again.
"""

import asyncio
from typing import Any

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.kubernetes import MERGE_PATCH, Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.model.node import BlockMarker, BlockNode, BlockResult, UnblockNode, UnblockResult
from gpu_runbooks.activities.nodes import (
    NODES,
    annotations_of,
    is_our_taint,
    is_unschedulable,
    marker_of,
    observe,
    require_same_machine,
    taints_of,
)

ATTEMPTS = 20
"""Writes against concurrent writers before the activity fails, and is retried as a whole."""

PAUSE = 0.05
"""Seconds after the first lost write; each further one adds as much."""

CORDON_TAINT = "node.kubernetes.io/unschedulable"
"""The node controller's shadow of `spec.unschedulable`: it comes and goes with the cordon."""


async def block(kubernetes: Kubernetes, request: BlockNode) -> BlockResult:
    """Block the node for the incident and read the block back. Our own block is adopted.

    Raises `ApplicationError` NODE_CHANGED for another machine, BLOCKED_BY_OTHER for another incident's (or an
    unreadable) marker, NOT_VERIFIED when the block does not stand after all attempts; `KubernetesError`.
    """
    path = f"{NODES}/{request.identity.name}"
    for attempt in range(1, ATTEMPTS + 1):
        node = await kubernetes.request("GET", path)
        require_same_machine(node, request.identity)
        standing = _marker_for(node, request.incident)
        marker = marker_for(node, request, standing)
        if marker == standing and observe(node, request.incident).blocked:
            return BlockResult(marker=marker, adopted=True)
        if not await _written(kubernetes, path, blocking_patch(node, marker, request.rule)):
            await asyncio.sleep(PAUSE * attempt)
            continue
        node = await kubernetes.request("GET", path)
        if observe(node, request.incident).blocked and marker_of(node) == marker:
            return BlockResult(marker=marker, adopted=standing is not None)
    raise _not_verified(f"the block of node {request.identity.name}")


async def unblock(kubernetes: Kubernetes, request: UnblockNode) -> UnblockResult:
    """Remove what is ours from the node and read back. A Node that is gone, or another machine, has nothing.

    Another incident's marker, or one that cannot be read, leaves everything as it is.

    Raises `ApplicationError` NOT_VERIFIED when ours is still there after all attempts; `KubernetesError`.
    """
    path = f"{NODES}/{request.identity.name}"
    removed: tuple[str, ...] = ()
    for attempt in range(1, ATTEMPTS + 1):
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
        patch, going = unblocking_patch(node, marker, request.incident)
        if not going:
            return UnblockResult(removed=removed, kept=_foreign(node))
        if await _written(kubernetes, path, patch):
            removed = tuple(dict.fromkeys((*removed, *going)))
        else:
            await asyncio.sleep(PAUSE * attempt)
    raise _not_verified(f"the removal of our block from node {request.identity.name}")


def marker_for(node: Object, request: BlockNode, standing: BlockMarker | None) -> BlockMarker:
    """The marker that should be on the node, given our own marker that stands there already.

    A cordon that stood before our first write stays somebody else's, for as long as it stands.
    """
    return BlockMarker(
        incident=request.incident,
        run_id=request.run_id,
        reasons=standing.reasons if standing else (request.reason,),
        since=standing.since if standing else request.since,
        was_unschedulable=is_unschedulable(node) and (standing is None or standing.was_unschedulable),
    )


def blocking_patch(node: Object, marker: BlockMarker, rule: str) -> dict[str, Any]:
    """Merge patch that blocks exactly this version of the node and keeps every foreign taint."""
    return {
        "metadata": {
            "resourceVersion": node["metadata"]["resourceVersion"],
            "annotations": {names.BLOCK_ANNOTATION: marker.model_dump_json()},
        },
        "spec": {
            "unschedulable": True,
            "taints": [
                *(taint for taint in taints_of(node) if not is_our_taint(taint)),
                {"key": names.BLOCK_TAINT, "value": rule, "effect": "NoSchedule"},
            ],
        },
    }


def unblocking_patch(
    node: Object, marker: BlockMarker | None, incident: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Merge patch that takes away what is ours from this version of the node, and what that is in words."""
    annotations: dict[str, None] = {}
    spec: dict[str, Any] = {}
    going = []
    taints = taints_of(node)
    if any(is_our_taint(taint) for taint in taints):
        spec["taints"] = [taint for taint in taints if not is_our_taint(taint)] or None
        going.append(f"taint {names.BLOCK_TAINT}")
    if marker is not None:
        annotations[names.BLOCK_ANNOTATION] = None
        going.append(f"annotation {names.BLOCK_ANNOTATION}")
        if not marker.was_unschedulable and is_unschedulable(node):
            spec["unschedulable"] = None
            going.append("cordon")
    if annotations_of(node).get(names.REPLACES_ANNOTATION) == incident:
        annotations[names.REPLACES_ANNOTATION] = None
        going.append(f"annotation {names.REPLACES_ANNOTATION}")
    version = node["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version, "annotations": annotations}, "spec": spec}, tuple(going)


def _marker_for(node: Object, incident: str) -> BlockMarker | None:
    """Our own marker on the node, or None; another's is refused."""
    name = node["metadata"]["name"]
    try:
        marker = marker_of(node)
    except ValueError as error:
        raise errors.refusal(
            errors.BLOCKED_BY_OTHER,
            f"node {name} has an annotation {names.BLOCK_ANNOTATION} that cannot be read; "
            "find out whose block it is and remove the annotation",
        ) from error
    if marker is not None and marker.incident != incident:
        raise errors.refusal(
            errors.BLOCKED_BY_OTHER,
            f"node {name} is blocked by incident {marker.incident} since {marker.since.isoformat()}: "
            f"{'; '.join(marker.reasons)}. End that incident first, or unblock the node if it has ended",
        )
    return marker


def _foreign(node: Object) -> tuple[str, ...]:
    taints = [taint for taint in taints_of(node) if taint.get("key") != CORDON_TAINT]
    kept = [f"taint {taint.get('key')}:{taint.get('effect')}" for taint in taints]
    return (*kept, "cordon") if is_unschedulable(node) else tuple(kept)


async def _written(kubernetes: Kubernetes, path: str, patch: dict[str, Any]) -> bool:
    """True after the write; False when somebody else wrote first."""
    try:
        await kubernetes.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
    except KubernetesError as error:
        if error.status == 409:
            return False
        raise
    return True


def _not_verified(what: str) -> ApplicationError:
    return ApplicationError(
        f"{what} does not stand after {ATTEMPTS} attempts: other writers, or a webhook that changes it",
        type=errors.NOT_VERIFIED,
    )
