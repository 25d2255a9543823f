"""Pending and failed repairs of memory: remapped rows from Ampere on, retired pages before."""

import pytest

from gpu_runbooks.activities.model.plan import ExpectedHardware
from gpu_runbooks.workers.node_agent.reset_proof import Target, gives_sign, shortcomings
from gpu_runbooks.workers.node_agent.verdict import judge
from testbed.gpus import Refuses, change_gpu, healthy_gpus

VOLTA, TURING, AMPERE = 5, 6, 7
NOT_SUPPORTED, UNKNOWN = Refuses(3), Refuses(999)
P5 = ExpectedHardware(instance_type="p5.48xlarge", gpus=8, efa_interfaces=32, nvlink=True)


def told(nvml, state, **changes):
    change_gpu(state, 2, **changes)
    gpu = nvml.measure().facts.gpus[2]
    return gpu.remap_pending, gpu.remap_failed


@pytest.mark.parametrize("architecture", [VOLTA, TURING])
@pytest.mark.parametrize(
    ("changes", "pending_and_failed"),
    [
        ({}, (False, False)),
        ({"retirement_pending": 1, "retired_double": 1}, (True, False)),
        ({"retired_single": 40, "retired_double": 23}, (False, False)),
        ({"retired_single": 40, "retired_double": 24}, (False, True)),
        ({"retired_single": 64}, (False, True)),
        ({"retirement_pending": UNKNOWN}, (None, False)),
        ({"retired_single": UNKNOWN, "retired_double": 3}, (False, None)),
        ({"retired_single": UNKNOWN, "retired_double": 64}, (False, True)),
        (
            {"retirement_pending": NOT_SUPPORTED, "retired_single": NOT_SUPPORTED}
            | {"retired_double": NOT_SUPPORTED},
            (None, None),
        ),
    ],
)
def test_before_ampere_pages_are_retired(nvml, state, architecture, changes, pending_and_failed):
    assert told(nvml, state, architecture=architecture, **changes) == pending_and_failed


def test_from_ampere_on_rows_are_remapped(nvml, state):
    remaps = {"remap_pending": 1, "remap_failed": 1}
    assert told(nvml, state, architecture=AMPERE, **remaps) == (True, True)
    assert told(nvml, state, remap_pending=NOT_SUPPORTED) == (None, None)


def test_of_an_unknown_architecture_nothing_is_known(nvml, state):
    assert told(nvml, state, architecture=UNKNOWN) == (None, None)
    assert told(nvml, state, architecture=0xFFFFFFFF) == (None, None)


def test_a_node_before_ampere_can_be_healthy(nvml, state):
    for index in range(len(healthy_gpus())):
        change_gpu(state, index, architecture=VOLTA, nvlink_remote=0)
    assert judge(nvml.measure(), P5).status == "True"
    change_gpu(state, 2, retired_double=64)
    verdict = judge(nvml.measure(), P5)
    assert (verdict.status, verdict.reason) == ("False", "RowRemapFailed")


def test_a_reset_before_ampere_is_proven_by_the_pages_that_no_longer_wait(nvml, state):
    change_gpu(state, 2, architecture=TURING, nvlinks=0, nvlinks_active=0, retirement_pending=1)
    before = nvml.measure().facts
    target = Target(before.gpus[2].uuid)
    assert gives_sign(target, before)
    assert shortcomings(target, before, nvml.measure(), 8)
    change_gpu(state, 2, retirement_pending=0)
    assert shortcomings(target, before, nvml.measure(), 8) == []
