"""The tasks Collect and Reboot on a real API server, with real tools and a real process in init's place."""

import asyncio
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from node_agent.cluster import TASKS, agent_node, create_task, delete, end_of, write_status

from gpu_runbooks.activities.model.node_task import HardwareFacts
from gpu_runbooks.workers.node_agent import collection
from gpu_runbooks.workers.node_agent.collection import Collector
from gpu_runbooks.workers.node_agent.nvidia_smi import ResetTool
from gpu_runbooks.workers.node_agent.probe import Probe
from gpu_runbooks.workers.node_agent.reboot import REBOOT, Init
from gpu_runbooks.workers.node_agent.reset import Resetter
from gpu_runbooks.workers.node_agent.tasks import TaskLoop
from testbed.control_plane import NAMESPACE
from testbed.gpus import change_gpu, change_node

XID = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."

INIT = """
import signal, sys
def note(number, _):
    with open(sys.argv[1], "a") as file:
        file.write(f"{number}\\n")
signal.signal(int(sys.argv[2]), note)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
async def own(control_plane, admin):
    async with agent_node(control_plane, admin, "collect-and-reboot") as node:
        yield node


@pytest.fixture
def kernel_log(tmp_path):
    path = tmp_path / "kmsg"
    path.write_text(f"3,1,{int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1_000_000)},-;{XID}\n")
    return path


@pytest.fixture
def start(control_plane, own, nvml, boot_id_file, kernel_log, proc):
    """Starts the task loop of an agent; it ends with the context."""
    boot_id_file.write_text(own.boot_id)
    probe = Probe(nvml, limit=4)

    @asynccontextmanager
    async def started(dcgm="", init_pid=2**30):
        async with control_plane.client(own.identity) as kubernetes:
            loop = TaskLoop(
                kubernetes,
                namespace=NAMESPACE,
                node=own.name,
                boot_id_file=boot_id_file,
                probe=probe,
                resetter=Resetter(probe, ResetTool(), proc=proc, kernel_log=kernel_log),
                collector=Collector(kernel_log, dcgm),
                init=Init(Path("/proc"), init_pid),
                lock=proc.with_name("agent.lock"),
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


@pytest.fixture
def dcgm(tmp_path):
    """Makes a program in DCGM's place."""

    def make(script):
        program = tmp_path / "dcgmi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return f"{program} health --check --json"

    return make


@pytest.fixture
def init(tmp_path):
    """Starts a process in init's place that notes the signal for a reboot. Gives its pid and the notes."""

    @asynccontextmanager
    async def started(name="systemd"):
        program = tmp_path / name
        program.write_text(f"#!{sys.executable}\n{INIT}")
        program.chmod(0o755)
        notes = tmp_path / "signals"
        notes.touch()
        process = await asyncio.create_subprocess_exec(
            program, str(notes), str(int(REBOOT)), stdout=asyncio.subprocess.PIPE
        )
        try:
            assert await process.stdout.readline() == b"ready\n"
            yield process.pid, notes
        finally:
            process.kill()
            await process.communicate()

    return started


# --- Collect --------------------------------------------------------------------------------------------


async def test_it_brings_facts_kernel_log_and_dcgm(admin, own, start, dcgm, nvml):
    measured = nvml.measure().facts
    async with start(dcgm('echo "{\\"asked\\": \\"$*\\"}"')):
        status = await end_of(admin, await create_task(admin, own, "Collect"))
    assert status["phase"] == "Succeeded"
    assert HardwareFacts.model_validate(status["facts"]) == measured
    assert XID in status["kernelLog"]["text"]
    assert status["kernelLog"]["note"] == ""
    assert status["dcgm"] == {"text": '{"asked": "health --check --json"}', "note": ""}


async def test_a_sick_node_is_collected_from_as_well(admin, own, start, state):
    change_gpu(state, 3, remap_failed=1)
    async with start():
        status = await end_of(admin, await create_task(admin, own, "Collect"))
    assert (status["phase"], status["message"].split(":")[0]) == ("Succeeded", "RowRemapFailed")
    assert status["facts"]["gpus"][3]["remapFailed"] is True


async def test_a_hung_driver_keeps_back_only_its_own_part(admin, own, start, state, dcgm):
    change_node(state, hang=("nvmlDeviceGetCount_v2",))
    async with start(dcgm("echo fine")):
        status = await end_of(admin, await create_task(admin, own, "Collect"))
    change_node(state, hang=())
    assert status["phase"] == "Succeeded"
    assert "no answer from the driver" in status["message"]
    assert "facts" not in status
    assert XID in status["kernelLog"]["text"]
    assert status["dcgm"]["text"] == "fine"


async def test_a_kernel_log_that_cannot_be_read_is_said_to_be(admin, own, start, kernel_log):
    kernel_log.unlink()
    async with start():
        status = await end_of(admin, await create_task(admin, own, "Collect"))
    assert status["kernelLog"]["text"] == ""
    assert "cannot be read: No such file" in status["kernelLog"]["note"]
    assert len(status["facts"]["gpus"]) == 8
    assert "dcgm" not in status


@pytest.mark.parametrize(
    ("script", "text", "note"),
    [
        ("echo no host engine; exit 3", "no host engine", "ended with exit code 3"),
        (r"printf 'a\033[2J\377\000b'", r"a\x1b[2J\xff\x00b", ""),
        ("head -c 100000 /dev/zero | tr '\\0' x", "x" * 16384, "only the first 16 KiB are kept"),
        ("exec sleep 3600", "", "did not end within 0.5 s"),
    ],
)
async def test_whatever_dcgm_does_its_part_is_bounded_and_plain(
    admin, own, start, dcgm, monkeypatch, script, text, note
):
    if "sleep" in script:
        monkeypatch.setattr(collection, "DCGM_LIMIT", 0.5)
    async with start(dcgm(script)):
        status = await end_of(admin, await create_task(admin, own, "Collect"))
    assert status["dcgm"]["text"] == text
    assert note in status["dcgm"]["note"]
    assert XID in status["kernelLog"]["text"]


async def test_five_mebibytes_of_binary_log_end_within_the_bounds_of_the_server(
    admin, own, start, kernel_log
):
    kernel_log.write_bytes(os.urandom(5 * 1024 * 1024) + b"\n" + kernel_log.read_bytes())
    async with start():
        status = await end_of(admin, await create_task(admin, own, "Collect"))
    assert len(status["kernelLog"]["text"].encode()) <= 64 * 1024
    assert XID in status["kernelLog"]["text"]
    assert "4 MiB" in status["kernelLog"]["note"]


# --- Reboot -----------------------------------------------------------------------------------------------


async def test_init_is_asked_once(admin, own, start, init):
    async with init() as (pid, notes), start(init_pid=pid):
        status = await end_of(admin, await create_task(admin, own, "Reboot"))
        async with asyncio.timeout(10):
            while not notes.read_text():
                await asyncio.sleep(0.02)
    assert status["phase"] == "Succeeded"
    assert "the proof is another boot id" in status["message"]
    assert notes.read_text().split() == [str(int(signal.SIGRTMIN + 5))]


async def test_what_an_earlier_start_began_is_not_asked_again(admin, own, start, init):
    task = await create_task(admin, own, "Reboot")
    await write_status(admin, task, {"phase": "Running", "startedAt": "2026-03-01T12:00:00Z"})
    async with init() as (pid, notes), start(init_pid=pid):
        status = await end_of(admin, task)
    assert status["phase"] == "Failed"
    assert "whether init was asked is unknown, and it is not asked again" in status["message"]
    assert notes.read_text() == ""


async def test_a_reboot_of_an_earlier_boot_is_not_asked_for(admin, own, start, init):
    async with init() as (pid, notes), start(init_pid=pid):
        status = await end_of(admin, await create_task(admin, own, "Reboot", bootID="an-earlier-boot"))
    assert status["phase"] == "Failed"
    assert notes.read_text() == ""


async def test_another_init_is_not_sent_a_signal_that_means_something_else(admin, own, start, init):
    async with init("runit") as (pid, notes), start(init_pid=pid):
        status = await end_of(admin, await create_task(admin, own, "Reboot"))
    assert status["phase"] == "Failed"
    assert "is runit, not systemd, so nothing was asked" in status["message"]
    assert "reboot: ec2" in status["message"]
    assert notes.read_text() == ""


async def test_an_init_that_cannot_be_seen_is_said_to_be(admin, own, start):
    async with start():
        status = await end_of(admin, await create_task(admin, own, "Reboot"))
    assert status["phase"] == "Failed"
    assert "who init is cannot be read" in status["message"]
