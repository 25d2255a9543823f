"""A process's cgroups lead to its pod: a table of what kubelets and runtimes write."""

import os
from pathlib import Path

import pytest

from gpu_runbooks.workers.node_agent.pod_cgroups import UNKNOWN, Holders, holders, pod_uid
from testbed.gpu_processes import cgroup_of

POD = "0f7a3c52-9d7e-4a52-8a3b-0d7c5f1b2e64"
OTHER = "3b1e6f0a-1c2d-4e3f-9a8b-7c6d5e4f3a2b"
STATIC = "5d41402abc4b2a76b9719d911017c592"
NAMED = POD.replace("-", "_")
CONTAINER = "c3" * 32

HYBRID = f"""\
12:pids:/kubepods/besteffort/pod{POD}/{CONTAINER}
11:devices:/kubepods/besteffort/pod{POD}/{CONTAINER}
2:cpuset:/
1:name=systemd:/kubepods/besteffort/pod{POD}/{CONTAINER}
0::/system.slice/containerd.service
"""

SCOPE = f"cri-containerd-{CONTAINER}.scope"
BURSTABLE = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable"
BEST_EFFORT = "kubepods-besteffort.slice/kubepods-besteffort"
OWN_ROOT = "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable"
NESTED = f"kubelet/kubepods/burstable/pod{OTHER}/{CONTAINER}"

OF_A_POD = {
    "v2, systemd, burstable": f"0::/{BURSTABLE}-pod{NAMED}.slice/{SCOPE}",
    "v2, systemd, guaranteed": f"0::/kubepods.slice/kubepods-pod{NAMED}.slice/{SCOPE}",
    "v2, systemd, CRI-O": f"0::/{BURSTABLE}-pod{NAMED}.slice/crio-{CONTAINER}.scope/container",
    "v2, systemd, a root of its own": f"0::/{OWN_ROOT}-pod{NAMED}.slice/{SCOPE}",
    "v2, from another namespace": f"0::/../../{BEST_EFFORT}-pod{NAMED}.slice/{SCOPE}",
    "v2, from a pod of the same class": f"0::/../../kubepods-pod{NAMED}.slice/{SCOPE}",
    "v2, a runtime without driver": f"0::/system.slice/kubepods-pod{NAMED}.slice:cri-containerd:{CONTAINER}",
    "v2, cgroupfs, guaranteed": f"0::/kubepods/pod{POD}/{CONTAINER}",
    "v2, a process that is about to go": f"0::/kubepods/burstable/pod{POD} (deleted)",
    "v1, cgroupfs, burstable": f"4:devices:/kubepods/burstable/pod{POD}/{CONTAINER}",
    "v1, cgroupfs, a root of its own": f"4:devices:/machine/kubepods/burstable/pod{POD}/{CONTAINER}",
    "v1 and v2, many lines": HYBRID,
    "v1, systemd": f"10:cpu,cpuacct:/{BURSTABLE}-pod{NAMED}.slice/docker-{CONTAINER}.scope",
    "a container with Docker in it": f"0::/kubepods/burstable/pod{POD}/{CONTAINER}/docker/{CONTAINER}",
    "a container with a kubelet in it": f"0::/kubepods/burstable/pod{POD}/{CONTAINER}/{NESTED}",
}

OF_A_STATIC_POD = {
    "systemd": f"0::/{BURSTABLE}-pod{STATIC}.slice/{SCOPE}",
    "cgroupfs": f"0::/kubepods/burstable/pod{STATIC}/{CONTAINER}",
}

OF_NO_POD = {
    "a daemon of the host": "0::/system.slice/nvidia-persistenced.service\n",
    "DCGM's own daemon": "0::/system.slice/nvidia-dcgm.service\n",
    "a login": "0::/user.slice/user-1000.slice/session-3.scope\n",
    "the root": "0::/\n",
    "v1, the root": "3:cpuset:/\n2:memory:/\n1:name=systemd:/init.scope\n",
    "a Docker container": f"0::/system.slice/docker-{CONTAINER}.scope\n",
    "a pod of podman": f"0::/machine.slice/machine-libpod_pod_{CONTAINER}.slice/libpod-{CONTAINER}.scope\n",
    "the class of pods, no pod": "0::/kubepods.slice/kubepods-burstable.slice\n",
    "a name that only looks like it": "0::/system.slice/podman.slice/pod-1234.service\n",
    "the kubelet": "0::/runtime.slice/kubelet.service\n",
    "nothing": "",
    "not the format": "kernel\n",
}


@pytest.mark.parametrize("kind", OF_A_POD)
def test_a_process_of_a_pod(kind):
    assert pod_uid(OF_A_POD[kind]) == pod_uid(OF_A_POD[kind] + "\n") == POD


@pytest.mark.parametrize("kind", OF_A_STATIC_POD)
def test_a_process_of_a_static_pod(kind):
    assert pod_uid(OF_A_STATIC_POD[kind]) == STATIC


@pytest.mark.parametrize("kind", OF_NO_POD)
def test_a_process_of_no_pod(kind):
    assert pod_uid(OF_NO_POD[kind]) is None


@pytest.fixture
def processes(tmp_path):
    """The processes 1 and 2 of two pods, and 3 of the host."""
    for pid, uid in ((1, POD), (2, OTHER), (3, None)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(cgroup_of(uid))
    return tmp_path


@pytest.mark.parametrize(
    ("pids", "answer"),
    [
        ((), Holders((), 0)),
        ((2, 1), Holders((POD, OTHER), 0)),
        ((1, 3), Holders((POD,), 1)),
        ((1, 99), Holders((POD,), 0)),  # 99 ended after NVML listed it
        ((99,), Holders((), 0)),
    ],
)
def test_processes_are_placed(processes, pids, answer):
    assert holders(processes, pids) == answer


def test_a_process_that_cannot_be_read_may_be_of_any_pod(processes):
    (processes / "4" / "cgroup").mkdir(parents=True)  # reading it fails, and the process is not gone
    assert holders(processes, (1, 3, 4)) == Holders((POD,), None)
    assert holders(processes, (4,)) == UNKNOWN


def test_without_the_hosts_processes_nothing_is_known(processes):
    assert holders(processes / "nowhere", ()) == UNKNOWN


def test_more_pods_than_a_task_can_tell_are_not_cut(processes):
    for pid in range(100, 165):
        (processes / str(pid)).mkdir()
        (processes / str(pid) / "cgroup").write_text(cgroup_of(POD[:-3] + str(pid)))
    assert len(holders(processes, range(100, 164)).pod_uids) == 64
    assert holders(processes, range(100, 165)) == UNKNOWN


def test_a_process_of_this_machine_can_be_read():
    assert holders(Path("/proc"), (os.getpid(),)).pod_uids is not None
