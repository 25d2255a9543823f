"""Replacement of a node by Karpenter: its NodeClaim is deleted, and Karpenter terminates the machine.

Karpenter drains the node once more, by its own rules, before the machine goes: budgets of pods and
`karpenter.sh/do-not-disrupt` on a pod hold it, for ever where the NodeClaim has no terminationGracePeriod.
The same annotation on the Node does not: it is for disruptions that Karpenter chooses itself. Finalizers are
Karpenter's and are never taken away here.
"""

import asyncio
from datetime import UTC, datetime

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.heartbeat import Beat
from gpu_runbooks.activities.karpenter.budgets import is_initialized, obstacle, usage_of
from gpu_runbooks.activities.karpenter.capacity import failed_launch
from gpu_runbooks.activities.karpenter.node_claim_end import proof_of_end
from gpu_runbooks.activities.karpenter.objects import (
    NODE_CLAIMS,
    NODE_POOLS,
    condition_of,
    is_going,
    is_static,
    pool_of,
)
from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.kubernetes.waiting import seconds_until
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import (
    AwaitNodeClaim,
    DeleteNodeClaim,
    NodeClaimDeleted,
    NodeClaimGone,
)
from gpu_runbooks.activities.names import NODE_POOL_LABEL
from gpu_runbooks.activities.nodes.node import NODES, observe, require_same_machine

INTERVAL = 5.0
"""Seconds between two looks at Karpenter's budgets: schedules open and close them, and no watch tells."""


async def delete_node_claim(kubernetes: Kubernetes, request: DeleteNodeClaim, beat: Beat) -> NodeClaimDeleted:
    """Delete the NodeClaim of a node, once the disruption budgets of its NodePool permit it.

    A NodeClaim that is going already is success, whoever deleted it; so is one that is gone with its Node,
    which is told by an empty name.

    Raises NOT_SENT where the look at the node is too old, NO_OWNER for a node without a NodeClaim, BAD_INPUT
    where NodeClaims and Node contradict each other, NODE_CHANGED for another machine, NOT_BLOCKED where our
    block does not stand, NO_CAPACITY where nothing would come in its place, NOT_SENT also where the budgets
    do not permit it by the deadline, and where the node booted since the look; `KubernetesError`.
    """
    if datetime.now(UTC) > request.not_after:
        raise errors.refusal(
            errors.NOT_SENT,
            f"nothing was deleted: the look at the node held until {request.not_after:%H:%M:%S} UTC",
        )
    while True:
        node = await kubernetes.find(f"{NODES}/{request.identity.name}")
        claim = await claim_of(kubernetes, request.identity, node)
        if claim is None:
            return _gone_already()
        pool = await _pool(kubernetes, claim)
        if is_going(claim):
            return _deleted(claim, pool)
        _require_block(node, request)
        held_by = await _held_by(kubernetes, claim, pool, node)
        if not held_by:
            return await _delete(kubernetes, claim, pool)
        left = seconds_until(request.deadline)
        if left <= 0:
            raise errors.refusal(
                errors.NOT_SENT,
                f"Karpenter's own limit forbids to replace node {request.identity.name}: {held_by}. Nothing "
                "was deleted. Wait until it permits it, or change the budget, and ask again",
            )
        beat(held_by)
        await asyncio.sleep(min(INTERVAL, left))


async def await_node_claim(kubernetes: Kubernetes, request: AwaitNodeClaim) -> NodeClaimGone:
    """Wait until the NodeClaim and its Node are gone, and tell whether Karpenter launches another.

    Raises `KubernetesError` where they may not be read.
    """
    return await proof_of_end(kubernetes, request)


async def claim_of(kubernetes: Kubernetes, identity: NodeIdentity, node: Object | None) -> Object | None:
    """The NodeClaim of a machine; None when it is gone and its Node too.

    Found by the provider id, which no two machines share. Its Node has to agree: the name in the NodeClaim,
    the UID that the incident pinned, and the owner that the Node names.
    """
    if not identity.provider_id:
        raise errors.refusal(
            errors.NO_OWNER, f"node {identity.name} has no provider id, so no NodeClaim can be its own"
        )
    if node is not None:
        require_same_machine(node, identity)
    claims = [
        claim
        for claim in await kubernetes.items(NODE_CLAIMS)
        if (claim.get("status") or {}).get("providerID") == identity.provider_id
    ]
    if not claims and node is None:
        return None
    if not claims:
        raise errors.refusal(
            errors.NO_OWNER,
            f"no NodeClaim has the provider id {identity.provider_id} of node {identity.name}, whatever the "
            "labels of the node say: Karpenter would not replace it. Find out who launched it",
        )
    if len(claims) > 1:
        names = ", ".join(sorted(claim["metadata"]["name"] for claim in claims))
        raise errors.refusal(
            errors.BAD_INPUT,
            f"NodeClaims {names} all have the provider id {identity.provider_id} of node {identity.name}: "
            "Karpenter itself takes neither for the owner. Delete the wrong one",
        )
    (claim,) = claims
    _require_agreement(claim, node, identity)
    return claim


def _require_agreement(claim: Object, node: Object | None, identity: NodeIdentity) -> None:
    name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
    named = (claim.get("status") or {}).get("nodeName") or ""
    if named != identity.name:
        raise errors.refusal(
            errors.BAD_INPUT,
            f"NodeClaim {name} has the provider id of node {identity.name}, but names "
            f"{f'node {named}' if named else 'no node'}: it is left alone. Compare the two",
        )
    owners = [
        owner
        for owner in (node or {"metadata": {}})["metadata"].get("ownerReferences") or ()
        if owner.get("kind") == "NodeClaim"
    ]
    if owners and uid not in {owner.get("uid") for owner in owners}:
        raise errors.refusal(
            errors.BAD_INPUT,
            f"node {identity.name} belongs to NodeClaim {owners[0].get('name')} by its ownerReferences, but "
            f"NodeClaim {name} has its provider id: both are left alone. Compare the three",
        )


def _require_block(node: Object | None, request: DeleteNodeClaim) -> None:
    """The look that permits the act still holds. A Node that is gone has no pods: its NodeClaim may go."""
    if node is None:
        return
    seen = observe(node, request.incident, request.run_id)
    if seen.identity is not None and seen.identity.boot_id != request.identity.boot_id:
        raise errors.refusal(
            errors.NOT_SENT, f"nothing was deleted: node {request.identity.name} booted since the look at it"
        )
    if not seen.blocked:
        raise errors.refusal(
            errors.NOT_BLOCKED,
            f"the block of {request.incident} does not stand on node {request.identity.name} any more: "
            "nothing was deleted. Find out who took it away",
        )


async def _pool(kubernetes: Kubernetes, claim: Object) -> Object | None:
    name = pool_of(claim)
    return await kubernetes.find(f"{NODE_POOLS}/{name}") if name else None


async def _held_by(kubernetes: Kubernetes, claim: Object, pool: Object | None, node: Object | None) -> str:
    """The disruption budget that does not permit it now, in words.

    Raises NO_CAPACITY. A NodeClaim of no NodePool has neither budget nor successor.
    """
    name = pool_of(claim)
    if not name:
        return ""
    now = datetime.now(UTC)
    selector = f"{NODE_POOL_LABEL}={name}"
    claims = await kubernetes.items(NODE_CLAIMS, label_selector=selector)
    cause = _unable(pool, name) or await failed_launch(kubernetes, name, claims, now)
    if cause or pool is None:
        raise errors.refusal(
            errors.NO_CAPACITY,
            f"nothing was deleted, since nothing would come in the place of NodeClaim "
            f"{claim['metadata']['name']}: {cause}",
        )
    if node is None or not is_initialized(node):
        return ""  # no work to protect: Karpenter does not count it either
    nodes = await kubernetes.items(NODES, label_selector=selector)
    return obstacle(pool, usage_of(claims, nodes, claim["metadata"]["uid"]), now)


def _unable(pool: Object | None, name: str) -> str:
    """Why the NodePool launches nothing at all."""
    if pool is None or is_going(pool):
        return f"NodePool {name} is {'being deleted' if pool else 'gone'}"
    ready = condition_of(pool, "Ready")
    if ready.get("status") == "False":
        return f"NodePool {name} is not Ready: {ready.get('message') or ready.get('reason')}"
    return ""


async def _delete(kubernetes: Kubernetes, claim: Object, pool: Object | None) -> NodeClaimDeleted:
    """Delete exactly this NodeClaim. One that went meanwhile is success."""
    metadata = claim["metadata"]
    body = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": metadata["uid"]},
    }
    try:
        await kubernetes.request("DELETE", f"{NODE_CLAIMS}/{metadata['name']}", body=body)
    except KubernetesError as error:
        if error.status not in {404, 409}:  # 409: another NodeClaim has this name by now
            raise
    return _deleted(claim, pool)


def _deleted(claim: Object, pool: Object | None) -> NodeClaimDeleted:
    deletion = claim["metadata"].get("deletionTimestamp")
    return NodeClaimDeleted(
        node_claim=claim["metadata"]["name"],
        uid=claim["metadata"]["uid"],
        node_pool=pool_of(claim),
        static=pool is not None and is_static(pool),
        requested_at=datetime.fromisoformat(deletion) if deletion else datetime.now(UTC),
    )


def _gone_already() -> NodeClaimDeleted:
    return NodeClaimDeleted(node_claim="", uid="", node_pool="", static=False, requested_at=datetime.now(UTC))
