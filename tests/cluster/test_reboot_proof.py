"""What proves a reboot, as a table of sightings, and on a real API server with a rebooting kwok node."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from cluster.conftest import soon

from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import AwaitReboot
from gpu_runbooks.activities.nodes.node import identity_of
from gpu_runbooks.activities.nodes.reboot_proof import Sightings, await_reboot, refused_pods
from testbed.api_faults import respond, status
from testbed.nodes import gpu_node

START = datetime(2026, 3, 1, 10, tzinfo=UTC)
MACHINE = NodeIdentity(
    name="gpu-1", uid="u-1", provider_id="", instance_id="i-1", zone="", instance_type="", boot_id="A"
)


def sighting(boot_id, ready, reported, *, gpus="8", efa="32", uid="u-1"):
    """The Node as it stands, with Ready reported so many seconds after the wait began."""
    when = (START + timedelta(seconds=reported)).isoformat().replace("+00:00", "Z")
    node = {
        "metadata": {"name": "gpu-1", "uid": uid},
        "status": {
            "nodeInfo": {"bootID": boot_id},
            "allocatable": {
                key: value
                for key, value in (("nvidia.com/gpu", gpus), ("vpc.amazonaws.com/efa", efa))
                if value is not None
            },
            "conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": when}],
        },
    }
    return {uid: node}


def judge(*states, machine=MACHINE):
    """What the last of these states says, none before having ended the wait."""
    sightings = Sightings(machine, START, gpus=8)
    *earlier, last = states
    for state in earlier:
        assert sightings.judge(state) is None
    return sightings.judge(last)


@pytest.mark.parametrize(
    "states",
    [
        pytest.param([sighting("A", "True", -5), sighting("B", "True", 29)], id="never seen NotReady"),
        pytest.param([sighting("A", "False", 3), sighting("B", "True", 30)], id="seen NotReady"),
        pytest.param([sighting("A", "True", -50), sighting("B", "True", -20)], id="node's clock is behind"),
        pytest.param([sighting("B", "True", 40)], id="changed before the first look"),
        pytest.param([sighting("B", "True", -30), sighting("B", "True", -10)], id="reported again since"),
        pytest.param([sighting("B", "Unknown", 40), sighting("B", "True", 50)], id="Ready later"),
        pytest.param([sighting("B", "True", 40, gpus="0"), sighting("B", "True", 40)], id="GPUs later"),
        pytest.param([sighting("B", "True", 40, gpus="7"), sighting("B", "True", 40)], id="last GPU later"),
        pytest.param(
            [sighting("A", "True", 0), sighting("B", "True", 40, efa="0"), sighting("B", "True", 40)],
            id="EFA later",
        ),
        pytest.param(
            [sighting("A", "True", 0, efa=None), sighting("B", "True", 40, efa=None)], id="never had EFA"
        ),
        pytest.param([sighting("", "False", 20), sighting("B", "True", 40)], id="boot id empty for a while"),
    ],
)
def test_proven(states):
    proof = judge(*states)
    assert (proof.proven, proof.boot_id) == (True, "B")


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(sighting("A", "True", 600), id="Ready, boot id unchanged"),
        pytest.param(sighting("", "True", 600), id="boot id empty"),
        pytest.param(sighting("B", "True", -30), id="Ready may be the old boot's word"),
        pytest.param(sighting("B", "False", 600), id="not Ready"),
        pytest.param(sighting("B", "Unknown", 600), id="silent"),
        pytest.param(sighting("B", "True", 600, gpus="0"), id="no GPUs yet"),
        pytest.param(sighting("B", "True", 600, gpus=None), id="no GPU key"),
        pytest.param(sighting(" ", "True", 600), id="boot id blank"),
        pytest.param(sighting("B", "True", 600, gpus="7"), id="one GPU is missing"),
    ],
)
def test_not_proven_yet(state):
    assert judge(state) is None


def test_not_proven_while_efa_interfaces_are_missing():
    before, after = sighting("A", "True", 0), sighting("B", "True", 600, efa="31")
    assert judge(before, after) is None


def test_any_gpu_counts_where_none_was_counted_before():
    sightings = Sightings(MACHINE, START, gpus=0)
    assert sightings.judge(sighting("B", "True", 40, gpus="0")) is None
    assert sightings.judge(sighting("B", "True", 40, gpus="1")).proven


@pytest.mark.parametrize("pinned", ["", " "])
def test_without_a_pinned_boot_id_only_a_change_proves(pinned):
    machine = MACHINE.model_copy(update={"boot_id": pinned})
    assert judge(sighting("A", "True", 600), sighting("A", "True", 700), machine=machine) is None
    assert judge(sighting("A", "True", 0), sighting("B", "True", 40), machine=machine).boot_id == "B"


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ({}, "the Node is gone"),
        (sighting("B", "True", 60, uid="u-2"), "another machine has the name now: UID u-2"),
    ],
)
def test_a_node_that_went_away_ends_the_wait(last, message):
    proof = judge(sighting("A", "True", 0), last)
    assert (proof.proven, proof.gone) == (False, True)
    assert message in proof.message


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        ([], ""),
        (["Evicted", None], ""),
        (["UnexpectedAdmissionError"], "; failed with UnexpectedAdmissionError and not running (1): a/p-0"),
        (
            ["UnexpectedAdmissionError"] * 7,
            (
                "; failed with UnexpectedAdmissionError and not running (7): "
                "a/p-0, a/p-1, a/p-2, a/p-3, a/p-4 and 2 more"
            ),
        ),
    ],
)
def test_refused_pods_in_words(reasons, said):
    pods = [
        {
            "metadata": {"namespace": "a", "name": f"p-{number}"},
            "status": {"phase": "Failed", "reason": reason},
        }
        for number, reason in enumerate(reasons)
    ]
    assert refused_pods(pods) == said


async def annotate(admin, name, **annotations):
    body = {
        "metadata": {"annotations": {f"gpu-runbooks.dev/{key}": value for key, value in annotations.items()}}
    }
    await admin.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)


async def test_real_reboot(admin, kubernetes, node):
    identity, since = identity_of(node), datetime.now(UTC)
    await annotate(admin, identity.name, reboot="2")
    proof = await await_reboot(kubernetes, AwaitReboot(identity=identity, gpus=8, deadline=soon(30)), since)
    now = await admin.request("GET", f"/api/v1/nodes/{identity.name}")
    assert proof.proven
    assert proof.boot_id == now["status"]["nodeInfo"]["bootID"] != identity.boot_id
    assert proof.ready_since is not None


async def test_reboot_request_that_changes_nothing(admin, kubernetes, node):
    identity, since = identity_of(node), datetime.now(UTC)
    await annotate(admin, identity.name, **{"reboot": "1", "reboot-outcome": "nothing"})
    proof = await await_reboot(kubernetes, AwaitReboot(identity=identity, deadline=soon(4)), since)
    assert not proof.proven
    assert "boot id is unchanged, Ready=True" in proof.message


async def refused_pod(admin, make_pod, identity):
    """A pod that its kubelet did not admit, as it stands after a reboot."""
    pod = await make_pod("train-0", identity.name)
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/train-0/status"
    body = {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"}}
    await admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    return f"{pod['metadata']['namespace']}/train-0"


async def test_pods_that_came_before_the_device_plugin_are_told(admin, kubernetes, node, make_pod):
    identity, since = identity_of(node), datetime.now(UTC)
    name = await refused_pod(admin, make_pod, identity)
    await annotate(admin, identity.name, reboot="1")
    proof = await await_reboot(kubernetes, AwaitReboot(identity=identity, deadline=soon(30)), since)
    assert proof.proven
    assert f"failed with UnexpectedAdmissionError and not running (1): {name}" in proof.message


async def test_the_look_at_failed_pods_decides_nothing(admin, faulty, proxy, node):
    identity, since = identity_of(node), datetime.now(UTC)
    proxy.inject(respond(500, status(500, "InternalError", "no")), path="/api/v1/pods", times=None)
    await annotate(admin, identity.name, reboot="1")
    assert (await await_reboot(faulty, AwaitReboot(identity=identity, deadline=soon(30)), since)).proven


async def test_a_node_that_is_deleted_meanwhile_is_gone(admin, kubernetes, node):
    identity = identity_of(node)
    waiting = asyncio.create_task(
        await_reboot(kubernetes, AwaitReboot(identity=identity, deadline=soon(30)), datetime.now(UTC))
    )
    await admin.request("DELETE", f"/api/v1/nodes/{identity.name}")
    proof = await waiting
    assert (proof.proven, proof.gone) == (False, True)


async def test_a_node_that_is_made_anew_is_gone(admin, kubernetes, node):
    identity = identity_of(node)
    await admin.request("DELETE", f"/api/v1/nodes/{identity.name}")
    await admin.request("POST", "/api/v1/nodes", body=gpu_node(identity.name, "i-00000000000000002"))
    request = AwaitReboot(identity=identity, deadline=soon(30))
    proof = await await_reboot(kubernetes, request, datetime.now(UTC))
    assert (proof.proven, proof.gone) == (False, True)
    assert "provider id aws:///us-west-2a/i-00000000000000002" in proof.message


async def test_a_node_that_cannot_be_read_is_not_gone(admin, faulty, proxy, node):
    """A proxy answers the list with an object without UID: it is left out, and the Node is still there."""
    identity, since = identity_of(node), datetime.now(UTC)
    odd = {
        "kind": "NodeList",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": "1"},
        "items": [{"metadata": {}}],
    }
    proxy.inject(respond(200, odd), path="/api/v1/nodes", watch=False)
    await annotate(admin, identity.name, reboot="1")
    proof = await await_reboot(faulty, AwaitReboot(identity=identity, deadline=soon(30)), since)
    assert (proof.proven, proof.gone) == (True, False)
