"""The Node of a replacement instance: claimed by compare-and-swap, blocked in the same write.

Two incidents of one Auto Scaling group look at the same new Nodes. Whoever writes first has the Node; the
other's write names an old resource version, is refused, and it looks on.
"""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.kubernetes.waiting import seconds_until, wait_for
from gpu_runbooks.activities.model.node import BlockNode, NodeIdentity
from gpu_runbooks.activities.model.repair import ClaimReplacement, ReplacementProof
from gpu_runbooks.activities.nodes.block_state import blocking_patch, marker_for
from gpu_runbooks.activities.nodes.node import (
    NODES,
    allocatable,
    annotations_of,
    identity_of,
    is_held_from,
    marker_of,
    observe,
    readiness,
)

CLOCK_SKEW = timedelta(seconds=5)
"""Between Temporal's clock and the API server's, which also counts whole seconds only."""

TAKEN: Literal["taken"] = "taken"

CLAIM_AGAIN = 1.0
"""Seconds after a claim that did not stand, since somebody else writes to the Node."""


async def claim_replacement(kubernetes: Kubernetes, request: ClaimReplacement) -> ReplacementProof:
    """Claim and block the Node of a newly launched instance, and wait until it is Ready with GPUs.

    A claim that others undo again and again is given up at the deadline.

    Raises `KubernetesError` when Nodes may not be read or patched.
    """
    selector = ",".join(f"{key}={value}" for key, value in sorted(request.pool_selector.items()))
    while True:
        node = await _appeared(kubernetes, selector, request)
        if node == TAKEN and seconds_until(request.deadline) > 0:
            message = "other incidents took the machines that had been launched; more may have come since"
            return ReplacementProof(proven=False, message=message, taken=True)
        if node is None or node == TAKEN:
            return ReplacementProof(proven=False, message="no new Node of the pool came by the deadline")
        if not is_claimed(node, request) and not await _claimed(kubernetes, node, request):
            left = seconds_until(request.deadline)
            if left <= 0:
                return ReplacementProof(proven=False, message=_contested(node["metadata"]["name"]))
            await asyncio.sleep(min(CLAIM_AGAIN, left))
            continue
        proof = await _ready(kubernetes, identity_of(node), request.deadline)
        if proof is not None:
            return proof


async def _appeared(
    kubernetes: Kubernetes, selector: str, request: ClaimReplacement
) -> Object | Literal["taken"] | None:
    """The Node to claim; `taken` where others took one and none came within the patience; else None."""

    def decide(nodes: dict[str, Object]) -> tuple[Object | None] | None:
        node = choose(nodes, request)
        return (node,) if node is not None or is_robbed(nodes.values(), request) else None

    found = await wait_for(kubernetes, NODES, decide, request.deadline, label_selector=selector)
    if found is None or found[0] is not None:
        return found[0] if found else None
    soon = min(request.deadline, datetime.now(UTC) + request.patience)
    node = await wait_for(
        kubernetes, NODES, lambda nodes: choose(nodes, request), soon, label_selector=selector
    )
    return node or TAKEN


def _contested(name: str) -> str:
    return (
        f"the claim of node {name} did not stand by the deadline. Look for a controller or an admission "
        f"webhook that writes to it: `kubectl get node {name} -o yaml --show-managed-fields` names them"
    )


def choose(nodes: dict[str, Object], request: ClaimReplacement) -> Object | None:
    """The Node that this incident has claimed already, else the oldest that it may claim."""
    fit = [node for node in nodes.values() if is_candidate(node, request)]
    return min(
        fit,
        key=lambda node: (
            not is_claimed(node, request),
            node["metadata"]["creationTimestamp"],
            node["metadata"]["name"],
        ),
        default=None,
    )


def is_robbed(nodes: Iterable[Object], request: ClaimReplacement) -> bool:
    """Whether another incident took a machine that was in the list, so that the list may lack ours.

    Two incidents of one group may each take the machine that was launched for the other, and only the later
    list names both.
    """
    return any(
        identity_of(node).instance_id in request.instances
        and _is_since(node, request)
        and _is_of_another(node, request)
        for node in nodes
    )


def _is_since(node: Object, request: ClaimReplacement) -> bool:
    created = datetime.fromisoformat(node["metadata"]["creationTimestamp"])
    return created >= request.launched_after - CLOCK_SKEW


def _is_of_another(node: Object, request: ClaimReplacement) -> bool:
    """Whether it is another incident's successor, or was somebody's and is back in service."""
    if names.REPLACED_ANNOTATION in annotations_of(node):
        return True
    return annotations_of(node).get(names.REPLACES_ANNOTATION) not in {None, request.incident}


def is_candidate(node: Object, request: ClaimReplacement) -> bool:
    """A Node of another machine, made since the launch, that is nobody else's and never was.

    One that was another incident's is back in service: it is no successor of a second machine. In the place
    of an EC2 instance comes an EC2 instance, of the same group where the group is known.
    """
    metadata, machine = node["metadata"], identity_of(node)
    if metadata.get("deletionTimestamp") or not _is_since(node, request):
        return False
    if not machine.provider_id or machine.provider_id == request.replaced.provider_id:
        return False
    if bool(machine.instance_id) != bool(request.replaced.instance_id):
        return False
    if request.instances and machine.instance_id not in request.instances:
        return False
    try:
        marker = marker_of(node)
    except ValueError:
        return False
    if marker is not None and (marker.incident != request.incident or is_held_from(marker, request.run_id)):
        return False
    return not _is_of_another(node, request)


def is_claimed(node: Object, request: ClaimReplacement) -> bool:
    """Claim and block of this run of the incident stand: only the run that is in the marker can unblock."""
    ours = annotations_of(node).get(names.REPLACES_ANNOTATION) == request.incident
    return ours and observe(node, request.incident, request.run_id).blocked


def claiming_patch(node: Object, request: ClaimReplacement, now: datetime) -> dict[str, Any]:
    """Merge patch that claims and blocks exactly this version of the Node, as any block is made."""
    wanted = BlockNode(
        identity=identity_of(node),
        incident=request.incident,
        run_id=request.run_id,
        rule=request.rule,
        reason=request.reason,
        since=now,
    )
    patch = blocking_patch(node, marker_for(node, wanted, marker_of(node)), request.rule)
    patch["metadata"]["annotations"][names.REPLACES_ANNOTATION] = request.incident
    return patch


async def _claimed(kubernetes: Kubernetes, node: Object, request: ClaimReplacement) -> bool:
    """True when the claim is written and stands; False when somebody else wrote first."""
    path = f"{NODES}/{node['metadata']['name']}"
    patch = claiming_patch(node, request, datetime.now(UTC))
    try:
        await kubernetes.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
        return is_claimed(await kubernetes.request("GET", path), request)
    except KubernetesError as error:
        if error.status in {404, 409}:
            return False
        raise


async def _ready(
    kubernetes: Kubernetes, machine: NodeIdentity, deadline: datetime
) -> ReplacementProof | None:
    """Proof once the claimed Node is Ready with a boot id and GPUs; None when the Node is gone."""
    last = ""

    def decide(nodes: dict[str, Object]) -> ReplacementProof | Literal["gone"] | None:
        nonlocal last
        node = nodes.get(machine.uid)
        if node is None:
            return "gone"
        now, gpus = identity_of(node), allocatable(node, names.GPU_RESOURCE)
        last = (
            f"Ready={readiness(node)}, boot id {now.boot_id or 'empty'}, "
            f"allocatable {names.GPU_RESOURCE} {'missing' if gpus is None else gpus}"
        )
        if readiness(node) != "True" or not now.boot_id or not gpus:
            return None
        return ReplacementProof(proven=True, identity=now, message=last)

    selector = f"metadata.name={machine.name}"
    seen: ReplacementProof | Literal["gone"] | None = await wait_for(
        kubernetes, NODES, decide, deadline, field_selector=selector
    )
    if isinstance(seen, str):
        return None
    message = f"node {machine.name} is claimed and did not become usable by the deadline: {last}"
    return seen or ReplacementProof(proven=False, message=message)
