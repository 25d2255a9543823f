"""The proof that a deleted NodeClaim, its machine and its Node are gone, and what comes in their place.

Karpenter takes its finalizer off a NodeClaim when its cloud no longer has the machine, so a NodeClaim that is
gone means a machine that is terminated. A static NodePool launches a successor as soon as the old one goes.
A dynamic one launches for pods that find no place: after a drain there may be none, and that is a good end.
"""

from datetime import UTC, datetime, timedelta

from gpu_runbooks.activities.karpenter.objects import (
    INITIALIZED_LABEL,
    NODE_CLAIMS,
    NODE_POOLS,
    condition_of,
    is_going,
    labels_of,
)
from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.kubernetes.waiting import wait_for
from gpu_runbooks.activities.model.repair import AwaitNodeClaim, NodeClaimGone
from gpu_runbooks.activities.names import NODE_POOL_LABEL
from gpu_runbooks.activities.nodes.node import NODES

PODS = "/api/v1/pods"

CLOCK_SKEW = timedelta(seconds=5)
"""Between our clock and the API server's, which also counts whole seconds only."""

DECIDES_WITHIN = timedelta(seconds=20)
"""Karpenter gathers pods for up to 10 s (its `batch-max-duration`) before it launches for them."""

SHOWN = 3
"""Pods that a message names."""

WAITS = {
    "Drained": "Karpenter still drains the node",
    "VolumesDetached": "Karpenter waits until the volumes are detached",
}
"""By the NodeClaim's condition that is not True yet, in the order in which Karpenter goes."""


async def proof_of_end(kubernetes: Kubernetes, request: AwaitNodeClaim) -> NodeClaimGone:
    """Wait until NodeClaim and Node are gone. By the deadline: what they wait for.

    Raises `KubernetesError` when they may not be read.
    """
    last: Object | None = None

    def claim_is_gone(claims: dict[str, Object]) -> bool | None:
        nonlocal last
        last = claims.get(request.uid)
        return True if last is None else None

    if request.node_claim and not await wait_for(
        kubernetes,
        NODE_CLAIMS,
        claim_is_gone,
        request.deadline,
        field_selector=f"metadata.name={request.node_claim}",
    ):
        return NodeClaimGone(gone=False, message=await _why_not(kubernetes, request, last))
    uid = request.identity.uid
    if not await wait_for(
        kubernetes,
        NODES,
        lambda nodes: True if uid not in nodes else None,
        request.deadline,
        field_selector=f"metadata.name={request.identity.name}",
    ):
        message = f"NodeClaim {request.node_claim} is gone, but Node {request.identity.name} is still there"
        return NodeClaimGone(gone=False, message=message)
    successor, message = await _successor(kubernetes, request)
    return NodeClaimGone(gone=True, successor=successor, message=message)


async def _why_not(kubernetes: Kubernetes, request: AwaitNodeClaim, claim: Object | None) -> str:
    """What Karpenter waits for with a NodeClaim that is still there."""
    if claim is None:
        return f"nobody knows whether NodeClaim {request.node_claim} is gone: the API server did not answer"
    head = f"NodeClaim {request.node_claim} is still there"
    if not is_going(claim):
        return f"{head}, and nobody has deleted it"
    unmet = [kind for kind in WAITS if condition_of(claim, kind).get("status") not in {None, "True"}]
    if not unmet:
        return f"{head}: the cloud has not terminated its machine yet"
    head = f"{head}: {WAITS[unmet[0]]}"
    if unmet[0] != "Drained":
        return head
    grace = (claim.get("spec") or {}).get("terminationGracePeriod")
    bound = (
        f"by force {grace} after the deletion"
        if grace
        else "without end, since the NodeClaim has no terminationGracePeriod: see to those pods or their "
        "budgets, and leave the finalizers alone"
    )
    return f"{head}{await _pods_left(kubernetes, request.identity.name)}, {bound}"


async def _pods_left(kubernetes: Kubernetes, node: str) -> str:
    pods = await kubernetes.items(PODS, field_selector=f"spec.nodeName={node}")
    names = sorted(
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for pod in pods
        if not any(owner.get("kind") == "DaemonSet" for owner in pod["metadata"].get("ownerReferences") or ())
    )
    if not names:
        return ""
    return f" ({len(names)} pods: {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''})"


async def _successor(kubernetes: Kubernetes, request: AwaitNodeClaim) -> tuple[bool, str]:
    """Whether Karpenter launches another node, and the reason in words."""
    if not request.node_pool:
        return False, "the NodeClaim belonged to no NodePool: nothing comes in its place"
    pool = await kubernetes.find(f"{NODE_POOLS}/{request.node_pool}")
    if pool is None or is_going(pool):
        return False, f"NodePool {request.node_pool} is gone: nothing comes in the place of this node"
    selector = f"{NODE_POOL_LABEL}={request.node_pool}"
    claims = {
        claim["metadata"]["uid"]: claim
        for claim in await kubernetes.items(NODE_CLAIMS, label_selector=selector)
    }
    if launched := _launched_since(claims, request):
        return True, f"Karpenter launches NodeClaim {launched} in its place"
    replicas = (pool.get("spec") or {}).get("replicas")
    if replicas is not None:
        standing = sum(not is_going(claim) for claim in claims.values())
        if standing < replicas:
            return True, f"static NodePool {request.node_pool} has {standing} of {replicas} nodes"
        if request.requested_at is None:  # nobody knows which of them came for it
            return True, f"static NodePool {request.node_pool} has its {replicas} nodes again"
        return False, f"static NodePool {request.node_pool} has its {replicas} nodes without this one"
    waiting = [pod for pod in await _unschedulable(kubernetes) if fits(pod, pool)]
    if not waiting:
        return False, f"no pod waits for a node of NodePool {request.node_pool}"
    name = await wait_for(
        kubernetes,
        NODE_CLAIMS,
        lambda found: _launched_since(found, request) or None,
        datetime.now(UTC) + DECIDES_WITHIN,
        label_selector=selector,
    )
    if name:
        return True, f"Karpenter launches NodeClaim {name} for pods that wait"
    pod = waiting[0]["metadata"]
    return False, (
        f"{len(waiting)} pods such as {pod['namespace']}/{pod['name']} wait, and Karpenter launched nothing "
        f"in NodePool {request.node_pool} for them; `kubectl describe` of the pod says why"
    )


def _launched_since(claims: dict[str, Object], request: AwaitNodeClaim) -> str:
    """Name of a NodeClaim that is on its way, or came since the deletion; empty where there is none."""
    for claim in claims.values():
        if is_going(claim) or claim["metadata"]["uid"] == request.uid:
            continue
        created = datetime.fromisoformat(claim["metadata"]["creationTimestamp"])
        since = request.requested_at
        if (since is not None and created >= since - CLOCK_SKEW) or (
            condition_of(claim, "Initialized").get("status") != "True"
        ):
            return str(claim["metadata"]["name"])
    return ""


async def _unschedulable(kubernetes: Kubernetes) -> list[Object]:
    pods = await kubernetes.items(PODS, field_selector="spec.nodeName=,status.phase=Pending")
    return [
        pod
        for pod in pods
        if not is_going(pod) and condition_of(pod, "PodScheduled").get("reason") == "Unschedulable"
    ]


def fits(pod: Object, pool: Object) -> bool:
    """Whether a pod may ask for a node of the NodePool: its tolerations and its nodeSelector permit it.

    Karpenter weighs more than that (affinity, size, other NodePools), so this is only a reason to wait for
    its decision.
    """
    template = (pool.get("spec") or {}).get("template") or {}
    spec, labels = template.get("spec") or {}, labels_of({"metadata": template.get("metadata") or {}})
    wanted = (pod.get("spec") or {}).get("nodeSelector") or {}
    known = labels | {NODE_POOL_LABEL: pool["metadata"]["name"], INITIALIZED_LABEL: "true"}
    allowed = {
        each.get("key"): each.get("values") or ()
        for each in objects_in(spec.get("requirements"))
        if each.get("operator") == "In"
    }
    return all(
        value == known[key] if key in known else key not in allowed or value in allowed[key]
        for key, value in wanted.items()
    ) and all(
        _is_tolerated(taint, objects_in((pod.get("spec") or {}).get("tolerations")))
        for taint in objects_in(spec.get("taints"))
        if taint.get("effect") in {"NoSchedule", "NoExecute"}
    )


def _is_tolerated(taint: Object, tolerations: list[Object]) -> bool:
    return any(
        toleration.get("effect") in {None, "", taint.get("effect")}
        and (
            (toleration.get("operator") == "Exists" and toleration.get("key") in {None, "", taint.get("key")})
            or (
                toleration.get("operator") in {None, "", "Equal"}
                and toleration.get("key") == taint.get("key")
                and toleration.get("value", "") == taint.get("value", "")
            )
        )
        for toleration in tolerations
    )
