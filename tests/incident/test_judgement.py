"""Guard and validation as tables."""

import pytest
from incident.plans import identity

from gpu_runbooks.activities.model.node import NodeObservation
from gpu_runbooks.activities.model.node_task import GpuFacts, HardwareFacts
from gpu_runbooks.activities.model.plan import ExpectedHardware
from gpu_runbooks.workflows.guard import Clear, Gone, Rebooted, Registered, Released, inspect
from gpu_runbooks.workflows.validation import failures, judge_hardware, judge_node, untestable

P5 = ExpectedHardware(instance_type="p5.48xlarge", gpus=8, efa_interfaces=32, nvlink=True)


@pytest.mark.parametrize(
    ("seen", "finding"),
    [
        (NodeObservation(identity=identity(), blocked=True), Clear),
        (NodeObservation(identity=None), Gone),
        (NodeObservation(identity=identity(provider_id="aws:///us-east-1a/i-other"), blocked=True), Gone),
        (NodeObservation(identity=identity(uid="another"), blocked=False), Registered),
        (NodeObservation(identity=identity(), blocked=False), Released),
        (NodeObservation(identity=identity(boot_id="boot-2"), blocked=True), Rebooted),
        (NodeObservation(identity=identity(boot_id="boot-2"), blocked=False), Released),
    ],
)
def test_the_guard_tells_what_became_of_the_node(seen, finding):
    assert isinstance(inspect(identity(), seen), finding)


def gpus(count: int = 8, **changes) -> tuple[GpuFacts, ...]:
    values = {
        "recovery_action": 0,
        "ecc_uncorrected": 0,
        "remap_pending": False,
        "remap_failed": False,
        "nvlinks_active": 18,
        "nvlinks": 18,
    }
    healthy = [GpuFacts(index=index, uuid=f"GPU-{index}", **values) for index in range(count)]
    if changes:
        healthy[3] = healthy[3].model_copy(update=changes)
    return tuple(healthy)


def facts(**changes) -> HardwareFacts:
    return HardwareFacts(**{"gpus": gpus(), "efa_interfaces": 32, "boot_id": "boot", **changes})


def test_a_healthy_node_passes():
    assert failures(judge_hardware(facts(), P5, "boot")) == ""
    assert (
        failures(judge_node(NodeObservation(identity=None, ready="True", gpus=8, efa_interfaces=32), P5))
        == ""
    )


@pytest.mark.parametrize(
    ("measured", "named"),
    [
        (None, "agent report: none"),
        (facts(gpus=()), "GPUs in NVML: 0 instead of 8"),
        (facts(gpus=gpus(7)), "GPUs in NVML: 7 instead of 8"),
        (facts(gpus=gpus(9)), "GPUs in NVML: 9 instead of 8"),
        (facts(boot_id="older"), "boot id: older instead of boot"),
        (facts(efa_interfaces=None), "EFA devices: unknown instead of 32"),
        (facts(efa_interfaces=31), "EFA devices: 31 instead of 32"),
        (facts(gpus=gpus(recovery_action=1)), "recovery action: GPU 3 1 instead of 0"),
        (facts(gpus=gpus(recovery_action=99)), "recovery action: GPU 3 99 instead of 0"),
        (facts(gpus=gpus(recovery_action=None)), "recovery action: GPU 3 unknown instead of 0"),
        (facts(gpus=gpus(ecc_uncorrected=2)), "uncorrected ECC errors: GPU 3 2 instead of 0"),
        (facts(gpus=gpus(ecc_uncorrected=None)), "uncorrected ECC errors: GPU 3 unknown instead of 0"),
        (facts(gpus=gpus(remap_pending=True)), "row remap pending: GPU 3 yes instead of no"),
        (facts(gpus=gpus(remap_failed=None)), "row remap failed: GPU 3 unknown instead of no"),
        (facts(gpus=gpus(nvlinks_active=17)), "NVLinks all active: GPU 3 no instead of yes"),
        (facts(gpus=gpus(nvlinks=0, nvlinks_active=0)), "NVLinks all active: GPU 3 unknown instead of yes"),
    ],
)
def test_whatever_is_not_known_to_be_right_is_wrong(measured, named):
    assert named in failures(judge_hardware(measured, P5, "boot"))


def test_with_mig_the_remaps_need_not_be_told_and_what_is_told_counts():
    split = {"mig_enabled": True, "remap_pending": None, "remap_failed": None}
    assert failures(judge_hardware(facts(gpus=gpus(**split)), P5, "boot")) == ""
    for told in ({"remap_pending": True}, {"remap_failed": True}, {"recovery_action": 1}):
        assert failures(judge_hardware(facts(gpus=gpus(**{**split, **told})), P5, "boot"))
    unknown = {**split, "mig_enabled": None}
    assert "row remap pending: GPU 3 unknown" in failures(
        judge_hardware(facts(gpus=gpus(**unknown)), P5, "boot")
    )


def test_whole_gpus_cannot_be_tested_where_mig_is_on():
    assert untestable(facts(gpus=gpus(mig_enabled=False))) == ""
    assert untestable(facts(gpus=gpus(mig_enabled=True))).startswith("MIG is on (GPU 3)")


@pytest.mark.parametrize(
    ("seen", "named"),
    [
        ({"ready": "Unknown", "gpus": 8, "efa_interfaces": 32}, "node ready: Unknown"),
        ({"ready": "True", "gpus": 7, "efa_interfaces": 32}, "allocatable GPUs: 7 instead of 8"),
        ({"ready": "True", "gpus": None, "efa_interfaces": 32}, "allocatable GPUs: unknown"),
        ({"ready": "True", "gpus": 8, "efa_interfaces": None}, "allocatable EFA interfaces: unknown"),
        ({"ready": "True", "gpus": 8, "efa_interfaces": 33}, "allocatable EFA interfaces: 33"),
    ],
)
def test_allocatable_is_compared_with_the_instance_type(seen, named):
    assert named in failures(judge_node(NodeObservation(identity=None, **seen), P5))


def test_a_type_without_efa_needs_no_efa_key():
    g6 = ExpectedHardware(instance_type="g6.xlarge", gpus=1, efa_interfaces=0, nvlink=False)
    assert failures(judge_node(NodeObservation(identity=None, ready="True", gpus=1), g6)) == ""
    assert failures(judge_node(NodeObservation(identity=None, ready="True", gpus=1, efa_interfaces=1), g6))
