"""What a pool shows of itself at one moment: how many nodes it has, and which of them do no work."""

from collections.abc import Iterable

from gpu_runbooks.activities import names
from gpu_runbooks.activities.karpenter.objects import DISRUPTED_TAINT, is_going
from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from gpu_runbooks.activities.kubernetes.listing import Listing
from gpu_runbooks.activities.model.packing import written_names
from gpu_runbooks.activities.model.slot import ObservePool, PoolSeen, UnavailableNode
from gpu_runbooks.activities.nodes.node import (
    NODES,
    annotations_of,
    is_our_taint,
    is_unschedulable,
    marker_of,
    readiness,
    taints_of,
)

PAGE = 250
"""Nodes in one answer: a Node of a GPU machine has 5 to 20 KB."""

LARGEST = 12 * 1024
"""Bytes of the nodes in an answer: a payload holds 16 KiB."""

LONGEST_ID = 300
"""Characters of an id in a marker: a longer one is none of ours."""


async def observe_pool(kubernetes: Kubernetes, request: ObservePool) -> PoolSeen:
    """List the nodes of a pool, from the API server's storage and not from its cache.

    Raises `KubernetesError` where it has no answer.
    """
    selector = ",".join(f"{key}={value}" for key, value in sorted(request.selector.items()))
    listing = await kubernetes.scan(NODES, _facts, label_selector=selector, page_size=PAGE)
    return pool_seen(listing, request.asked)


def pool_seen(listing: Listing[tuple[str, UnavailableNode | None]], asked: Iterable[str]) -> PoolSeen:
    """The answer, of a size that a payload holds. A Node that cannot be read counts as unavailable. Pure."""
    there = dict(listing.items)
    known = frozenset(asked)
    unavailable = [node for name, node in sorted(there.items()) if node is not None and name not in known]
    absent = tuple(sorted(known - there.keys()))
    room, listed = LARGEST - len(str(written_names(absent))), 0
    for node in unavailable:
        room -= len(node.model_dump_json()) + 1
        if room < 0:
            break
        listed += 1
    rest = unavailable[listed:]
    return PoolSeen(
        nodes=len(there) + listing.unreadable,
        unavailable=tuple(unavailable[:listed]),
        unlisted=len(rest) + listing.unreadable,
        unlisted_not_ready=sum(not node.ready for node in rest) + listing.unreadable,
        absent=absent,
    )


def _facts(node: Object) -> tuple[str, UnavailableNode | None]:
    """Name of a node, and what keeps work off it; None where nothing does."""
    name, taints = node["metadata"]["name"], taints_of(node)
    ready = readiness(node) == "True"
    leaves = is_going(node) or any(taint.get("key") == DISRUPTED_TAINT for taint in taints)
    cordoned = is_unschedulable(node) or leaves
    marked = names.BLOCK_ANNOTATION in annotations_of(node)
    ours = marked or any(is_our_taint(taint) for taint in taints)
    if ready and not cordoned and not ours:
        return name, None
    try:
        marker = marker_of(node)
    except ValueError:
        marker = None
    successor = marker is not None and marker.incident.rpartition("/")[2] != name
    return name, UnavailableNode(
        name=name,
        ready=ready,
        cordoned=cordoned,
        ours=ours,
        incident=marker.incident[:LONGEST_ID] if marker is not None and successor else "",
        run_id=marker.run_id[:LONGEST_ID] if marker is not None and successor else "",
    )
