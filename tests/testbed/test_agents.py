"""The machines behind the nodes: whose processes hold their GPUs, and until when."""

import asyncio
import uuid

import pytest

from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from testbed.agents import Agents
from testbed.fleet import Fleet
from testbed.gpu_processes import FABRIC_MANAGER_PID
from testbed.gpus import read_state
from testbed.nodes import POOL, gpu_node
from testbed.processes import Processes

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def admin(control_plane):
    async with control_plane.client() as kubernetes:
        yield kubernetes


@pytest.fixture
async def machine(control_plane, admin, tmp_path):
    """Of a node that is followed. No agent runs on it."""
    name = f"machine-{uuid.uuid4().hex[:8]}"
    await admin.request("POST", "/api/v1/nodes", body=gpu_node(name, "i-0aa0000000000009", pool=POOL))
    async with Processes(tmp_path / "logs") as processes:
        agents = Agents(tmp_path, processes, control_plane, Fleet(control_plane, admin))
        following = asyncio.create_task(agents.follow(admin))
        try:
            yield await eventually(lambda: agents.machine(name))
        finally:
            following.cancel()
            await asyncio.wait([following])
            await admin.request("DELETE", f"/api/v1/nodes/{name}")


async def eventually(found):
    """What `found` returns as soon as it is true."""
    async with asyncio.timeout(60):
        while True:
            try:
                if value := found():
                    return value
            except KeyError:
                pass
            await asyncio.sleep(0.05)


@pytest.fixture
async def pod(admin, machine):
    name = f"training-{uuid.uuid4().hex[:8]}"
    spec = {
        "nodeName": machine.directory.name,
        "containers": [{"name": "main", "image": "registry.example/a:1"}],
    }
    body = {"metadata": {"name": name, "annotations": {"gpu-runbooks.dev/stop-seconds": "0"}}, "spec": spec}
    yield await admin.request("POST", PODS, body=body)
    if await admin.find(f"{PODS}/{name}"):
        await admin.request("DELETE", f"{PODS}/{name}")


async def test_a_pod_lets_go_of_its_gpu_when_it_is_gone_and_a_daemon_does_not(admin, machine, pod):
    gpu = read_state(machine.gpus).gpus[3].uuid
    daemon = machine.hold(gpu)
    worker = machine.hold(gpu, pod["metadata"]["uid"])
    assert read_state(machine.gpus).gpus[3].pids == (daemon, worker)
    assert pod["metadata"]["uid"].replace("-", "_") in (machine.proc / str(worker) / "cgroup").read_text()
    await admin.request("DELETE", f"{PODS}/{pod['metadata']['name']}")
    await eventually(lambda: read_state(machine.gpus).gpus[3].pids == (daemon,))
    assert {process.name for process in machine.proc.iterdir()} == {str(FABRIC_MANAGER_PID), str(daemon)}


async def test_a_boot_ends_all_processes(admin, machine, pod):
    machine.hold(read_state(machine.gpus).gpus[0].uuid, pod["metadata"]["uid"])
    body = {"status": {"nodeInfo": {"bootID": "another-boot"}}}
    path = f"/api/v1/nodes/{machine.directory.name}/status"
    await admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    await eventually(lambda: machine.boot_id.read_text() == "another-boot\n")
    assert read_state(machine.gpus).gpus[0].pids == ()
    assert [process.name for process in machine.proc.iterdir()] == [str(FABRIC_MANAGER_PID)]
