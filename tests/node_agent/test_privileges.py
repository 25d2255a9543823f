"""What the agent's token may do on a real API server: two writes on its own node, and nothing else."""

import asyncio
import itertools

import pytest
from node_agent.cluster import (
    PODS,
    STRATEGIC,
    TASKS,
    agent_node,
    condition,
    create_node,
    create_task,
    delete,
    new_task,
)

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, KubernetesError

OWN_CONDITION = {
    "type": names.HEALTHY_CONDITION,
    "status": "True",
    "reason": "GPUsHealthy",
    "message": "8 GPUs",
    "lastHeartbeatTime": "2026-03-01T12:00:00Z",
    "lastTransitionTime": "2026-03-01T12:00:00Z",
}


@pytest.fixture(scope="module")
async def own(control_plane, admin):
    async with agent_node(control_plane, admin, "privileges-own") as node:
        await policy_in_force(control_plane, node)
        yield node


@pytest.fixture(scope="module")
async def other(control_plane, admin):
    async with agent_node(control_plane, admin, "privileges-other") as node:
        yield node


@pytest.fixture(scope="module")
async def token(control_plane, own):
    """A connection with the token that is bound to the agent's Pod on its own node."""
    async with control_plane.client(own.identity) as kubernetes:
        yield kubernetes


async def policy_in_force(plane, node):
    """The API server takes up a new policy a moment after it accepted it: a label shows when."""
    async with plane.client(node.identity) as kubernetes, asyncio.timeout(60):
        for number in itertools.count():
            forbidden = {"metadata": {"labels": {"policy-probe": str(number)}}}
            if await refused(kubernetes, "PATCH", f"{node.path}/status", forbidden) == 403:
                return
            await asyncio.sleep(0.2)


async def refused(kubernetes, method, path, body=None, content_type=STRATEGIC):
    """Status code of the refusal, or 0 where there was none."""
    try:
        await kubernetes.request(method, path, body=body, content_type=content_type)
    except KubernetesError as error:
        return error.status
    return 0


def status_patch(conditions):
    return {"status": {"conditions": conditions}}


# --- what it may ---------------------------------------------------------------------------------------


async def test_its_own_condition(admin, own, token):
    await token.request(
        "PATCH", f"{own.path}/status", body=status_patch([OWN_CONDITION]), content_type=STRATEGIC
    )
    node = await admin.request("GET", own.path)
    assert condition(node, names.HEALTHY_CONDITION)["status"] == "True"
    assert condition(node, "Ready")["status"] == "True"


async def test_the_status_of_its_own_task(admin, own, token):
    task = await create_task(admin, own)
    path = f"{TASKS}/{task['metadata']['name']}"
    status = {"metadata": {"uid": task["metadata"]["uid"]}, "status": {"phase": "Running"}}
    answer = await token.request("PATCH", f"{path}/status", body=status, content_type=MERGE_PATCH)
    assert answer["status"]["phase"] == "Running"
    spec = {"spec": {"deadline": "2036-01-01T00:00:00Z"}}
    await token.request("PATCH", f"{path}/status", body=spec, content_type=MERGE_PATCH)
    assert (await admin.request("GET", path))["spec"] == task["spec"]
    await delete(admin, path)


async def test_reading_its_node_and_its_tasks(own, token):
    assert (await token.request("GET", own.path))["metadata"]["name"] == own.name
    assert await token.items(TASKS, field_selector=f"spec.nodeName={own.name}") == []


# --- what it may not, on its own node -------------------------------------------------------------------

OWNER = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "name": "gone",
    "uid": "00000000-0000-4000-8000-000000000000",
}
READY = {**OWN_CONDITION, "type": "Ready"}
FOREIGN = {**OWN_CONDITION, "type": "AcceleratedHardwareReady"}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"metadata": {"labels": {"team": "x"}}}, id="label"),
        pytest.param({"metadata": {"annotations": {names.BLOCK_ANNOTATION: "{}"}}}, id="annotation"),
        pytest.param({"metadata": {"finalizers": ["example.com/x"]}}, id="finalizer"),
        pytest.param({"metadata": {"ownerReferences": [OWNER]}}, id="ownerReference"),
        pytest.param({"status": {"capacity": {"nvidia.com/gpu": "9"}}}, id="capacity"),
        pytest.param({"status": {"allocatable": {"nvidia.com/gpu": "0"}}}, id="allocatable"),
        pytest.param({"status": {"nodeInfo": {"bootID": "forged"}}}, id="bootID"),
        pytest.param({"status": {"addresses": [{"type": "Hostname", "address": "x"}]}}, id="address"),
        pytest.param(status_patch([READY]), id="Ready"),
        pytest.param(status_patch([FOREIGN]), id="foreign condition"),
        pytest.param(status_patch([OWN_CONDITION, FOREIGN]), id="foreign beside own"),
        pytest.param(status_patch([{"type": "Ready", "$patch": "delete"}]), id="Ready removed"),
        pytest.param(status_patch([{"$patch": "replace"}]), id="all conditions removed"),
    ],
)
async def test_nothing_else_of_its_own_node(own, token, body):
    assert await refused(token, "PATCH", f"{own.path}/status", body) == 403


async def test_taints_and_cordon_do_not_pass_through_the_status(admin, own, token):
    taint = {"key": names.BLOCK_TAINT, "effect": "NoExecute"}
    await refused(token, "PATCH", f"{own.path}/status", {"spec": {"taints": [taint], "unschedulable": True}})
    spec = (await admin.request("GET", own.path))["spec"]
    assert not spec.get("unschedulable")
    assert all(found["key"] != names.BLOCK_TAINT for found in spec.get("taints", ()))


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_not_the_node_itself(own, token, method):
    body = {"metadata": {"labels": {"team": "x"}}} if method == "PATCH" else None
    assert await refused(token, method, own.path, body) == 403


async def test_no_node_more(token):
    assert await refused(token, "POST", "/api/v1/nodes", {"metadata": {"name": "forged"}}) == 403


# --- what it may not, elsewhere --------------------------------------------------------------------------


@pytest.mark.parametrize("body", [status_patch([OWN_CONDITION]), {}], ids=["own condition", "empty"])
async def test_not_the_status_of_another_node(other, token, body):
    assert await refused(token, "PATCH", f"{other.path}/status", body) == 403


async def test_not_the_task_of_another_node(admin, own, other, token):
    task = await create_task(admin, other)
    path = f"{TASKS}/{task['metadata']['name']}"
    for body in (
        {"status": {"phase": "Succeeded"}},
        {"status": {"phase": "Succeeded"}, "spec": {"nodeName": own.name}},
    ):
        assert await refused(token, "PATCH", f"{path}/status", body, MERGE_PATCH) == 403
    assert "status" not in await admin.request("GET", path)
    await delete(admin, path)


async def test_not_a_task_itself(admin, own, token):
    task = await create_task(admin, own)
    path = f"{TASKS}/{task['metadata']['name']}"
    assert await refused(token, "POST", TASKS, new_task(own), "application/json") == 403
    assert await refused(token, "PATCH", path, {"spec": {"kind": "Measure"}}, MERGE_PATCH) == 403
    assert await refused(token, "PATCH", path, {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH) == 403
    assert await refused(token, "PUT", path, task, "application/json") == 403
    assert await refused(token, "DELETE", path) == 403
    assert (await admin.request("GET", path))["metadata"]["uid"] == task["metadata"]["uid"]
    await delete(admin, path)


@pytest.mark.parametrize("path", [PODS, "/api/v1/namespaces/gpu-runbooks/secrets", "/api/v1/nodes"])
async def test_no_reading_beyond_its_own(token, path):
    assert await refused(token, "GET", path) == 403


# --- tokens that are no node's ------------------------------------------------------------------------------


async def test_a_token_without_a_pod_writes_nothing(control_plane, admin, own):
    await control_plane.grant("node-agent")
    task = await create_task(admin, own)
    async with control_plane.client("node-agent") as unbound:
        assert await refused(unbound, "PATCH", f"{own.path}/status", status_patch([OWN_CONDITION])) == 403
        path = f"{TASKS}/{task['metadata']['name']}/status"
        assert await refused(unbound, "PATCH", path, {"status": {"phase": "Running"}}, MERGE_PATCH) == 403
    await delete(admin, f"{TASKS}/{task['metadata']['name']}")


async def test_a_machine_that_lost_its_name_writes_nothing(control_plane, admin):
    async with agent_node(control_plane, admin, "privileges-reborn") as old:
        await delete(admin, old.path)
        reborn = await create_node(admin, old.name)
        assert reborn["metadata"]["uid"] != old.node["metadata"]["uid"]
        task = await create_task(admin, old, nodeUID=reborn["metadata"]["uid"])
        path = f"{TASKS}/{task['metadata']['name']}"
        async with control_plane.client(old.identity) as kubernetes:
            own_condition = status_patch([OWN_CONDITION])
            assert await refused(kubernetes, "PATCH", f"{old.path}/status", own_condition) in {401, 403}
            success = {"status": {"phase": "Succeeded"}}
            assert await refused(kubernetes, "PATCH", f"{path}/status", success, MERGE_PATCH) in {401, 403}
        assert "status" not in await admin.request("GET", path)
        await delete(admin, path)


# --- tasks that nobody may make ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{"kind": "Explode"}, {"nodeName": ""}, {"deadline": "soon"}, {"nodeUID": ""}, {"bootID": ""}],
)
async def test_the_server_refuses_a_task_that_no_agent_could_read(admin, own, changes):
    with pytest.raises(KubernetesError) as error:
        await create_task(admin, own, **changes)
    assert error.value.status == 422


async def test_the_spec_of_a_task_is_immutable(admin, own):
    task = await create_task(admin, own)
    path = f"{TASKS}/{task['metadata']['name']}"
    assert await refused(admin, "PATCH", path, {"spec": {"kind": "Measure"}}, MERGE_PATCH) == 422
    await delete(admin, path)
