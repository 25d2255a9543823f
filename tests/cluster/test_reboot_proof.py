"""What proves a reboot, as a table of sightings, and on a real API server with a rebooting kwok node."""

from datetime import UTC, datetime, timedelta

import pytest
from cluster.conftest import soon

from gpu_runbooks.activities.kubernetes import MERGE_PATCH
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import AwaitReboot
from gpu_runbooks.activities.nodes import identity_of
from gpu_runbooks.activities.reboot_proof import Sightings, await_reboot

START = datetime(2026, 3, 1, 10, tzinfo=UTC)
MACHINE = NodeIdentity(
    name="gpu-1", uid="u-1", provider_id="", instance_id="i-1", zone="", instance_type="", boot_id="A"
)


def sighting(boot_id, ready, reported, *, gpus="8", uid="u-1"):
    """The Node as it stands, with Ready reported so many seconds after the wait began."""
    when = (START + timedelta(seconds=reported)).isoformat().replace("+00:00", "Z")
    node = {
        "metadata": {"name": "gpu-1", "uid": uid},
        "status": {
            "nodeInfo": {"bootID": boot_id},
            "allocatable": {} if gpus is None else {"nvidia.com/gpu": gpus},
            "conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": when}],
        },
    }
    return {uid: node}


def judge(*states):
    """What the last of these states says, none before having ended the wait."""
    sightings = Sightings(MACHINE, START)
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
        pytest.param([{}, sighting("B", "True", 40)], id="Node away for a while"),
        pytest.param([sighting("B", "True", 40)], id="changed before the first look"),
        pytest.param([sighting("B", "True", -30), sighting("B", "True", -10)], id="reported again since"),
        pytest.param([sighting("B", "Unknown", 40), sighting("B", "True", 50)], id="Ready later"),
        pytest.param([sighting("B", "True", 40, gpus="0"), sighting("B", "True", 40)], id="GPUs later"),
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
        pytest.param({}, id="Node gone"),
    ],
)
def test_not_proven_yet(state):
    assert judge(state) is None


def test_another_machine_of_the_name_ends_the_wait():
    proof = judge(sighting("A", "True", 0), sighting("B", "True", 60, uid="u-2"))
    assert not proof.proven
    assert "another machine" in proof.message


async def annotate(admin, name, **annotations):
    body = {
        "metadata": {"annotations": {f"gpu-runbooks.dev/{key}": value for key, value in annotations.items()}}
    }
    await admin.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)


async def test_real_reboot(admin, kubernetes, node):
    identity, since = identity_of(node), datetime.now(UTC)
    await annotate(admin, identity.name, reboot="2")
    proof = await await_reboot(kubernetes, AwaitReboot(identity=identity, deadline=soon(30)), since)
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
