"""Processes that hold simulated GPUs: in NVML's list, and with a cgroup that leads to their pod.

A simulated node has a `proc` folder of its own, of which only `<pid>/cgroup` is acted out.
"""

import hashlib
import shutil
from pathlib import Path

from testbed.gpus import Refuses, change_gpu, read_state

FIRST_PID = 4242


def hold(state: Path, proc: Path, gpu_uuid: str, pod_uid: str | None) -> int:
    """Let a process of a pod (None: a daemon of the host) hold a GPU from now on. Returns its pid.

    Raises `ValueError` where no GPU has this UUID.
    """
    gpus = read_state(state).gpus
    index = [gpu.uuid for gpu in gpus].index(gpu_uuid)
    pid = max([FIRST_PID - 1, *(int(process.name) for process in proc.glob("[0-9]*"))]) + 1
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cgroup").write_text(cgroup_of(pod_uid))
    pids = gpus[index].pids
    change_gpu(state, index, pids=(*(() if isinstance(pids, Refuses) else pids), pid))
    return pid


def end_pod(state: Path, proc: Path, pod_uid: str) -> None:
    """End the processes of a pod. It may have none."""
    for process in list(proc.glob("[0-9]*")):
        if (process / "cgroup").read_text() == cgroup_of(pod_uid):
            _let_go(state, int(process.name))
            shutil.rmtree(process)


def cgroup_of(pod_uid: str | None) -> str:
    """As on a node with cgroup v2, the kubelet's systemd driver and containerd."""
    if pod_uid is None:
        return "0::/system.slice/nvidia-persistenced.service\n"
    pod = f"kubepods-burstable-pod{pod_uid.replace('-', '_')}.slice"
    container = hashlib.sha256(pod_uid.encode()).hexdigest()
    return f"0::/kubepods.slice/kubepods-burstable.slice/{pod}/cri-containerd-{container}.scope\n"


def _let_go(state: Path, pid: int) -> None:
    for index, gpu in enumerate(read_state(state).gpus):
        if not isinstance(gpu.pids, Refuses) and pid in gpu.pids:
            change_gpu(state, index, pids=tuple(other for other in gpu.pids if other != pid))
