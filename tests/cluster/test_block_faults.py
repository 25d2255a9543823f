"""Writes to a Node that are lost, refused or undone: a block or its removal is verified, or it fails."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
from cluster.blocks import OUR_TAINT, add_taint, annotations, patch, read, taint_keys, taints, unblock_request
from cluster.conftest import KEEP_OTHERS_OFF, block_request, drain_request
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.cluster import Cluster
from gpu_runbooks.activities.kubernetes.client import KubernetesError
from gpu_runbooks.activities.nodes.block import ATTEMPTS, block, unblock
from gpu_runbooks.activities.nodes.node import identity_of, observe
from testbed.api_faults import first, lose_answer, respond, status

NODE = "/api/v1/nodes/.*"
CONFLICT = status(409, "Conflict", "the object has been modified; please apply your changes to the latest")
BUSY = status(429, "TooManyRequests", "the server has received too many requests", retryAfterSeconds=1)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    """The pause lets other writers pass, and here is none: it would only make twenty attempts long."""
    monkeypatch.setattr("gpu_runbooks.activities.nodes.block.PAUSE", 0.0)


async def test_a_taint_that_comes_between_read_and_write_stays(admin, faulty, proxy, node):
    identity = identity_of(node)

    async def another_controller():
        await add_taint(admin, identity.name, "node.example.com/not-ready", "NoExecute")

    proxy.inject(first(another_controller), method="PATCH", path=NODE)
    await block(faulty, block_request(identity))
    assert proxy.count("PATCH") == 2
    now = await read(admin, identity.name)
    assert taint_keys(now) >= {KEEP_OTHERS_OFF["key"], "node.example.com/not-ready", names.BLOCK_TAINT}

    async def the_controller_again():
        await add_taint(admin, identity.name, "node.example.com/second")

    proxy.inject(first(the_controller_again), method="PATCH", path=NODE)
    await unblock(faulty, unblock_request(identity))
    left = taint_keys(await read(admin, identity.name))
    assert left >= {KEEP_OTHERS_OFF["key"], "node.example.com/not-ready", "node.example.com/second"}
    assert names.BLOCK_TAINT not in left


@pytest.fixture
def cluster(faulty):
    return Cluster(faulty, lambda *_: None, "gpu-runbooks")


async def failing(activity, request, *, attempt=1):
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, attempt=attempt)
    with pytest.raises(ApplicationError) as error:
        await environment.run(activity, request)
    return error.value


async def test_twenty_conflicts_are_no_block_and_lead_to_no_eviction(
    admin, cluster, proxy, node, namespace, make_pod
):
    identity = identity_of(node)
    await make_pod("training", identity.name)
    proxy.inject(respond(409, CONFLICT), method="PATCH", path=NODE, times=ATTEMPTS)
    error = await failing(cluster.block_node, block_request(identity))
    assert (error.type, error.non_retryable) == (errors.NOT_VERIFIED, False)
    assert "409" in error.message
    assert names.BLOCK_TAINT not in taint_keys(await read(admin, identity.name))
    drained = await ActivityEnvironment().run(cluster.drain_pods, drain_request(identity))
    assert drained.outcome == "cancelled"
    assert proxy.count("POST", ".*/eviction") == 0


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_reads_that_are_refused_write_nothing(cluster, proxy, node, code):
    """What cannot be read is not decided on."""
    proxy.inject(respond(code, BUSY | {"code": code}), method="GET", path=NODE, times=None)
    error = await failing(cluster.block_node, block_request(identity_of(node)))
    assert not error.non_retryable
    assert proxy.count("PATCH") == 0


async def test_an_answer_that_was_lost_is_found_by_the_next_attempt(faulty, proxy, node):
    identity = identity_of(node)
    proxy.inject(lose_answer(), method="PATCH", path=NODE, times=None)  # the first one may meet a conflict
    with pytest.raises(KubernetesError):
        await block(faulty, block_request(identity))
    written = proxy.count("PATCH")
    proxy.heal()
    result = await block(faulty, block_request(identity))
    assert (result.adopted, result.marker.was_unschedulable) == (True, False)
    assert proxy.count("PATCH") == written


async def test_an_unblock_that_changes_nothing_is_not_taken_for_one(admin, faulty, proxy, blocked):
    """200, and the node is as it was."""
    unchanged = await read(admin, blocked.name)
    proxy.inject(respond(200, unchanged), method="PATCH", path=NODE, times=2)
    result = await unblock(faulty, unblock_request(blocked))
    assert proxy.count("PATCH") == 3
    assert {"cordon", f"taint {names.BLOCK_TAINT}"} <= set(result.removed)
    assert "unschedulable" not in (await read(admin, blocked.name))["spec"]


async def test_a_block_whose_read_back_shows_nothing_is_written_again(admin, faulty, proxy, node):
    identity = identity_of(node)
    proxy.inject(respond(200, node), method="PATCH", path=NODE, times=2)
    result = await block(faulty, block_request(identity))
    assert proxy.count("PATCH") == 3
    assert not result.adopted
    assert observe(await read(admin, identity.name), result.marker.incident).blocked


async def test_no_block_is_said_to_stand_by_the_last_write_alone(cluster, proxy, node):
    proxy.inject(respond(200, node), method="PATCH", path=NODE, times=None)
    error = await failing(cluster.block_node, block_request(identity_of(node)))
    assert (error.type, error.non_retryable) == (errors.NOT_VERIFIED, False)
    assert "what was read back" in error.message
    error = await failing(cluster.block_node, block_request(identity_of(node)), attempt=3)
    assert (error.type, error.non_retryable) == (errors.NOT_VERIFIED, True)


async def test_a_conflict_with_no_end_leaves_the_block_and_asks_a_person(admin, cluster, proxy, blocked):
    proxy.inject(respond(409, CONFLICT), method="PATCH", path=NODE, times=None)
    error = await failing(cluster.unblock_node, unblock_request(blocked), attempt=3)
    assert (error.type, error.non_retryable) == (errors.NOT_VERIFIED, True)
    assert observe(await read(admin, blocked.name), f"node/test/{blocked.name}").blocked


ADMISSION = "/apis/admissionregistration.k8s.io/v1/"


@contextlib.asynccontextmanager
async def undoing_policy(admin, name, expression):
    """A policy of somebody's cluster that changes each write to one Node, on the API server itself."""
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "resources": ["nodes"],
                        "operations": ["UPDATE"],
                    }
                ]
            },
            "matchConditions": [{"name": "one-node", "expression": f"object.metadata.name == '{name}'"}],
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    }
    kinds = {"mutatingadmissionpolicies": policy, "mutatingadmissionpolicybindings": binding}
    for kind, body in kinds.items():
        await admin.request("POST", ADMISSION + kind, body=body)
    try:
        yield
    finally:
        for kind in kinds:
            await admin.request("DELETE", f"{ADMISSION}{kind}/{name}")


async def acts(admin, name, write, holds):
    """Write until a policy has its effect: the API server takes it up a moment after it was made."""
    async with asyncio.timeout(60):
        while not holds(await patch(admin, name, write)):
            await asyncio.sleep(0.1)


NO_CORDON = '[JSONPatch{op: "add", path: "/spec/unschedulable", value: false}]'
ALWAYS_CORDONED = '[JSONPatch{op: "add", path: "/spec/unschedulable", value: true}]'


async def test_a_policy_that_uncordons_every_node_lets_no_block_stand(
    admin, cluster, proxy, node, namespace, make_pod
):
    """On the real API server: 200 each time, and never cordoned."""
    identity = identity_of(node)
    await make_pod("training", identity.name)
    async with undoing_policy(admin, identity.name, NO_CORDON):
        await acts(
            admin,
            identity.name,
            {"spec": {"unschedulable": True}},
            lambda node: not node["spec"].get("unschedulable"),
        )
        error = await failing(cluster.block_node, block_request(identity), attempt=3)
        assert (error.type, error.non_retryable) == (errors.NOT_VERIFIED, True)
        drained = await ActivityEnvironment().run(cluster.drain_pods, drain_request(identity))
        assert drained.outcome == "cancelled"
    assert proxy.count("POST", ".*/eviction") == 0


async def test_a_policy_that_keeps_the_cordon_makes_the_unblock_fail_visibly(admin, cluster, blocked):
    """Uncordoned says the API server, and the node is cordoned."""
    async with undoing_policy(admin, blocked.name, ALWAYS_CORDONED):
        await acts(
            admin,
            blocked.name,
            {"spec": {"unschedulable": None}},
            lambda node: node["spec"].get("unschedulable"),
        )
        error = await failing(cluster.unblock_node, unblock_request(blocked))
        # For good: the marker is gone, so a next attempt would take the cordon for somebody else's.
        assert (error.type, error.non_retryable) == (errors.NOT_VERIFIED, True)
    now = await read(admin, blocked.name)
    assert now["spec"]["unschedulable"] is True
    assert OUR_TAINT not in taints(now)
    assert names.BLOCK_ANNOTATION not in annotations(now)


async def test_a_cordon_that_comes_right_after_our_last_write_is_somebodys(admin, faulty, proxy, blocked):
    """A controller that cordons a sick node as soon as it is schedulable: faster than our read-back."""

    async def cordon():
        if names.BLOCK_ANNOTATION not in annotations(await read(admin, blocked.name)):
            await patch(admin, blocked.name, {"spec": {"unschedulable": True}})

    proxy.inject(first(cordon), method="GET", path=NODE, times=None)
    result = await unblock(faulty, unblock_request(blocked))
    assert "cordon" in result.removed
    assert "cordon" in result.kept
    assert (await read(admin, blocked.name))["spec"]["unschedulable"] is True
