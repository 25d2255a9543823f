"""The agent as a process of its own, killed in the middle of a reset."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from urllib.parse import quote

import pytest
from node_agent.cluster import TASKS, agent_node, condition, create_task, delete, end_of, phase, until

from gpu_runbooks.activities.names import HEALTHY_CONDITION
from gpu_runbooks.workers.node_agent import agent
from gpu_runbooks.workers.settings import Settings
from testbed.gpus import ResetAnswer, change_gpu, change_node, environment, healthy_gpus, read_state

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
def start(own, state, sysfs, proc, boot_id_file, kernel_log):
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
        async with asyncio.timeout(30):
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
        async with asyncio.timeout(20):
            assert await process.wait() == 0


async def test_it_ends_when_asked_while_the_driver_hangs(admin, own, start, state):
    change_node(state, hang=("nvmlInitWithFlags",))

    def reported(node):
        return condition(node, HEALTHY_CONDITION).get("reason") == "DriverUnresponsive"

    async with start() as process:
        await until(admin, "/api/v1/nodes", f"metadata.name={own.name}", reported)
        process.terminate()
        async with asyncio.timeout(20):
            assert await process.wait() == 0


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
