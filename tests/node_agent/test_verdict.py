"""The verdict over a measurement: a table."""

from dataclasses import replace

import pytest

from gpu_runbooks.activities.aws.instance_types import expected_hardware
from gpu_runbooks.activities.model.node_task import GpuFacts, HardwareFacts
from gpu_runbooks.workers.node_agent.nvml import Measurement
from gpu_runbooks.workers.node_agent.verdict import judge

P5 = expected_hardware("p5.48xlarge")
G6 = expected_hardware("g6.xlarge")


def gpu(index=0, **changes):
    healthy = GpuFacts(
        index=index,
        uuid=f"GPU-{index}",
        pci_address=f"0000:{index:02x}:00",
        recovery_action=0,
        ecc_uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        nvlinks_active=18,
        nvlinks=18,
        processes=0,
    )
    return healthy.model_copy(update=changes)


def node(first, count=8):
    return Measurement(HardwareFacts(gpus=(first, *(gpu(index) for index in range(1, count)))))


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({}, "True", "GPUsHealthy"),
        ({"processes": 3}, "True", "GPUsHealthy"),
        ({"processes": None}, "True", "GPUsHealthy"),
        ({"ecc_uncorrected": 2}, "True", "GPUsHealthy"),
        ({"recovery_action": 1}, "False", "RecoveryAction1Needed"),
        ({"recovery_action": 99}, "False", "RecoveryAction99Needed"),
        ({"remap_pending": True}, "False", "RowRemapPending"),
        ({"remap_failed": True}, "False", "RowRemapFailed"),
        ({"nvlinks_active": 17}, "False", "NVLinkDown"),
        ({"recovery_action": None}, "Unknown", "GPUUnanswered"),
        ({"ecc_uncorrected": None}, "Unknown", "GPUUnanswered"),
        ({"remap_pending": None, "remap_failed": None}, "Unknown", "GPUUnanswered"),
        ({"remap_pending": None, "remap_failed": None, "mig_enabled": True}, "True", "GPUsHealthy"),
        ({"recovery_action": None, "mig_enabled": True}, "Unknown", "GPUUnanswered"),
        ({"nvlinks_active": None, "nvlinks": None}, "Unknown", "GPUUnanswered"),
        ({"recovery_action": 2, "remap_pending": None}, "False", "RecoveryAction2Needed"),
    ],
)
def test_one_gpu_of_eight(changes, status, reason):
    verdict = judge(node(gpu(**changes)), P5)
    assert (verdict.status, verdict.reason) == (status, reason)


def test_a_gpu_too_few_or_too_many_is_a_fault():
    for count in (0, 7, 9):
        gpus = tuple(gpu(index) for index in range(count))
        verdict = judge(Measurement(HardwareFacts(gpus=gpus)), P5)
        assert (verdict.status, verdict.reason) == ("False", "GPUCountWrong")
        assert f"{count} GPUs, 8 expected" in verdict.message


def test_a_lost_gpu_is_a_fault_not_a_doubt():
    lost = replace(node(GpuFacts(index=0)), lost=(0,))
    assert judge(lost, P5).reason == "GPULost"


def test_an_instance_type_that_nobody_knows_is_never_healthy():
    assert judge(node(gpu()), None).status == "Unknown"
    assert judge(node(gpu(recovery_action=1)), None).status == "False"


def test_a_type_without_nvlink_need_not_answer_for_it():
    assert judge(node(gpu(nvlinks=None, nvlinks_active=None), count=1), G6).status == "True"


def test_the_message_names_the_gpu_and_stays_short():
    broken = Measurement(HardwareFacts(gpus=tuple(gpu(index, recovery_action=1) for index in range(8))))
    message = judge(broken, P5).message
    assert "GPU 0 (GPU-0) asks for GPU reset" in message
    assert message.endswith("and 4 more")
