"""Measured through the real pynvml, over the stand-in library."""

import shutil

import pytest

from gpu_runbooks.workers.node_agent.nvml import DriverUnavailable, count_efa_interfaces
from testbed.gpu_processes import end_pod, hold
from testbed.gpus import (
    Presence,
    Refuses,
    change_gpu,
    change_node,
    healthy_gpus,
    read_state,
    write_efa_interfaces,
)

NOT_SUPPORTED, UNKNOWN, DRIVER_NOT_LOADED = Refuses(3), Refuses(999), 9
HELD_BY = ["processes", "pod_uids", "host_processes"]
POD = "0f7a3c52-9d7e-4a52-8a3b-0d7c5f1b2e64"
OTHER_POD = "3b1e6f0a-1c2d-4e3f-9a8b-7c6d5e4f3a2b"


def test_a_healthy_node_answers_for_everything(nvml):
    facts = nvml.measure().facts
    assert (facts.driver_version, facts.efa_interfaces, facts.boot_id) == ("570.148.08", 32, "boot-1")
    assert len(facts.gpus) == 8
    for gpu, simulated in zip(facts.gpus, healthy_gpus(), strict=True):
        assert gpu.uuid == simulated.uuid
        assert gpu.pci_address == simulated.pci_address
        assert (gpu.recovery_action, gpu.ecc_uncorrected, gpu.processes) == (0, 0, 0)
        assert (gpu.remap_pending, gpu.remap_failed) == (False, False)
        assert (gpu.nvlinks_active, gpu.nvlinks) == (18, 18)


def test_what_is_wrong_is_told(nvml, state):
    change_gpu(
        state,
        2,
        recovery_action=4,
        ecc_uncorrected=7,
        remap_pending=1,
        remap_failed=1,
        nvlinks_active=11,
        pids=(101, 202, 303),
    )
    gpu = nvml.measure().facts.gpus[2]
    assert (gpu.recovery_action, gpu.ecc_uncorrected, gpu.processes) == (4, 7, 3)
    assert (gpu.remap_pending, gpu.remap_failed) == (True, True)
    assert (gpu.nvlinks_active, gpu.nvlinks) == (11, 18)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("recovery_action", ["recovery_action"]),
        ("ecc_uncorrected", ["ecc_uncorrected"]),
        ("remap_pending", ["remap_pending", "remap_failed"]),
        ("nvlinks", ["nvlinks", "nvlinks_active"]),
        ("pids", HELD_BY),
    ],
)
def test_an_unanswered_question_is_none_and_the_others_stay(nvml, state, asked, told):
    healthy = nvml.measure().facts.gpus[0].model_dump()
    change_gpu(state, 0, **{asked: NOT_SUPPORTED})
    assert nvml.measure().facts.gpus[0].model_dump() == {**healthy, **dict.fromkeys(told)}


def test_serials_are_told_where_the_driver_has_them(nvml, state):
    assert nvml.measure().facts.gpus[0].serial == healthy_gpus()[0].serial
    assert nvml.measure().facts.gpus[0].board is None
    change_gpu(state, 0, board="SN0123456789ABCD")  # all 16 bytes, no zero at the end
    assert nvml.measure().facts.gpus[0].board == "SN0123456789ABCD"


@pytest.mark.parametrize("told", [NOT_SUPPORTED, Refuses(25), "", "0", "0000000000000", "S\x01N"])
def test_what_is_no_serial_is_unknown(nvml, state, told):
    change_gpu(state, 0, serial=told, board=told)
    gpu = nvml.measure().facts.gpus[0]
    assert gpu.serial is gpu.board is None
    assert gpu.uuid is not None


def test_the_pods_and_the_daemons_that_hold_a_gpu_are_told_apart(nvml, state, proc):
    gpus = healthy_gpus()
    hold(state, proc, gpus[2].uuid, POD)
    hold(state, proc, gpus[2].uuid, POD)
    hold(state, proc, gpus[2].uuid, OTHER_POD)
    hold(state, proc, gpus[2].uuid, None)
    hold(state, proc, gpus[3].uuid, OTHER_POD)
    held, shared, free = nvml.measure().facts.gpus[2:5]
    assert (held.processes, held.pod_uids, held.host_processes) == (4, (POD, OTHER_POD), 1)
    assert (shared.processes, shared.pod_uids, shared.host_processes) == (1, (OTHER_POD,), 0)
    assert (free.processes, free.pod_uids, free.host_processes) == (0, (), 0)
    end_pod(state, proc, OTHER_POD)
    held, free = nvml.measure().facts.gpus[2:4]
    assert (held.processes, held.pod_uids, held.host_processes) == (3, (POD,), 1)
    assert (free.processes, free.pod_uids) == (0, ())


def test_a_process_of_two_lists_is_one_and_graphics_alone_holds_a_gpu_too(nvml, state, proc):
    pid = hold(state, proc, healthy_gpus()[0].uuid, POD)
    change_gpu(state, 0, graphics_pids=(pid,))
    change_gpu(state, 1, graphics_pids=(pid,))
    both, graphics = nvml.measure().facts.gpus[:2]
    assert (both.processes, both.pod_uids) == (graphics.processes, graphics.pod_uids) == (1, (POD,))


def test_a_gpu_without_graphics_is_known_and_one_that_does_not_tell_is_not(nvml, state, proc):
    hold(state, proc, healthy_gpus()[0].uuid, POD)
    change_gpu(state, 0, graphics_pids=NOT_SUPPORTED)
    gpu = nvml.measure().facts.gpus[0]
    assert (gpu.processes, gpu.pod_uids, gpu.host_processes) == (1, (POD,), 0)
    change_gpu(state, 0, graphics_pids=UNKNOWN)
    gpu = nvml.measure().facts.gpus[0]
    assert (gpu.processes, gpu.pod_uids, gpu.host_processes) == (None, None, None)


def test_a_missing_gpu_is_not_counted(nvml, state):
    change_gpu(state, 3, presence=Presence.MISSING)
    facts = nvml.measure().facts
    assert [gpu.uuid for gpu in facts.gpus] == [g.uuid for i, g in enumerate(healthy_gpus()) if i != 3]


def test_a_lost_gpu_keeps_the_identity_that_it_had(nvml, state):
    before = nvml.measure().facts.gpus[5]
    change_gpu(state, 5, presence=Presence.LOST)
    for _ in range(2):  # the session is opened anew in between
        measured = nvml.measure()
        assert measured.lost == (5,)
        lost = measured.facts.gpus[5]
        assert (lost.uuid, lost.pci_address) == (before.uuid, before.pci_address)
        assert lost.recovery_action is lost.processes is None


def test_a_gpu_lost_from_the_start_has_no_identity(nvml, state):
    change_gpu(state, 5, presence=Presence.LOST)
    lost = nvml.measure().facts.gpus[5]
    assert lost.uuid is lost.pci_address is None


def test_a_driver_that_is_not_loaded_is_an_error_and_comes_back(nvml, state):
    change_node(state, init=DRIVER_NOT_LOADED)
    with pytest.raises(DriverUnavailable, match="Driver Not Loaded"):
        nvml.measure()
    change_node(state, init=0)
    assert len(nvml.measure().facts.gpus) == 8


def test_state_files_say_what_was_written(state):
    change_gpu(state, 1, pids=(5, 6), remap_pending=Refuses(999))
    change_node(state, hang=("nvmlInitWithFlags", "nvmlDeviceGetUUID"))
    told = read_state(state)
    assert told.gpus[1].pids == (5, 6)
    assert told.gpus[1].remap_pending == Refuses(999)
    assert told.hang == ("nvmlInitWithFlags", "nvmlDeviceGetUUID")


def test_efa_devices_are_told_by_vendor_else_by_name(tmp_path):
    write_efa_interfaces(tmp_path, 3)
    adapters = tmp_path / "class" / "infiniband"
    (adapters / "mlx5_0" / "device").mkdir(parents=True)
    (adapters / "mlx5_0" / "device" / "vendor").write_text("0x15b3\n")
    (adapters / "efa_9").mkdir()
    assert count_efa_interfaces(tmp_path) == 4


def test_no_rdma_driver_is_zero_and_no_sysfs_is_unknown(tmp_path):
    write_efa_interfaces(tmp_path, 1)
    shutil.rmtree(tmp_path / "class" / "infiniband")
    assert count_efa_interfaces(tmp_path) == 0
    assert count_efa_interfaces(tmp_path / "nowhere") is None
