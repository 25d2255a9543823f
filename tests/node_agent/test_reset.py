"""The reset on simulated GPUs: refused, carried out, and believed only when NVML shows it."""

import asyncio
import os
import time
from dataclasses import replace

import pytest

from gpu_runbooks.activities.kernel_log.marker import Marker, Phase, read_marker
from gpu_runbooks.activities.model.node_task import HardwareFacts, ResetOutcome
from gpu_runbooks.workers.node_agent.nvidia_smi import ResetTool
from gpu_runbooks.workers.node_agent.probe import Probe
from gpu_runbooks.workers.node_agent.reset import Limits, Resetter
from gpu_runbooks.workers.node_agent.reset_proof import Target, shortcomings
from gpu_runbooks.workers.node_agent.reset_refusal import ResetReport, refusal
from testbed.gpu_processes import FABRIC_MANAGER_PID, end_process, hold, open_device
from testbed.gpus import (
    GpuInstance,
    Part,
    Presence,
    Refuses,
    ResetAnswer,
    change_gpu,
    change_node,
    healthy_gpus,
    read_state,
)

SICK = 3
UUID = healthy_gpus()[SICK].uuid
ADDRESS = healthy_gpus()[SICK].pci_address
EVERYTHING = Target()
INCIDENT = "node/prod/ip-10-0-0-1"
POD = "0f7a3c52-9d7e-4a52-8a3b-0d7c5f1b2e64"
GEOMETRY = (
    GpuInstance(Part(9, 0, 4), (Part(0, 0, 1), Part(1, 1, 2))),
    GpuInstance(Part(14, 4, 2), (Part(1, 0, 2),)),
)
QUICK = Limits(tool=20, shortest=0, release=0, settle=0, pause=0.02, before_retry=0)


@pytest.fixture
def probe(nvml):
    return Probe(nvml)


@pytest.fixture
def make(probe, proc, kernel_log):
    """Makes a resetter of this node."""

    def made(tool=None, limits=QUICK, probe=probe):
        return Resetter(probe, tool or ResetTool(), proc=proc, kernel_log=kernel_log, limits=limits)

    return made


@pytest.fixture
def resetter(make):
    return make()


async def reset(resetter, probe, target, *, limit=60):
    """As the task loop does it, without the note in between."""
    before = await probe.measure()
    if refused := refusal(target, before):
        return refused
    settings = await resetter.read_settings(target, before)
    if isinstance(settings, ResetReport):
        return settings
    return await resetter.carry_out(
        target, before.facts, settings, incident=INCIDENT, gpus_expected=8, limit=limit
    )


@pytest.mark.parametrize("target", [Target(UUID, ADDRESS), Target(UUID), Target(None, ADDRESS), EVERYTHING])
async def test_a_reset_is_done_when_the_fault_is_gone(resetter, probe, state, target):
    change_gpu(state, SICK, recovery_action=1, remap_pending=1, ecc_uncorrected=2)
    report = await reset(resetter, probe, target)
    assert report.outcome is ResetOutcome.DONE
    assert report.facts.gpus[SICK].recovery_action == 0
    assert read_state(state).resets == 1


async def test_only_the_named_gpu_is_reset(resetter, probe, state):
    change_gpu(state, SICK, recovery_action=1)
    change_gpu(state, 0, recovery_action=1)
    report = await reset(resetter, probe, Target(UUID))
    assert report.outcome is ResetOutcome.DONE
    assert [gpu.recovery_action for gpu in report.facts.gpus] == [1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("answer", "outcome", "calls"),
    [
        (ResetAnswer.BUSY, ResetOutcome.BUSY, 2),
        (ResetAnswer.BUSY_ONCE, ResetOutcome.DONE, 2),
        (ResetAnswer.NEEDS_PEERS, ResetOutcome.NEEDS_PEERS, 1),
        (ResetAnswer.UNSUPPORTED, ResetOutcome.UNSUPPORTED, 1),
        (ResetAnswer.LOST, ResetOutcome.LOST, 1),
        (ResetAnswer.NOTHING, ResetOutcome.UNVERIFIED, 1),
        (ResetAnswer.VANISH, ResetOutcome.UNVERIFIED, 1),
    ],
)
async def test_each_answer_has_its_outcome_and_only_busy_is_asked_once_more(
    resetter, probe, state, answer, outcome, calls
):
    change_gpu(state, SICK, recovery_action=1)
    change_node(state, reset=answer)
    report = await reset(resetter, probe, Target(UUID))
    assert report.outcome is outcome
    assert read_state(state).resets == calls
    # On every way out persistence mode is what it was.
    assert {gpu.persistence for gpu in read_state(state).gpus if gpu.presence == Presence.PRESENT} == {1}


async def test_an_answer_that_some_were_reset_is_never_followed_by_another_call(make, probe, tmp_path, state):
    calls = tmp_path / "calls"
    answer = "GPU A was successfully reset.\\nGPU B: In use by another client"
    mixed = f"echo called >> {calls}; printf '{answer}'; exit 255"
    report = await reset(make(ResetTool(["sh", "-c", mixed, "nvidia-smi"])), probe, EVERYTHING)
    assert report.outcome is ResetOutcome.BUSY
    assert calls.read_text().splitlines() == ["called"]


@pytest.mark.parametrize("sign", [{"remap_pending": 1}, {"ecc_uncorrected": 4}, {"recovery_action": 4}])
async def test_each_thing_that_a_reset_clears_must_be_cleared(resetter, probe, state, sign):
    change_gpu(state, SICK, **sign)
    change_node(state, reset=ResetAnswer.NOTHING)
    assert (await reset(resetter, probe, Target(UUID))).outcome is ResetOutcome.UNVERIFIED


async def test_a_silent_success_without_effect_is_not_believed(make, probe, state):
    change_gpu(state, SICK, recovery_action=1)
    report = await reset(make(ResetTool(["true"])), probe, Target(UUID))
    assert report.outcome is ResetOutcome.UNVERIFIED
    assert "still asks for GPU reset" in report.message


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ({"nvlinks": None, "nvlinks_active": None}, "does not tell of its NVLinks any more"),
        ({"ecc_uncorrected": None}, "does not say its uncorrected errors"),
        ({"ecc_uncorrected": 1}, "counts 1 uncorrected errors"),
        ({"remap_failed": True}, "could not remap"),
    ],
)
async def test_what_a_gpu_does_not_say_any_more_is_no_proof(probe, left, told):
    """Each answer that it gave before the reset, it has to give after it."""
    after = await probe.measure()
    before = after.facts
    gpus = list(after.facts.gpus)
    gpus[SICK] = gpus[SICK].model_copy(update=left)
    after = replace(after, facts=before.model_copy(update={"gpus": tuple(gpus)}))
    (missing,) = shortcomings(Target(UUID), before, after, 8)
    assert told in missing


@pytest.mark.parametrize(
    ("fabric", "word"), [(2, "in progress"), (1, "not started"), (Refuses(999), "unknown")]
)
async def test_a_gpu_that_does_not_rejoin_the_fabric_is_not_proven(resetter, probe, state, fabric, word):
    change_gpu(state, SICK, recovery_action=1, fabric=fabric)
    report = await reset(resetter, probe, Target(UUID))
    assert report.outcome is ResetOutcome.UNVERIFIED
    assert f"its state there is {word}" in report.message


@pytest.mark.parametrize("fabric", [0, Refuses(3)])
async def test_a_gpu_without_fabric_needs_none(resetter, probe, state, fabric):
    change_gpu(state, SICK, recovery_action=1, fabric=fabric)
    assert (await reset(resetter, probe, Target(UUID))).outcome is ResetOutcome.DONE


async def test_a_hung_tool_is_given_up_in_time(make, probe, state):
    change_gpu(state, SICK, recovery_action=1)
    change_node(state, reset=ResetAnswer.HANG)
    report = await reset(make(limits=replace(QUICK, tool=1)), probe, Target(UUID))
    assert report.outcome is ResetOutcome.UNRESPONSIVE
    assert "not restored" in report.message
    assert read_state(state).gpus[SICK].recovery_action == 1


async def test_while_a_hung_tool_stays_nothing_more_is_tried(make, probe, state, monkeypatch):
    change_gpu(state, SICK, recovery_action=1)
    change_node(state, reset=ResetAnswer.HANG)
    tool = ResetTool()
    resetter = make(tool, replace(QUICK, tool=1, release=3600))
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda _group, _signal: None)  # as a process in the kernel's hands
        await reset(resetter, probe, Target(UUID))
    pid = tool.hung
    report = await reset(resetter, probe, Target(UUID))
    change_node(state, reset=ResetAnswer.DONE)
    tool._running.wait()
    assert report.outcome is ResetOutcome.UNRESPONSIVE
    assert f"nvidia-smi (pid {pid}) has not ended" in report.message
    assert read_state(state).resets == 1


async def test_with_too_little_time_left_the_tool_is_not_called(make, probe, state):
    change_gpu(state, SICK, recovery_action=1)
    report = await reset(make(limits=replace(QUICK, shortest=10, settle=20)), probe, Target(UUID), limit=25)
    assert report.outcome is ResetOutcome.UNKNOWN
    assert "nothing was reset" in report.message
    assert read_state(state).resets == 0
    assert read_state(state).gpus[SICK].persistence == 1


async def test_a_driver_that_lets_go_too_late_has_no_tool_called(make, nvml, state):
    """The tool would be killed in the middle of a reset."""

    class LetsGoLate:
        def __init__(self):
            self.measure, self.within = nvml.measure, nvml.within

        def close(self):
            time.sleep(2)
            nvml.close()

    change_gpu(state, SICK, recovery_action=1)
    probe = Probe(LetsGoLate())
    resetter = make(limits=replace(QUICK, shortest=1), probe=probe)
    report = await reset(resetter, probe, Target(UUID), limit=2.5)
    assert (report.outcome, read_state(state).resets) == (ResetOutcome.UNKNOWN, 0)
    assert "leaves no time" in report.message


async def test_a_driver_that_hangs_after_the_reset_is_no_success(make, nvml, state):
    hanging = f"nvidia-smi \"$@\"; sed -i '1i hang nvmlInitWithFlags' {state}"
    tool = ResetTool(["sh", "-c", hanging, "nvidia-smi"])
    probe = Probe(nvml, limit=1)
    report = await reset(make(tool, probe=probe), probe, Target(UUID))
    assert report.outcome is ResetOutcome.UNRESPONSIVE
    assert read_state(state).resets == 1
    change_node(state, hang=())


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"pids": (4711,)}, ResetOutcome.BUSY),
        ({"graphics_pids": (4711,)}, ResetOutcome.BUSY),
        ({"pids": Refuses(3)}, ResetOutcome.UNKNOWN),
        ({"minor": Refuses(999)}, ResetOutcome.UNKNOWN),
        ({"presence": Presence.LOST}, ResetOutcome.LOST),
        ({"presence": Presence.MISSING}, ResetOutcome.LOST),
        ({"virtualization": 2}, ResetOutcome.UNSUPPORTED),
        ({"architecture": 5}, ResetOutcome.NEEDS_PEERS),
        ({"mig": 1, "instances": Refuses(999)}, ResetOutcome.UNVERIFIED),
        ({"mig": Refuses(999)}, ResetOutcome.UNVERIFIED),
    ],
)
async def test_a_gpu_that_must_not_be_reset_is_left_alone(resetter, probe, state, changes, outcome):
    await probe.measure()
    change_gpu(state, SICK, recovery_action=1, **changes)
    report = await reset(resetter, probe, Target(UUID))
    assert report.outcome is outcome
    assert "nothing was reset" in report.message
    assert read_state(state).resets == 0
    if changes.get("presence") != Presence.MISSING:
        assert read_state(state).gpus[SICK].persistence == 1


async def test_without_the_fabric_manager_one_gpu_needs_its_peers_and_all_of_them_do_not(
    resetter, probe, state, proc
):
    end_process(state, proc, FABRIC_MANAGER_PID)
    change_gpu(state, SICK, recovery_action=1)
    alone = await reset(resetter, probe, Target(UUID))
    assert alone.outcome is ResetOutcome.NEEDS_PEERS
    assert read_state(state).resets == 0
    assert (await reset(resetter, probe, EVERYTHING)).outcome is ResetOutcome.DONE


async def test_all_gpus_before_ampere_are_reset_in_one_command(resetter, probe, state):
    for index in range(8):
        change_gpu(state, index, architecture=5, nvlink_remote=0, fabric=0)
    change_gpu(state, SICK, recovery_action=1)
    assert (await reset(resetter, probe, EVERYTHING)).outcome is ResetOutcome.DONE
    assert read_state(state).resets == 1


async def test_an_open_device_file_holds_a_gpu_that_nvml_calls_idle(resetter, probe, state, proc):
    pid = open_device(proc, f"/dev/nvidia{SICK}", POD, "dcgm-exporter")
    report = await reset(resetter, probe, Target(UUID))
    assert report.outcome is ResetOutcome.BUSY
    assert f"GPU 3 ({UUID}) is held by pid {pid} (dcgm-exporter, pod {POD})" in report.message
    assert read_state(state).resets == 0
    assert read_state(state).gpus[SICK].persistence == 1


async def test_a_service_that_is_being_stopped_is_waited_for(make, nvml, state, proc):
    pid = open_device(proc, f"/dev/nvidia{SICK}", POD, "dcgm-exporter")
    change_gpu(state, SICK, recovery_action=1)

    class GoneAtTheThirdLook(Probe):
        looks = 0

        async def measure(self):
            self.looks += 1
            if self.looks == 4:  # the first is for the note
                end_process(state, proc, pid)
            return await super().measure()

    probe = GoneAtTheThirdLook(nvml)
    report = await reset(make(limits=replace(QUICK, release=30), probe=probe), probe, Target(UUID))
    assert report.outcome is ResetOutcome.DONE
    assert probe.looks >= 4


async def test_mig_instances_end_with_the_reset_and_come_back(resetter, probe, state):
    change_gpu(state, SICK, recovery_action=1, remap_pending=1, mig=1, instances=GEOMETRY)
    report = await reset(resetter, probe, Target(UUID))
    assert report.outcome is ResetOutcome.DONE
    gpu = read_state(state).gpus[SICK]
    assert (gpu.mig, gpu.instances, gpu.persistence) == (1, GEOMETRY, 1)


async def test_a_reset_that_leaves_another_geometry_is_not_done(resetter, probe, state):
    change_gpu(state, SICK, recovery_action=1, mig=1, instances=GEOMETRY, create_instance=Refuses(23))
    report = await reset(resetter, probe, Target(UUID))
    assert report.outcome is ResetOutcome.UNVERIFIED
    assert f"MIG geometry of {UUID} is not restored" in report.message


async def test_all_gpus_are_not_reset_while_one_is_held(resetter, probe, state, proc):
    hold(state, proc, healthy_gpus()[7].uuid, None)
    assert (await reset(resetter, probe, EVERYTHING)).outcome is ResetOutcome.BUSY
    assert read_state(state).resets == 0


async def test_a_holder_of_another_gpu_is_no_obstacle(resetter, probe, state, proc):
    hold(state, proc, healthy_gpus()[7].uuid, POD)
    change_gpu(state, SICK, recovery_action=1)
    assert (await reset(resetter, probe, Target(UUID))).outcome is ResetOutcome.DONE


async def test_uuid_and_address_of_two_gpus_are_refused(resetter, probe, state):
    report = await reset(resetter, probe, Target(UUID, healthy_gpus()[0].pci_address))
    assert report.outcome is ResetOutcome.UNKNOWN
    assert read_state(state).resets == 0


async def test_an_unclear_answer_is_decided_by_the_proof(make, probe, state):
    unclear = make(ResetTool(["sh", "-c", 'nvidia-smi "$@" >/dev/null; exit 255', "nvidia-smi"]))
    change_gpu(state, SICK, recovery_action=1)
    assert (await reset(unclear, probe, Target(UUID))).outcome is ResetOutcome.DONE
    # Now there is nothing left whose going could show that anything was done.
    assert (await reset(unclear, probe, Target(UUID))).outcome is ResetOutcome.UNVERIFIED


async def test_fewer_gpus_than_the_type_has_are_no_proof(resetter, probe, state):
    change_gpu(state, 0, presence=Presence.MISSING)
    change_gpu(state, SICK, recovery_action=1)
    report = await reset(resetter, probe, Target(UUID))
    assert report.outcome is ResetOutcome.UNVERIFIED
    assert "7 of 8 GPUs" in report.message


async def test_the_kernel_log_tells_when_a_reset_of_ours_began_and_ended(resetter, probe, state, kernel_log):
    change_gpu(state, SICK, recovery_action=1)
    await reset(resetter, probe, Target(UUID))
    records = [line.removeprefix("<5>") for line in kernel_log.read_text().splitlines()]
    assert list(map(read_marker, records)) == [
        Marker(phase, INCIDENT, UUID, ADDRESS) for phase in (Phase.BEFORE, Phase.AFTER)
    ]
    await reset(resetter, probe, EVERYTHING)
    assert len(kernel_log.read_text().splitlines()) == 2 + 2 * 8


async def test_a_reset_that_was_not_tried_leaves_no_marker(resetter, probe, state, proc, kernel_log):
    hold(state, proc, UUID, POD)
    await reset(resetter, probe, Target(UUID))
    assert kernel_log.read_text() == ""


async def test_a_kernel_log_without_marker_is_told_and_stops_nothing(resetter, probe, state, kernel_log):
    kernel_log.unlink()
    change_gpu(state, SICK, recovery_action=1)
    report = await reset(resetter, probe, Target(UUID))
    assert report.outcome is ResetOutcome.DONE
    assert "the kernel log has no marker of this reset" in report.message.splitlines()[0]
    assert not kernel_log.exists()


async def test_the_gpu_may_take_a_moment_to_come_back(make, nvml, state):
    change_gpu(state, SICK, recovery_action=1)
    before = nvml.measure().facts
    change_gpu(state, SICK, recovery_action=0, presence=Presence.MISSING)

    class BackAtTheSecondLook(Probe):
        async def measure(self):
            measured = await super().measure()
            change_gpu(state, SICK, presence=Presence.PRESENT)
            return measured

    resetter = make(limits=replace(QUICK, settle=30), probe=BackAtTheSecondLook(nvml))
    report = await resetter.resume(Target(UUID), before, (), incident=INCIDENT, gpus_expected=8)
    assert report.outcome is ResetOutcome.DONE


async def test_an_nvidia_smi_that_an_earlier_start_left_at_work_is_waited_for(make, nvml, state, proc):
    change_gpu(state, SICK, recovery_action=1)
    before = nvml.measure().facts
    pid = open_device(proc, f"/dev/nvidia{SICK}", None, "nvidia-smi")

    class EndsTheTool(Probe):
        """Nothing may be asked of the driver before that nvidia-smi has ended."""

        async def measure(self):
            assert not (proc / str(pid)).exists()
            return await super().measure()

    async def end_soon():
        while read_state(state).gpus[SICK].recovery_action:
            await asyncio.sleep(0.05)
            change_gpu(state, SICK, recovery_action=0)
            end_process(state, proc, pid)

    resetter = make(probe=EndsTheTool(nvml))
    async with asyncio.TaskGroup() as group:
        group.create_task(end_soon())
        report = await resetter.resume(Target(UUID), before, (), incident=INCIDENT, gpus_expected=8)
    assert report.outcome is ResetOutcome.DONE
    assert read_state(state).resets == 0


async def test_nothing_known_of_before_proves_nothing(resetter):
    report = await resetter.resume(EVERYTHING, HardwareFacts(), (), incident=INCIDENT, gpus_expected=8)
    assert report.outcome is ResetOutcome.UNVERIFIED
