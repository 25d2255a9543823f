"""Whether a GPU can be reset by itself: a table, and what NVML and the processes say."""

import pytest

from gpu_runbooks.workers.node_agent.reset_domain import FabricManager, reset_alone
from testbed.gpu_processes import FABRIC_MANAGER_PID, end_process, open_device, start_fabric_manager
from testbed.gpus import Refuses, change_gpu, change_node

VOLTA, AMPERE, HOPPER, BLACKWELL = 5, 7, 9, 10
POD = "0f7a3c52-9d7e-4a52-8a3b-0d7c5f1b2e64"
NOT_SUPPORTED, UNKNOWN = Refuses(3), Refuses(999)


@pytest.mark.parametrize(
    ("architecture", "nvlinks", "switched", "fabric_manager", "alone"),
    [
        (HOPPER, True, True, True, True),
        (HOPPER, True, True, False, False),
        (HOPPER, True, True, None, None),
        (AMPERE, True, True, True, True),
        (AMPERE, True, True, False, False),
        (BLACKWELL, True, True, False, False),
        (AMPERE, True, False, None, True),
        (AMPERE, True, None, None, None),
        (VOLTA, True, True, True, False),
        (VOLTA, True, False, None, False),
        (VOLTA, False, None, None, True),
        (AMPERE, False, None, None, True),
        (None, False, None, None, True),
        (None, True, True, True, None),
        (0xFFFFFFFF, True, True, True, None),
        (HOPPER, None, None, None, None),
        (VOLTA, None, None, None, None),
    ],
)
def test_architecture_links_and_fabric_manager_decide(architecture, nvlinks, switched, fabric_manager, alone):
    told = reset_alone(
        architecture=architecture, nvlinks=nvlinks, switched=switched, fabric_manager=fabric_manager
    )
    assert told is alone


@pytest.mark.parametrize(
    ("changes", "alone"),
    [
        ({}, True),
        ({"architecture": VOLTA}, False),
        ({"architecture": UNKNOWN}, None),
        ({"nvlinks": NOT_SUPPORTED, "architecture": VOLTA}, True),
        ({"nvlinks": UNKNOWN}, None),
        ({"nvlink_remote": 0}, True),
        ({"nvlink_remote": UNKNOWN}, None),
        ({"nvlink_remote": 255}, None),
    ],
)
def test_it_is_measured(nvml, state, changes, alone):
    change_gpu(state, 2, **changes)
    told = [gpu.reset_alone for gpu in nvml.measure().facts.gpus]
    assert told[2] is alone
    assert told[3] is True


def test_it_follows_the_fabric_manager(nvml, state, proc):
    end_process(state, proc, FABRIC_MANAGER_PID)
    assert nvml.measure().facts.gpus[0].reset_alone is False
    start_fabric_manager(proc)
    assert nvml.measure().facts.gpus[0].reset_alone is True


@pytest.mark.parametrize(("pod", "program"), [(None, "python3"), (POD, "nv-fabricmanager")])
def test_who_only_calls_itself_fabric_manager_is_none(nvml, state, proc, pod, program):
    end_process(state, proc, FABRIC_MANAGER_PID)
    open_device(proc, "/dev/null", pod, "nv-fabricmanager", program)
    assert nvml.measure().facts.gpus[0].reset_alone is False


def test_a_fabric_manager_whose_program_was_upgraded_is_still_one(proc):
    program = proc / str(FABRIC_MANAGER_PID) / "exe"
    program.unlink()
    program.symlink_to("/usr/bin/nv-fabricmanager (deleted)")
    assert FabricManager(proc).runs() is True


def test_a_fabric_manager_that_cannot_be_looked_at_leaves_it_open(nvml, proc):
    assert nvml.measure().facts.gpus[0].reset_alone is True
    (proc / str(FABRIC_MANAGER_PID) / "exe").unlink()
    assert nvml.measure().facts.gpus[0].reset_alone is None
    open_device(proc, "/dev/null", None, "nv-fabricmanager")
    assert nvml.measure().facts.gpus[0].reset_alone is True


def test_processes_that_cannot_be_listed_leave_it_open(nvml, proc):
    proc.rename(proc.with_name("gone"))
    assert nvml.measure().facts.gpus[0].reset_alone is None
    assert FabricManager(proc).runs() is None


def test_mig_mode_is_measured(nvml, state):
    change_gpu(state, 1, mig=1)
    change_gpu(state, 2, mig=NOT_SUPPORTED)
    change_gpu(state, 3, mig=UNKNOWN)
    assert [gpu.mig_enabled for gpu in nvml.measure().facts.gpus[:4]] == [False, True, False, None]
    change_node(state, hang=())
