"""Karpenter itself, with all that it removes nodes for switched on, leaves a node alone that is ours."""

import asyncio
from datetime import UTC, datetime, timedelta

from cluster.conftest import block_request, until
from cluster.karpenter.conftest import first_claim, make_gpu_pod, node_of, runs, show

from gpu_runbooks.activities.karpenter.objects import condition_of, is_going
from gpu_runbooks.activities.karpenter.other_repairers import imminent_repair
from gpu_runbooks.activities.nodes.block import block
from gpu_runbooks.activities.nodes.node import NODES, identity_of
from testbed.karpenter import UNHEALTHY


def an_hour_ago():
    return datetime.now(UTC) - timedelta(hours=1)


async def test_it_neither_repairs_nor_consolidates_a_node_of_ours(admin, kubernetes, make_pool, namespace):
    async def emptied(pod, *, consolidate_after):
        """A pool with a node that has lost its only pod."""
        pool = await make_pool(consolidate_after=consolidate_after)
        await make_gpu_pod(admin, namespace, pod, pool)
        await runs(admin, namespace, pod)
        node = await node_of(admin, pool)
        if pod.startswith("ours"):
            await block(kubernetes, block_request(identity_of(node)))
        await admin.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{pod}")
        return pool, node["metadata"]["name"]

    async def unhealthy():
        _, ours = await emptied("ours-unhealthy", consolidate_after="Never")
        pool, theirs = await emptied("theirs-unhealthy", consolidate_after="Never")
        await asyncio.gather(*(show(admin, name, UNHEALTHY, since=an_hour_ago()) for name in (ours, theirs)))
        await first_claim(admin, pool, is_going)  # it begins with the older node, and passed ours over
        await untouched(admin, ours)
        return ours

    async def drained():
        pool, ours = await emptied("ours-drained", consolidate_after="0s")
        await first_claim(
            admin, pool, lambda claim: condition_of(claim, "Consolidatable").get("status") == "True"
        )
        pool, _ = await emptied("theirs-drained", consolidate_after="0s")
        await first_claim(admin, pool, is_going)  # it takes all empty nodes at once, and took one
        await untouched(admin, ours)

    ours, _ = await asyncio.gather(unhealthy(), drained())
    assert await imminent_repair(kubernetes, await admin.request("GET", f"{NODES}/{ours}"), now()) == ""


async def test_the_legacy_repair_is_not_held_off_and_is_foreseen(
    admin, kubernetes, karpenter, make_pool, namespace
):
    pool = await make_pool(replicas=1)
    node = await node_of(admin, pool)
    name = node["metadata"]["name"]
    await block(kubernetes, block_request(identity_of(node)))
    since = an_hour_ago().replace(microsecond=0)
    await karpenter.stop()
    try:
        await show(admin, name, UNHEALTHY, since=since)
        await admin.request(
            "POST", f"/apis/apps/v1/namespaces/{namespace}/deployments", body=karpenters_deployment()
        )
        foreseen = await imminent_repair(kubernetes, await admin.request("GET", f"{NODES}/{name}"), now())
        assert f"Deployment {namespace}/karpenter" in foreseen
        assert f"{since + timedelta(seconds=30):%Y-%m-%d %H:%M:%S} UTC for {UNHEALTHY}=True" in foreseen
        await karpenter.launch(legacy_node_repair=True)
        await first_claim(admin, pool, is_going)
    finally:
        await karpenter.stop()
        await karpenter.launch()
    node = await admin.find(f"{NODES}/{name}")
    assert node is None or "is being deleted already" in await imminent_repair(kubernetes, node, now())


def now():
    return datetime.now(UTC)


def karpenters_deployment():
    """As Karpenter's chart makes it; its pod finds no node here, and need not."""
    labels = {"app.kubernetes.io/name": "karpenter"}
    container = {
        "name": "controller",
        "image": "registry.example/karpenter/controller:1.15.0",
        "args": ["--legacy-node-repair=true"],
        "env": [{"name": "FEATURE_GATES", "value": "StaticCapacity=true,NodeRepair=true"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "karpenter", "labels": labels | {"app.kubernetes.io/version": "1.15.0"}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"nodeSelector": {"example.com/none": "such"}, "containers": [container]},
            },
        },
    }


async def untouched(admin, name):
    node = await until(admin, NODES, name, lambda found: found is not None)
    assert not is_going(node)
    assert {taint["key"] for taint in node["spec"]["taints"]}.isdisjoint(
        {"karpenter.sh/disrupted", "karpenter.sh/rebooting"}
    )
