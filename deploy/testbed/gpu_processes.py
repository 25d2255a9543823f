"""Processes of a simulated node: those that hold GPUs, and the Fabric Manager.

A simulated node has a `proc` folder of its own, of which `<pid>/cgroup`, `<pid>/comm` and the links
`<pid>/exe` and of `<pid>/fd` are acted out.
"""

import hashlib
import shutil
from pathlib import Path

from testbed.gpus import Refuses, change_gpu, read_state

FIRST_PID = 4242
FABRIC_MANAGER_PID = 977


def hold(state: Path, proc: Path, gpu_uuid: str, pod_uid: str | None, command: str = "python3") -> int:
    """Let a process of a pod (None: a daemon of the host) hold a GPU from now on. Returns its pid.

    Raises `ValueError` where no GPU has this UUID.
    """
    gpus = read_state(state).gpus
    index = [gpu.uuid for gpu in gpus].index(gpu_uuid)
    pid = open_device(proc, f"/dev/nvidia{gpus[index].minor}", pod_uid, command)
    pids = gpus[index].pids
    change_gpu(state, index, pids=(*(() if isinstance(pids, Refuses) else pids), pid))
    return pid


def open_device(proc: Path, device: str, pod_uid: str | None, command: str, program: str = "") -> int:
    """Let a process have a device file open, without work on it that NVML would list. Returns its pid.

    `program` is what it executes, where that is not as it calls itself.
    """
    pid = max([FIRST_PID - 1, *(int(process.name) for process in proc.glob("[0-9]*"))]) + 1
    _start(proc, pid, pod_uid, command, program or command)
    (proc / str(pid) / "fd" / "3").symlink_to("/dev/nvidiactl")
    (proc / str(pid) / "fd" / "4").symlink_to(device)
    return pid


def start_fabric_manager(proc: Path) -> None:
    """Let the Fabric Manager of a node with NVSwitches run. It has the switches open."""
    _start(proc, FABRIC_MANAGER_PID, None, "nv-fabricmanager", "nv-fabricmanager")
    (proc / str(FABRIC_MANAGER_PID) / "fd" / "3").symlink_to("/dev/nvidia-nvswitch0")


def end_process(state: Path, proc: Path, pid: int) -> None:
    """End a process, and with it its hold on GPUs."""
    _let_go(state, pid)
    shutil.rmtree(proc / str(pid))


def end_pod(state: Path, proc: Path, pod_uid: str) -> None:
    """End the processes of a pod. It may have none."""
    for process in list(proc.glob("[0-9]*")):
        if (process / "cgroup").read_text() == cgroup_of(pod_uid):
            end_process(state, proc, int(process.name))


def cgroup_of(pod_uid: str | None) -> str:
    """As on a node with cgroup v2, the kubelet's systemd driver and containerd."""
    if pod_uid is None:
        return "0::/system.slice/nvidia-persistenced.service\n"
    pod = f"kubepods-burstable-pod{pod_uid.replace('-', '_')}.slice"
    container = hashlib.sha256(pod_uid.encode()).hexdigest()
    return f"0::/kubepods.slice/kubepods-burstable.slice/{pod}/cri-containerd-{container}.scope\n"


def _start(proc: Path, pid: int, pod_uid: str | None, command: str, program: str) -> None:
    """The kernel keeps 15 characters of what a process calls itself."""
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "cgroup").write_text(cgroup_of(pod_uid))
    (proc / str(pid) / "comm").write_text(f"{command[:15]}\n")
    (proc / str(pid) / "exe").symlink_to(f"/usr/bin/{program}")


def _let_go(state: Path, pid: int) -> None:
    for index, gpu in enumerate(read_state(state).gpus):
        if not isinstance(gpu.pids, Refuses) and pid in gpu.pids:
            change_gpu(state, index, pids=tuple(other for other in gpu.pids if other != pid))
