"""The reset on simulated GPUs: refused, carried out, and believed only when NVML shows it."""

import pytest

from gpu_runbooks.activities.model.node_task import HardwareFacts
from gpu_runbooks.workers.node_agent.nvidia_smi import Outcome, ResetTool
from gpu_runbooks.workers.node_agent.probe import Probe
from gpu_runbooks.workers.node_agent.reset import Resetter, Target, refusal
from testbed.gpus import (
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


@pytest.fixture
def probe(nvml):
    return Probe(nvml)


@pytest.fixture
def resetter(probe):
    return Resetter(probe, ResetTool(), reset_limit=20, settle_limit=0)


async def reset(resetter, probe, target, *, limit=20):
    """As the task loop does it, without the note in between."""
    before = await probe.measure()
    return refusal(target, before) or await resetter.carry_out(
        target, before.facts, gpus_expected=8, limit=limit
    )


@pytest.mark.parametrize("target", [Target(UUID, ADDRESS), Target(UUID), Target(None, ADDRESS), EVERYTHING])
async def test_a_reset_is_done_when_the_fault_is_gone(resetter, probe, state, target):
    change_gpu(state, SICK, recovery_action=1, remap_pending=1, ecc_uncorrected=2)
    report = await reset(resetter, probe, target)
    assert report.outcome is Outcome.DONE
    assert report.facts.gpus[SICK].recovery_action == 0
    assert read_state(state).resets == 1


async def test_only_the_named_gpu_is_reset(resetter, probe, state):
    change_gpu(state, SICK, recovery_action=1)
    change_gpu(state, 0, recovery_action=1)
    report = await reset(resetter, probe, Target(UUID))
    assert report.outcome is Outcome.DONE
    assert [gpu.recovery_action for gpu in report.facts.gpus] == [1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (ResetAnswer.BUSY, Outcome.BUSY),
        (ResetAnswer.UNSUPPORTED, Outcome.UNSUPPORTED),
        (ResetAnswer.LOST, Outcome.LOST),
        (ResetAnswer.NOTHING, Outcome.UNVERIFIED),
        (ResetAnswer.VANISH, Outcome.UNVERIFIED),
    ],
)
async def test_any_other_answer_is_no_reset(resetter, probe, state, answer, outcome):
    change_gpu(state, SICK, recovery_action=1)
    change_node(state, reset=answer)
    report = await reset(resetter, probe, Target(UUID))
    assert report.outcome is outcome
    assert read_state(state).resets == 1


@pytest.mark.parametrize("sign", [{"remap_pending": 1}, {"ecc_uncorrected": 4}, {"recovery_action": 4}])
async def test_each_thing_that_a_reset_clears_must_be_cleared(resetter, probe, state, sign):
    change_gpu(state, SICK, **sign)
    change_node(state, reset=ResetAnswer.NOTHING)
    assert (await reset(resetter, probe, Target(UUID))).outcome is Outcome.UNVERIFIED


async def test_a_hung_tool_is_given_up_in_time(resetter, probe, state):
    change_gpu(state, SICK, recovery_action=1)
    change_node(state, reset=ResetAnswer.HANG)
    report = await reset(resetter, probe, Target(UUID), limit=1)
    assert report.outcome is Outcome.UNRESPONSIVE
    assert read_state(state).gpus[SICK].recovery_action == 1


async def test_a_driver_that_hangs_after_the_reset_is_no_success(nvml, state):
    before = nvml.measure().facts
    nvml.close()
    probe = Probe(nvml, limit=0.3)
    change_node(state, hang=("nvmlInitWithFlags",))
    report = await Resetter(probe, ResetTool(), settle_limit=0).carry_out(
        Target(UUID), before, gpus_expected=8, limit=20
    )
    assert report.outcome is Outcome.UNRESPONSIVE
    change_node(state, hang=())


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"pids": (4711,)}, Outcome.BUSY),
        ({"pids": Refuses(3)}, Outcome.UNKNOWN),
        ({"presence": Presence.LOST}, Outcome.LOST),
        ({"presence": Presence.MISSING}, Outcome.LOST),
    ],
)
async def test_a_gpu_that_is_held_or_gone_is_left_alone(resetter, probe, state, changes, outcome):
    await probe.measure()
    change_gpu(state, SICK, recovery_action=1, **changes)
    report = await reset(resetter, probe, Target(UUID))
    assert report.outcome is outcome
    assert "nothing was reset" in report.message
    assert read_state(state).resets == 0


async def test_all_gpus_are_not_reset_while_one_is_held(resetter, probe, state):
    change_gpu(state, 7, pids=(1,))
    assert (await reset(resetter, probe, EVERYTHING)).outcome is Outcome.BUSY
    assert read_state(state).resets == 0


async def test_uuid_and_address_of_two_gpus_are_refused(resetter, probe, state):
    report = await reset(resetter, probe, Target(UUID, healthy_gpus()[0].pci_address))
    assert report.outcome is Outcome.UNKNOWN
    assert read_state(state).resets == 0


async def test_an_unclear_answer_is_decided_by_the_proof(probe, state):
    unclear = ResetTool(["sh", "-c", 'nvidia-smi "$@" >/dev/null; exit 255', "nvidia-smi"])
    resetter = Resetter(probe, unclear, settle_limit=0)
    change_gpu(state, SICK, recovery_action=1)
    assert (await reset(resetter, probe, Target(UUID))).outcome is Outcome.DONE
    # Now there is nothing left whose going could show that anything was done.
    assert (await reset(resetter, probe, Target(UUID))).outcome is Outcome.UNVERIFIED


async def test_fewer_gpus_than_the_type_has_are_no_proof(resetter, probe, state):
    change_gpu(state, 0, presence=Presence.MISSING)
    change_gpu(state, SICK, recovery_action=1)
    report = await reset(resetter, probe, Target(UUID))
    assert report.outcome is Outcome.UNVERIFIED
    assert "7 of 8 GPUs" in report.message


async def test_the_gpu_may_take_a_moment_to_come_back(nvml, state):
    resetter = Resetter(Probe(nvml), ResetTool(), settle_limit=30)
    change_gpu(state, SICK, recovery_action=1)
    before = nvml.measure().facts
    change_gpu(state, SICK, recovery_action=0, presence=Presence.MISSING)

    class BackAtTheSecondLook(Probe):
        async def measure(self):
            measured = await super().measure()
            change_gpu(state, SICK, presence=Presence.PRESENT)
            return measured

    resetter._probe = BackAtTheSecondLook(nvml)
    report = await resetter.prove(Target(UUID), before, gpus_expected=8, needs_sign=True)
    assert report.outcome is Outcome.DONE


async def test_nothing_known_of_before_proves_nothing(resetter):
    report = await resetter.prove(EVERYTHING, HardwareFacts(), gpus_expected=8, needs_sign=True)
    assert report.outcome is Outcome.UNVERIFIED
