"""The agent as a process of its own, killed in the middle of a reset."""

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from node_agent.cluster import TASKS, agent_node, condition, create_task, delete, end_of, phase, until

from gpu_runbooks.activities.evidence.evidence import Evidence
from gpu_runbooks.activities.evidence.examination import examine_node
from gpu_runbooks.activities.model.node_task import ExamineNode
from gpu_runbooks.activities.names import HEALTHY_CONDITION
from gpu_runbooks.activities.nodes.node import identity_of
from gpu_runbooks.workers.node_agent import agent
from gpu_runbooks.workers.settings import Settings
from testbed import gpu_allocations
from testbed.control_plane import NAMESPACE
from testbed.gpus import ResetAnswer, change_gpu, change_node, environment, healthy_gpus, read_state

POD = "0f7a3c52-9d7e-4a52-8a3b-0d7c5f1b2e64"
XID = "NVRM: Xid (PCI:0000:86:00): 79, GPU has fallen off the bus."

AGENT = """
import asyncio, signal
from gpu_runbooks.workers.node_agent import agent
from gpu_runbooks.workers.settings import Settings

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await agent.run(Settings(), stop)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
async def own(control_plane, admin):
    async with agent_node(control_plane, admin, "agent-process") as node:
        yield node


@pytest.fixture
def start(own, state, sysfs, proc, boot_id_file, kernel_log, kubelet):
    """Starts an agent as a cluster would, with the library found by its name; it is gone with the context."""
    boot_id_file.write_text(own.boot_id)
    variables = {
        **os.environ,
        **environment(state),
        "KUBECONFIG": str(own.kubeconfig),
        "GPU_RUNBOOKS_NODE_NAME": own.name,
        "GPU_RUNBOOKS_SYSFS": str(sysfs),
        "GPU_RUNBOOKS_PROC": str(proc),
        "GPU_RUNBOOKS_KERNEL_LOG": str(kernel_log),
        "GPU_RUNBOOKS_BOOT_ID_FILE": str(boot_id_file),
        "GPU_RUNBOOKS_KUBELET": str(kubelet),
        "GPU_RUNBOOKS_DCGM_COMMAND": "",
        "GPU_RUNBOOKS_AGENT_LOCK": str(boot_id_file.with_name("agent.lock")),
    }

    @asynccontextmanager
    async def started():
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", AGENT, env=variables)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    return started


async def test_killed_in_a_reset_it_does_not_reset_again(admin, own, start, state, kernel_log):
    change_gpu(state, 3, recovery_action=1)
    change_node(state, reset=ResetAnswer.HANG)
    incident = f"incident={quote(f'node/test/{own.name}', '/')}"
    async with start() as first:
        task = await create_task(admin, own, gpuUUID=healthy_gpus()[3].uuid)
        running = f"metadata.name={task['metadata']['name']}"
        await until(admin, TASKS, running, lambda seen: phase(seen) == "Running")
        async with asyncio.timeout(60):
            while read_state(state).resets == 0:
                await asyncio.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        await first.wait()
    # The driver finishes what it was asked, whoever asked is gone.
    change_gpu(state, 3, recovery_action=0)
    change_node(state, reset=ResetAnswer.DONE)
    async with start():
        status = await end_of(admin, task)
    assert status["phase"] == "Succeeded"
    assert "an earlier start of this agent began the reset" in status["message"]
    assert read_state(state).resets == 1
    assert read_state(state).gpus[3].persistence == 1
    before, after = kernel_log.read_text().splitlines()
    assert "phase=before" in before
    assert "phase=after" in after
    assert incident in before
    assert incident in after
    await delete(admin, f"{TASKS}/{task['metadata']['name']}")


async def test_it_reports_health_and_ends_when_asked(admin, own, start, state):
    change_gpu(state, 5, remap_failed=1)

    def reported(node):
        return condition(node, HEALTHY_CONDITION).get("reason") == "RowRemapFailed"

    async with start() as process:
        await until(admin, "/api/v1/nodes", f"metadata.name={own.name}", reported)
        process.terminate()
        async with asyncio.timeout(60):
            assert await process.wait() == 0


async def test_it_ends_when_asked_while_the_driver_hangs(admin, own, start, state):
    change_node(state, hang=("nvmlInitWithFlags",))

    def reported(node):
        return condition(node, HEALTHY_CONDITION).get("reason") == "DriverUnresponsive"

    async with start() as process:
        await until(admin, "/api/v1/nodes", f"metadata.name={own.name}", reported)
        process.terminate()
        async with asyncio.timeout(60):
            assert await process.wait() == 0


async def test_it_brings_the_evidence_for_an_examination(
    control_plane, own, start, state, kubelet, kernel_log, tmp_path
):
    """The real agent and the real activity, each with its own rights."""
    change_gpu(state, 3, recovery_action=1)
    gpu_allocations.allocate(kubelet, healthy_gpus()[3].uuid, POD)
    kernel_log.write_text(f"3,1,{time.monotonic_ns() // 1000},-;{XID}\n")
    request = ExamineNode(
        identity=identity_of(own.node),
        incident=f"node/test/{own.name}",
        run_id="run-1",
        attempt=1,
        reason="before reset",
        start_deadline=datetime.now(UTC) + timedelta(seconds=60),
        deadline=datetime.now(UTC) + timedelta(seconds=180),
    )
    await control_plane.grant("cluster-worker")
    async with start(), control_plane.client("cluster-worker") as kubernetes:
        examined = await examine_node(
            kubernetes, NAMESPACE, Evidence.at(f"file://{tmp_path}/evidence"), request
        )
    assert examined.missing == ()
    gpu = examined.facts.gpus[3]
    assert (gpu.recovery_action, gpu.allocated_pod_uids) == (1, (POD,))
    assert gpu.serial == healthy_gpus()[3].serial
    (file,) = tmp_path.glob(f"evidence/node/test/{own.name}/run-1/evidence-before-1-*.json")
    assert XID in json.loads(file.read_text())["agent"]["kernel_log"]["text"]


async def test_without_a_node_name_it_says_what_is_missing(monkeypatch):
    monkeypatch.delenv("GPU_RUNBOOKS_NODE_NAME", raising=False)
    with pytest.raises(ValueError, match="GPU_RUNBOOKS_NODE_NAME is not set"):
        await agent.run(Settings(), asyncio.Event())


async def test_it_does_not_carry_the_clients_that_it_does_not_use():
    """Each would cost 13 MiB and more, on every node of a fleet."""
    names = "temporalio boto3 rich"
    imports = "import sys; from gpu_runbooks.workers.node_agent import agent"
    check = f"{imports}; print(set({names.split()}) & set(sys.modules))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", check, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert output.decode().strip() == "set()"
