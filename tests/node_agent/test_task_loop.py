"""NodeTasks on a real API server, worked on with the agent's own bound token and simulated GPUs."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from node_agent.cluster import (
    TASKS,
    agent_node,
    create_task,
    delete,
    end_of,
    new_task,
    phase,
    until,
    write_status,
)

from gpu_runbooks.activities.model.node_task import HardwareFacts
from gpu_runbooks.workers.node_agent.collection import Collector
from gpu_runbooks.workers.node_agent.device_settings import read_settings
from gpu_runbooks.workers.node_agent.node_lock import node_lock
from gpu_runbooks.workers.node_agent.nvidia_smi import ResetTool
from gpu_runbooks.workers.node_agent.probe import Probe
from gpu_runbooks.workers.node_agent.reboot import Init
from gpu_runbooks.workers.node_agent.reset import Limits, Resetter
from gpu_runbooks.workers.node_agent.tasks import TaskLoop
from testbed.control_plane import NAMESPACE
from testbed.gpu_processes import hold
from testbed.gpus import (
    GpuInstance,
    Part,
    Refuses,
    ResetAnswer,
    change_gpu,
    change_node,
    healthy_gpus,
    read_state,
)

SICK = 3
POD = "0f7a3c52-9d7e-4a52-8a3b-0d7c5f1b2e64"
UUID = healthy_gpus()[SICK].uuid
LIMITS = Limits(tool=6, shortest=0, release=0, settle=0, pause=0.05, before_retry=0)
GEOMETRY = (
    GpuInstance(Part(9, 0, 4), (Part(0, 0, 1), Part(1, 1, 2))),
    GpuInstance(Part(14, 4, 2), (Part(1, 0, 2),)),
)


@pytest.fixture(scope="module")
async def own(control_plane, admin):
    async with agent_node(control_plane, admin, "task-loop") as node:
        yield node


@pytest.fixture
def probe(nvml):
    return Probe(nvml, limit=4)


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "agent.lock"


@pytest.fixture
def start(control_plane, own, probe, boot_id_file, proc, kernel_log, lock):
    """Starts the task loop of an agent; it ends with the context."""
    boot_id_file.write_text(own.boot_id)

    @asynccontextmanager
    async def started():
        async with control_plane.client(own.identity) as kubernetes:
            loop = TaskLoop(
                kubernetes,
                namespace=NAMESPACE,
                node=own.name,
                boot_id_file=boot_id_file,
                probe=probe,
                resetter=Resetter(probe, ResetTool(), proc=proc, kernel_log=kernel_log, limits=LIMITS),
                collector=Collector(proc / "no-kernel-log", ""),
                init=Init(proc),
                lock=lock,
            )
            async with asyncio.TaskGroup() as group:
                running = group.create_task(loop.run())
                yield
                running.cancel()

    return started


@pytest.fixture(autouse=True)
async def no_tasks_left(admin):
    yield
    for task in await admin.items(TASKS):
        await delete(admin, f"{TASKS}/{task['metadata']['name']}")


async def test_a_reset_ends_with_proof_and_facts(admin, own, start, state):
    change_gpu(state, SICK, recovery_action=1, ecc_uncorrected=2)
    async with start():
        status = await end_of(admin, await create_task(admin, own, gpuUUID=UUID))
    assert status["phase"] == "Succeeded"
    assert "no recovery action" in status["message"]
    assert status["startedAt"] <= status["finishedAt"]
    facts = HardwareFacts.model_validate(status["facts"])
    assert facts.boot_id == own.boot_id
    assert (facts.gpus[SICK].recovery_action, facts.gpus[SICK].ecc_uncorrected) == (0, 0)
    assert status["outcome"] == "done"
    assert read_state(state).resets == 1
    assert [gpu.persistence for gpu in read_state(state).gpus] == [1] * 8


@pytest.mark.parametrize(
    ("answer", "word", "calls"),
    [
        (ResetAnswer.BUSY, "busy", 2),
        (ResetAnswer.NEEDS_PEERS, "needs-peers", 1),
        (ResetAnswer.NOTHING, "unverified", 1),
        (ResetAnswer.HANG, "driver-unresponsive", 1),
    ],
)
async def test_a_reset_without_effect_fails_with_its_class(admin, own, start, state, answer, word, calls):
    change_gpu(state, SICK, recovery_action=1)
    change_node(state, reset=answer)
    async with start():
        status = await end_of(admin, await create_task(admin, own, gpuUUID=UUID))
    assert status["phase"] == "Failed"
    assert status["message"].startswith(word)
    assert status["outcome"] == word
    assert read_state(state).resets == calls


async def test_a_validation_reports_all_that_was_measured(admin, own, start, nvml):
    measured = nvml.measure().facts
    async with start():
        status = await end_of(admin, await create_task(admin, own, "Measure"))
    assert status["phase"] == "Succeeded"
    assert HardwareFacts.model_validate(status["facts"]) == measured


async def test_a_validation_of_a_sick_gpu_fails_with_the_facts(admin, own, start, state, proc):
    change_gpu(state, SICK, remap_failed=1)
    hold(state, proc, UUID, POD)
    async with start():
        status = await end_of(admin, await create_task(admin, own, "Measure"))
    assert status["phase"] == "Failed"
    assert status["message"].startswith("RowRemapFailed")
    gpu = HardwareFacts.model_validate(status["facts"]).gpus[SICK]
    assert gpu.remap_failed is True
    assert (gpu.processes, gpu.pod_uids, gpu.host_processes) == (1, (POD,), 0)


async def test_a_hung_driver_fails_validation_and_reset_without_facts(admin, own, start, state):
    change_node(state, hang=("nvmlDeviceGetCount_v2",))
    async with start():
        for kind in ("Measure", "ResetGPU"):
            status = await end_of(admin, await create_task(admin, own, kind))
            assert status["phase"] == "Failed"
            assert "driver" in status["message"]
            assert "facts" not in status
    assert read_state(state).resets == 0
    change_node(state, hang=())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bootID": "another-boot"}, "for boot another-boot"),
        ({"startDeadline": "2026-01-01T00:00:00Z"}, "had to be started by"),
        ({"deadline": "2026-01-01T00:00:00Z"}, "has passed"),
    ],
)
async def test_a_task_of_another_boot_or_time_is_refused(admin, own, start, state, changes, words):
    async with start():
        status = await end_of(admin, await create_task(admin, own, **changes))
    assert status["phase"] == "Failed"
    assert words in status["message"]
    assert read_state(state).resets == 0


async def test_a_task_for_the_earlier_node_of_this_name_is_not_touched(admin, own, start, state):
    stale = await create_task(admin, own, nodeUID="00000000-0000-4000-8000-000000000000")
    async with start():
        await end_of(admin, await create_task(admin, own, "Measure"))
    # The policy lets no agent answer for another UID, so the task just never starts.
    assert "status" not in await admin.request("GET", f"{TASKS}/{stale['metadata']['name']}")
    assert read_state(state).resets == 0


async def test_a_held_gpu_is_not_reset(admin, own, start, state):
    change_gpu(state, SICK, recovery_action=1, pids=(4711,))
    async with start():
        status = await end_of(admin, await create_task(admin, own, gpuUUID=UUID))
    assert status["phase"] == "Failed"
    assert status["message"].startswith(f"busy: GPU 3 ({UUID}) is held by pid 4711 (command unknown, no pod)")
    assert status["outcome"] == "busy"
    assert read_state(state).resets == 0


async def test_a_gpu_whose_settings_cannot_be_read_is_not_reset(admin, own, start, state):
    change_gpu(state, SICK, recovery_action=1, mig=1, instances=Refuses(999))
    async with start():
        status = await end_of(admin, await create_task(admin, own, gpuUUID=UUID))
    assert status["outcome"] == "unverified"
    assert "the MIG geometry" in status["message"]
    assert "nothing was reset" in status["message"]
    assert read_state(state).resets == 0


async def test_what_has_to_be_restored_is_noted_before_the_reset(admin, own, start, state):
    change_gpu(state, SICK, recovery_action=1, mig=1, instances=GEOMETRY)
    change_node(state, reset=ResetAnswer.HANG)
    async with start():
        task = await create_task(admin, own, gpuUUID=UUID)
        running = f"metadata.name={task['metadata']['name']}"
        noted = (await until(admin, TASKS, running, lambda seen: phase(seen) == "Running"))["status"]
        await end_of(admin, task)
    (note,) = noted["restore"]
    assert (note["uuid"], note["persistence"]) == (UUID, True)
    assert note["mig"][1] == {
        "profile": 14,
        "start": 4,
        "size": 2,
        "compute": [{"profile": 1, "start": 0, "size": 2}],
    }


# --- another agent on the same node ----------------------------------------------------------------------


async def test_a_task_that_acts_is_left_alone_while_another_agent_acts(
    admin, own, start, state, lock, caplog
):
    change_gpu(state, SICK, recovery_action=1)
    async with start():
        with node_lock(lock):
            reset = await create_task(admin, own, gpuUUID=UUID)
            await end_of(admin, await create_task(admin, own, "Measure"))
            assert "status" not in await admin.request("GET", f"{TASKS}/{reset['metadata']['name']}")
            assert read_state(state).resets == 0
            assert "another agent of this node holds" in caplog.text
        status = await end_of(admin, reset)
    assert status["outcome"] == "done"
    assert read_state(state).resets == 1


async def test_two_agents_of_one_node_reset_once(admin, own, start, state):
    change_gpu(state, SICK, recovery_action=1)
    async with start(), start():
        status = await end_of(admin, await create_task(admin, own, gpuUUID=UUID))
        await end_of(admin, await create_task(admin, own, "Measure"))
    assert status["outcome"] == "done"
    assert read_state(state).resets == 1


async def test_what_another_agent_began_since_the_last_look_is_not_begun_again(
    admin, own, start, state, nvml
):
    change_gpu(state, SICK, recovery_action=1)
    facts = nvml.measure().facts.model_dump(mode="json", by_alias=True, exclude_none=True)
    change_node(state, hang=("nvmlDeviceGetCount_v2",))
    tasks = new_task(own, "Measure"), new_task(own, gpuUUID=UUID)
    for task, name in zip(tasks, ("a-measure", "b-reset"), strict=True):  # worked on in this order
        task["metadata"] = {"name": name}
        await admin.request("POST", TASKS, body=task)
    async with start():
        # One view has both: while the first hangs in the driver, the second gets old.
        await until(admin, TASKS, "metadata.name=a-measure", lambda seen: phase(seen) == "Running")
        begun = {"phase": "Running", "startedAt": "2026-03-01T12:00:00Z", "facts": facts}
        await write_status(admin, tasks[1], begun)
        change_node(state, hang=())
        status = await end_of(admin, tasks[1])
    assert "an earlier start of this agent began the reset" in status["message"]
    assert read_state(state).resets == 0


async def test_without_a_lock_nothing_is_done(admin, own, start, state, lock, caplog):
    lock.mkdir()
    async with start():
        reset = await create_task(admin, own, gpuUUID=UUID)
        await end_of(admin, await create_task(admin, own, "Measure"))
        async with asyncio.timeout(60):
            while "GPU_RUNBOOKS_AGENT_LOCK" not in caplog.text:
                await asyncio.sleep(0.05)
    assert "status" not in await admin.request("GET", f"{TASKS}/{reset['metadata']['name']}")
    assert read_state(state).resets == 0


# --- a task that an earlier start of the agent began ----------------------------------------------------


async def begun(admin, own, facts, settings=(), kind="ResetGPU", **changes):
    """A task as an agent leaves it that dies after it wrote that it begins."""
    task = await create_task(admin, own, kind, **changes)
    status = {"phase": "Running", "startedAt": "2026-03-01T12:00:00Z"}
    if facts is not None:
        status["facts"] = facts.model_dump(mode="json", by_alias=True, exclude_none=True)
    status["restore"] = [
        setting.model_dump(mode="json", by_alias=True, exclude_none=True) for setting in settings
    ]
    return await write_status(admin, task, status)


async def test_a_begun_reset_is_judged_by_its_effect_and_not_done_again(admin, own, start, state, nvml):
    change_gpu(state, SICK, recovery_action=1)
    task = await begun(admin, own, nvml.measure().facts, gpuUUID=UUID)
    change_gpu(state, SICK, recovery_action=0)
    async with start():
        status = await end_of(admin, task)
    assert status["phase"] == "Succeeded"
    assert "an earlier start of this agent began the reset" in status["message"]
    assert read_state(state).resets == 0


async def test_a_begun_reset_without_effect_fails_and_is_not_done_again(admin, own, start, state, nvml):
    change_gpu(state, SICK, recovery_action=1)
    task = await begun(admin, own, nvml.measure().facts, gpuUUID=UUID)
    async with start():
        status = await end_of(admin, task)
    assert status["phase"] == "Failed"
    assert "still asks for GPU reset" in status["message"]
    assert read_state(state).resets == 0


@pytest.mark.parametrize("noted", [True, False])
async def test_a_begun_reset_that_nothing_can_show_is_no_success(admin, own, start, state, nvml, noted):
    task = await begun(admin, own, nvml.measure().facts if noted else None, gpuUUID=UUID)
    async with start():
        status = await end_of(admin, task)
    assert status["phase"] == "Failed"
    assert "unverified" in status["message"]
    assert read_state(state).resets == 0


async def test_what_a_begun_reset_took_is_restored_even_late(admin, own, start, state, nvml, kernel_log):
    change_gpu(state, SICK, recovery_action=1, mig=1, instances=GEOMETRY)
    settings = nvml.within(lambda: read_settings([UUID]))
    late = {"startDeadline": "2026-03-01T12:00:00Z", "deadline": "2026-03-01T12:10:00Z"}
    task = await begun(admin, own, nvml.measure().facts, settings, gpuUUID=UUID, **late)
    change_gpu(state, SICK, recovery_action=0, persistence=0, instances=())
    async with start():
        status = await end_of(admin, task)
    assert status["outcome"] == "done"
    restored = read_state(state)
    assert (restored.gpus[SICK].persistence, restored.gpus[SICK].instances) == (1, GEOMETRY)
    assert restored.resets == 0
    assert "phase=after" in kernel_log.read_text()


async def test_a_begun_validation_is_done_again(admin, own, start):
    task = await begun(admin, own, None, kind="Measure")
    async with start():
        assert (await end_of(admin, task))["phase"] == "Succeeded"


async def test_unknown_facts_replace_those_of_before(admin, own, start, sysfs, nvml):
    task = await begun(admin, own, nvml.measure().facts, kind="Measure")
    sysfs.rename(sysfs.with_name("gone"))
    async with start():
        status = await end_of(admin, task)
    assert "efaInterfaces" not in status["facts"]
    assert len(status["facts"]["gpus"]) == 8
