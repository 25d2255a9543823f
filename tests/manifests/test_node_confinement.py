"""What the cluster worker's own token cannot do to a Node, beyond its block and the GPU services."""

import uuid
from datetime import UTC, datetime

import pytest

from gpu_runbooks.activities import names
from gpu_runbooks.activities.gpu_services.labels import MANAGED, PAUSED
from gpu_runbooks.activities.karpenter.objects import DO_NOT_REPAIR
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, KubernetesError
from gpu_runbooks.activities.model.node import BlockNode, UnblockNode
from gpu_runbooks.activities.nodes.block import block, unblock
from gpu_runbooks.activities.nodes.node import identity_of
from testbed.nodes import gpu_node

NODES = "/api/v1/nodes"
OURS = {"key": names.BLOCK_TAINT, "value": "xid-79", "effect": "NoSchedule"}
FOREIGN = {"key": "example.com/of-others", "effect": "NoSchedule"}
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "other", "uid": "u-1"}


@pytest.fixture
async def node(admin):
    body = gpu_node(f"gpu-{uuid.uuid4().hex[:8]}", "i-0123456789abcdef0")
    body["metadata"]["annotations"] = {"example.com/of-others": "kept"}
    body["metadata"]["labels"] |= {"nvidia.com/gpu.deploy.driver": "true", MANAGED[0]: "true"}
    body["spec"]["taints"] = [FOREIGN]
    made = await admin.request("POST", NODES, body=body)
    yield made["metadata"]["name"]
    if await admin.find(f"{NODES}/{made['metadata']['name']}"):
        await admin.request("DELETE", f"{NODES}/{made['metadata']['name']}")


async def patch(kubernetes, node, body):
    return await kubernetes.request("PATCH", f"{NODES}/{node}", body=body, content_type=MERGE_PATCH)


def kept(node):
    """What nobody writes to a Node in these tests, of what the worker may not write."""
    metadata = node["metadata"]
    return (
        {
            key: value
            for key, value in metadata["labels"].items()
            if not key.startswith("beta.kubernetes.io/")
        },
        metadata["annotations"].get("example.com/of-others"),
        metadata.get("finalizers"),
        metadata.get("ownerReferences"),
        node["spec"]["providerID"],
        [taint for taint in node["spec"]["taints"] if taint["key"].startswith("example.com/")],
    )


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"metadata": {"labels": {"nvidia.com/gpu.deploy.driver": "false"}}}, "these labels"),
        ({"metadata": {"labels": {"nvidia.com/gpu.deploy.operands": "false"}}}, "these labels"),
        ({"metadata": {"labels": {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}}}, "these labels"),
        ({"metadata": {"labels": {"gpu-runbooks.dev/pool": "other"}}}, "these labels"),
        ({"metadata": {"labels": {"kubernetes.io/arch": None}}}, "these labels"),
        ({"metadata": {"labels": {MANAGED[0]: PAUSED, "example.com/new": "x"}}}, "these labels"),
        ({"metadata": {"annotations": {"example.com/of-others": "changed"}}}, "these annotations"),
        ({"metadata": {"annotations": {"example.com/of-others": None}}}, "these annotations"),
        ({"metadata": {"annotations": {names.BLOCK_ANNOTATION: "x", "example.com/new": "x"}}}, "annotations"),
        ({"metadata": {"finalizers": ["example.com/hold"]}}, "finalizers"),
        ({"metadata": {"ownerReferences": [OWNER]}}, "ownerReferences"),
        ({"spec": {"podCIDR": "10.0.9.0/24", "podCIDRs": ["10.0.9.0/24"]}}, "spec"),
        ({"spec": {"taints": None}}, "taint"),
        ({"spec": {"taints": [OURS]}}, "taint"),
        ({"spec": {"taints": [{**FOREIGN, "effect": "NoExecute"}]}}, "taint"),
        ({"spec": {"taints": [FOREIGN, {**OURS, "effect": "NoExecute"}]}}, "taint"),
        ({"spec": {"taints": [FOREIGN, {"key": "example.com/new", "effect": "NoSchedule"}]}}, "taint"),
    ],
)
async def test_what_is_not_ours_on_a_node_stays(admin, worker, node, changes, refusal):
    before = kept(await admin.request("GET", f"{NODES}/{node}"))
    with pytest.raises(KubernetesError, match=f"the cluster worker may.*{refusal}") as refused:
        await patch(worker, node, changes)
    assert refused.value.status == 403
    after = await admin.request("GET", f"{NODES}/{node}")
    assert kept(after) == before
    assert names.BLOCK_ANNOTATION not in after["metadata"]["annotations"]


async def test_a_node_is_blocked_and_freed(admin, worker, node):
    karpenters = {"metadata": {"labels": {"karpenter.sh/nodepool": "p5"}}}
    identity = identity_of(await patch(admin, node, karpenters))
    request = {"identity": identity, "incident": "node/test/a", "run_id": "run-1"}
    await block(
        worker, BlockNode(**request, rule="xid-79", reason="fell off the bus", since=datetime.now(UTC))
    )
    blocked = await patch(
        worker, node, {"metadata": {"annotations": {names.REPLACES_ANNOTATION: "node/test/a"}}}
    )
    ours = {names.BLOCK_ANNOTATION, names.REPLACES_ANNOTATION, DO_NOT_REPAIR}
    assert ours <= set(blocked["metadata"]["annotations"])
    assert OURS in blocked["spec"]["taints"]
    await unblock(worker, UnblockNode(**request))
    freed = await admin.request("GET", f"{NODES}/{node}")
    assert not ours & set(freed["metadata"]["annotations"])
    assert "unschedulable" not in freed["spec"]


async def test_every_service_that_we_stop_may_be_stopped_and_started(worker, node):
    pausing = {
        "labels": dict.fromkeys(MANAGED, PAUSED),
        "annotations": {names.PAUSED_SERVICES_ANNOTATION: "x"},
    }
    paused = await patch(worker, node, {"metadata": pausing})
    assert {paused["metadata"]["labels"][key] for key in MANAGED} == {PAUSED}
    resuming = {
        "labels": dict.fromkeys(MANAGED) | {MANAGED[0]: "true"},
        "annotations": {names.PAUSED_SERVICES_ANNOTATION: None},
    }
    resumed = await patch(worker, node, {"metadata": resuming})
    assert set(MANAGED) & set(resumed["metadata"]["labels"]) == {MANAGED[0]}


async def test_a_node_that_is_not_blocked_is_not_deleted(admin, worker, node):
    with pytest.raises(KubernetesError, match="may only delete a node that has the annotation") as refused:
        await worker.request("DELETE", f"{NODES}/{node}")
    assert refused.value.status == 403
    assert await admin.find(f"{NODES}/{node}") is not None


async def test_a_node_that_is_blocked_may_be_deleted(admin, worker, node):
    await patch(worker, node, {"metadata": {"annotations": {names.BLOCK_ANNOTATION: "x"}}})
    await worker.request("DELETE", f"{NODES}/{node}")
    assert await admin.find(f"{NODES}/{node}") is None


async def test_others_are_not_confined(admin, node):
    changed = await patch(admin, node, {"metadata": {"labels": {"nvidia.com/gpu.deploy.driver": "false"}}})
    assert changed["metadata"]["labels"]["nvidia.com/gpu.deploy.driver"] == "false"
