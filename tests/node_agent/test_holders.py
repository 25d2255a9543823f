"""Who holds a GPU: open device files of real and of simulated processes, and NVML's list."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_runbooks.workers.node_agent.device import Device
from gpu_runbooks.workers.node_agent.device_handles import open_handles
from gpu_runbooks.workers.node_agent.holders import hold_on, resets_in_progress
from testbed.gpu_processes import hold, open_device, start_fabric_manager
from testbed.gpus import healthy_gpus

POD = "0f7a3c52-9d7e-4a52-8a3b-0d7c5f1b2e64"
OWN = 1


def held(nvml, proc, index):
    measured = nvml.measure()
    return hold_on(proc, [(measured.facts.gpus[index], measured.devices[index])])


@pytest.mark.parametrize(
    ("path", "minors"),
    [
        ("/dev/nvidia3", {3}),
        ("/dev/nvidia12", {12}),
        ("/host/dev/nvidia3", {3}),
        ("/dev/nvidia3 (deleted)", {3}),
        ("/dev/nvidiactl", set()),
        ("/dev/nvidia-uvm", set()),
        ("/dev/nvidia-uvm-tools", set()),
        ("/dev/nvidia-modeset", set()),
        ("/dev/nvidia-nvswitch0", set()),
        ("/dev/nvidia-caps/nvidia-cap3", set()),
        ("/home/me/nvidia3", set()),
        ("/dev/nvidia3.log", set()),
        ("socket:[4242]", set()),
    ],
)
def test_only_the_device_file_of_a_gpu_counts(tmp_path, path, minors):
    open_device(tmp_path, path, None, "some")
    assert set(open_handles(tmp_path, OWN).pids) == minors


def test_the_open_files_of_a_real_process_are_seen(tmp_path):
    device = tmp_path / "dev" / "nvidia7"
    device.parent.mkdir()
    device.touch()
    program = "import sys; held = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, device], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        assert open_handles(Path("/proc"), os.getpid()).pids[7] == {child.pid}
        assert 7 not in open_handles(Path("/proc"), child.pid).pids
        child.stdin.close()
    assert 7 not in open_handles(Path("/proc"), os.getpid()).pids


def test_a_holder_is_named_with_command_and_pod(nvml, proc):
    exporter = open_device(proc, "/dev/nvidia3", POD, "dcgm-exporter")
    daemon = open_device(proc, "/dev/nvidia3", None, "nvidia-persiste")
    assert str(held(nvml, proc, 3)).endswith(
        f"is held by pid {exporter} (dcgm-exporter, pod {POD}), pid {daemon} (nvidia-persiste, no pod)"
    )
    assert held(nvml, proc, 4).free


def test_nvml_and_open_files_are_united(nvml, state, proc):
    pid = hold(state, proc, healthy_gpus()[3].uuid, POD)
    assert str(held(nvml, proc, 3)).count(f"pid {pid} ") == 1


def test_many_holders_are_counted_and_some_named(nvml, proc):
    for _ in range(11):
        open_device(proc, "/dev/nvidia3", POD, "worker")
    assert str(held(nvml, proc, 3)).endswith("and 3 more")


def test_a_holder_that_cannot_be_read_is_unknown_and_not_free(nvml, proc):
    pid = open_device(proc, "/dev/null", None, "some")
    files = proc / str(pid) / "fd"
    for file in files.iterdir():
        file.unlink()
    files.rmdir()
    files.touch()  # no folder: reading it fails for every user, root too
    hold_now = held(nvml, proc, 3)
    assert not hold_now.free
    assert not hold_now.holders
    assert f"cannot be read (pid {pid})" in str(hold_now)


def test_a_process_that_ends_meanwhile_holds_nothing(nvml, proc):
    (proc / "5000").mkdir()
    assert held(nvml, proc, 3).free


def test_processes_that_cannot_be_listed_are_a_doubt(nvml, proc):
    measured = nvml.measure()
    doubt = hold_on(proc / "nowhere", [(measured.facts.gpus[3], measured.devices[3])])
    assert "cannot be listed" in str(doubt)


def test_what_the_driver_does_not_say_is_a_doubt(nvml, proc):
    gpu = nvml.measure().facts.gpus[3]
    doubt = hold_on(proc, [(gpu, Device())])
    assert len(doubt.doubts) == 2
    assert not doubt.free


def test_the_fabric_manager_is_no_obstacle_where_it_makes_the_reset_possible(nvml, proc):
    pid = open_device(proc, "/dev/nvidia3", None, "nv-fabricmanager")
    assert held(nvml, proc, 3).free
    measured = nvml.measure()
    old = measured.facts.gpus[3].model_copy(update={"reset_alone": False})
    assert f"pid {pid}" in str(hold_on(proc, [(old, measured.devices[3])]))


@pytest.mark.parametrize(("pod", "program"), [(None, "python3"), (POD, "nv-fabricmanager")])
def test_who_only_calls_itself_fabric_manager_is_a_holder(nvml, proc, pod, program):
    pid = open_device(proc, "/dev/nvidia3", pod, "nv-fabricmanager", program)
    assert f"pid {pid}" in str(held(nvml, proc, 3))


def test_a_fabric_manager_that_cannot_be_looked_at_is_a_holder(nvml, proc):
    pid = open_device(proc, "/dev/nvidia3", None, "nv-fabricmanager")
    (proc / str(pid) / "exe").unlink()
    assert f"pid {pid}" in str(held(nvml, proc, 3))


def test_an_nvidia_smi_at_work_is_seen(tmp_path):
    start_fabric_manager(tmp_path)
    open_device(tmp_path, "/dev/nvidia0", None, "dcgm-exporter")
    assert not resets_in_progress(tmp_path)
    open_device(tmp_path, "/dev/nvidia0", None, "nvidia-smi")
    assert resets_in_progress(tmp_path)
