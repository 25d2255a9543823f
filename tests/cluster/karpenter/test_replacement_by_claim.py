"""A node is replaced through its NodeClaim, by the real Karpenter."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

from cluster.conftest import block_request, soon, until
from cluster.karpenter.conftest import (
    await_request,
    delete_request,
    make_gpu_pod,
    node_of,
    runs,
)

from gpu_runbooks.activities.karpenter import node_claim_end
from gpu_runbooks.activities.karpenter.node_claims import await_node_claim, delete_node_claim
from gpu_runbooks.activities.karpenter.objects import NODE_CLAIMS
from gpu_runbooks.activities.kubernetes.client import KubernetesError
from gpu_runbooks.activities.model.repair import ClaimReplacement
from gpu_runbooks.activities.nodes.block import block
from gpu_runbooks.activities.nodes.node import NODES, identity_of, observe
from gpu_runbooks.activities.nodes.replacement import claim_replacement
from testbed.nodes import POOL_LABEL


def quiet(_progress):
    """Nobody listens to the heartbeats."""


async def test_a_static_pool_gets_a_successor_that_is_claimed(admin, kubernetes, karpenter, make_pool):
    pool = await make_pool(replicas=1)
    node = await node_of(admin, pool)
    old = identity_of(node)
    assert (old.instance_id, old.provider_id[:7]) == ("", "kwok://")
    assert observe(node, "any").karpenter
    await block(kubernetes, block_request(old))
    asked = datetime.now(UTC)
    deleted = await delete_node_claim(kubernetes, delete_request(old), quiet)
    assert (deleted.node_pool, deleted.static) == (pool, True)
    gone = await await_node_claim(kubernetes, await_request(old, deleted))
    assert (gone.gone, gone.successor) == (True, True)
    assert await admin.find(f"{NODES}/{old.name}") is None
    proof = await claim_replacement(
        kubernetes,
        ClaimReplacement(
            replaced=old,
            pool_selector={POOL_LABEL: pool},
            incident=f"node/test/{old.name}",
            run_id="run-1",
            rule="xid-79",
            reason="replacement, not validated yet",
            launched_after=asked,
            deadline=soon(),
        ),
    )
    assert proof.proven, proof.message
    assert proof.identity is not None
    assert proof.identity.provider_id not in {"", old.provider_id}
    assert {claim["metadata"]["uid"] for claim in await karpenter.claims(pool)}.isdisjoint({deleted.uid})


async def test_a_dynamic_pool_launches_for_pods_that_wait_and_only_for_them(
    admin, kubernetes, karpenter, make_pool, namespace, monkeypatch
):
    monkeypatch.setattr(node_claim_end, "DECIDES_WITHIN", timedelta(seconds=4))

    async def replaced(name, **waiting):
        """A replacement in a pool of its own: what it ends with, and the pool."""
        pool, old = await a_drained_node(admin, kubernetes, make_pool, namespace, name)
        deleted = await delete_node_claim(kubernetes, delete_request(old), quiet)
        assert not deleted.static
        if waiting:
            await make_gpu_pod(admin, namespace, f"{name}-again", pool, **waiting)
        return await await_node_claim(kubernetes, await_request(old, deleted)), pool, old

    nobody, somebody, too_big = await asyncio.gather(
        replaced("nobody"), replaced("somebody", gpus=8), replaced("too-big", gpus=64)
    )
    gone, pool, _ = nobody
    assert (gone.gone, gone.successor) == (True, False)
    assert f"no pod waits for a node of NodePool {pool}" in gone.message
    assert await karpenter.claims(pool) == []
    gone, _, old = somebody
    assert (gone.gone, gone.successor) == (True, True)
    assert (await runs(admin, namespace, "somebody-again"))["spec"]["nodeName"] != old.name
    gone, _, _ = too_big
    assert (gone.gone, gone.successor) == (True, False)
    assert f"{namespace}/too-big-again wait" in gone.message


async def test_what_goes_already_is_not_deleted_again(admin, kubernetes, faulty, proxy, make_pool, namespace):
    pool, old = await a_drained_node(admin, kubernetes, make_pool, namespace, "work")
    first = await delete_node_claim(kubernetes, delete_request(old), quiet)
    again = await delete_node_claim(faulty, delete_request(old), quiet)
    assert (again.node_claim, again.uid, again.node_pool) == (first.node_claim, first.uid, pool)
    assert (await await_node_claim(kubernetes, await_request(old, first))).gone
    # Once more, as after the death of a worker: there is nothing left to find.
    assert (await delete_node_claim(faulty, delete_request(old), quiet)).node_claim == ""
    assert proxy.count("DELETE") == 0


async def test_what_karpenters_own_drain_waits_for_is_told(admin, kubernetes, make_pool, namespace):
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "held"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "held"}}},
    }
    await admin.request("POST", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", body=budget)

    async def waits(name, settings, **metadata):
        pool = await make_pool(**settings)
        await make_gpu_pod(admin, namespace, name, pool, **metadata)
        await runs(admin, namespace, name)
        old = identity_of(await node_of(admin, pool))
        await block(kubernetes, block_request(old))
        deleted = await delete_node_claim(kubernetes, delete_request(old), quiet)
        gone = await await_node_claim(kubernetes, await_request(old, deleted, seconds=4))
        assert not gone.gone
        assert f"still drains the node (1 pods: {namespace}/{name})" in gone.message
        claim = await admin.request("GET", f"{NODE_CLAIMS}/{deleted.node_claim}")
        assert claim["metadata"]["finalizers"] == ["karpenter.sh/termination"]
        return gone.message

    for_ever, bounded = await asyncio.gather(
        waits("held", {}, labels={"app": "held"}),
        waits(
            "precious",
            {"termination_grace_period": "600s"},
            annotations={"karpenter.sh/do-not-disrupt": "true"},
        ),
    )
    assert "without end, since the NodeClaim has no terminationGracePeriod" in for_ever
    assert "by force" in bounded


async def a_drained_node(admin, kubernetes, make_pool, namespace, pod):
    """A dynamic pool with a node whose only pod is gone, blocked by its incident."""
    pool = await make_pool()
    await make_gpu_pod(admin, namespace, pod, pool)
    name = (await runs(admin, namespace, pod))["spec"]["nodeName"]
    old = identity_of(await node_of(admin, pool))
    assert old.name == name
    await block(kubernetes, block_request(old))
    with contextlib.suppress(KubernetesError):  # Karpenter's own consolidation may have been faster
        await admin.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{pod}")
    await until(admin, f"/api/v1/namespaces/{namespace}/pods", pod, lambda found: found is None)
    return pool, old
