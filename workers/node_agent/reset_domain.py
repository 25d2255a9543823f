"""Which GPUs have to be reset together: one alone, or all of a node in one command.

From Ampere on a GPU can be reset by itself; on a host with NVSwitches only while the Fabric Manager runs,
which has to train the links anew. Before Ampere, GPUs that NVLinks connect are reset in one command. Source:
manual of nvidia-smi, `--gpu-reset`. Whether Hopper and later depend on the Fabric Manager, it says both ways;
the careful one is taken.
"""

from pathlib import Path

import pynvml

from gpu_runbooks.workers.node_agent.pod_cgroups import pod_uid

COMMAND = "nv-fabricmanage"
"""Of the Fabric Manager, cut by the kernel to 15 characters."""

EXECUTABLE = "nv-fabricmanager"


def reset_alone(
    *, architecture: int | None, nvlinks: bool | None, switched: bool | None, fabric_manager: bool | None
) -> bool | None:
    """Whether a GPU can be reset while its peers work on. None where nobody knows.

    `switched` says whether its NVLinks lead to NVSwitches, `fabric_manager` whether that runs here.
    """
    if nvlinks is False:
        return True
    if architecture is None or architecture == pynvml.NVML_DEVICE_ARCH_UNKNOWN or nvlinks is None:
        return None
    if architecture < pynvml.NVML_DEVICE_ARCH_AMPERE:
        return False
    if switched is None:
        return None
    return fabric_manager if switched else True


def is_fabric_manager(proc: Path, pid: str) -> bool | None:
    """Whether a process is the Fabric Manager. None where it says so and cannot be looked at.

    A process names itself as it likes. The kernel says what it executes and in which cgroup: one of a pod
    may have a program of any name, so it is not believed. A process that has ended is none.
    """
    process = proc / pid
    try:
        if (process / "comm").read_text(errors="replace").strip() != COMMAND:
            return False
        executable = (process / "exe").readlink().name.removesuffix(" (deleted)")
        return executable == EXECUTABLE and pod_uid((process / "cgroup").read_text(errors="replace")) is None
    except (FileNotFoundError, ProcessLookupError):
        return None if process.exists() else False
    except OSError:
        return None


class FabricManager:
    """The Fabric Manager of this machine, by its process: NVML does not tell whether it runs."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._pid: str | None = None

    def runs(self) -> bool | None:
        """Whether it runs; None where the processes do not tell. The known one is looked at first."""
        if self._pid is not None and is_fabric_manager(self._proc, self._pid):
            return True
        try:
            pids = [process.name for process in self._proc.iterdir() if process.name.isdigit()]
        except OSError:
            return None
        told = {pid: is_fabric_manager(self._proc, pid) for pid in pids}
        self._pid = next((pid for pid in pids if told[pid]), None)
        if self._pid is not None:
            return True
        return None if None in told.values() else False
