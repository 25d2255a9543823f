"""Which GPUs have to be reset together: one alone, or all of a node in one command.

From Ampere on a GPU can be reset by itself; on a host with NVSwitches only while the Fabric Manager runs,
which has to train the links anew. Before Ampere, GPUs that NVLinks connect are reset in one command. Source:
manual of nvidia-smi, `--gpu-reset`. Whether Hopper and later depend on the Fabric Manager, it says both ways;
the careful one is taken.
"""

from pathlib import Path

import pynvml

COMMAND = "nv-fabricmanage"
"""Of the Fabric Manager, cut by the kernel to 15 characters."""


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


class FabricManager:
    """The Fabric Manager of this machine, by its process: NVML does not tell whether it runs."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._pid: str | None = None

    def runs(self) -> bool | None:
        """Whether it runs; None where the processes cannot be listed. The known one is looked at first."""
        if self._pid is not None and self._is_one(self._pid):
            return True
        try:
            pids = [process.name for process in self._proc.iterdir() if process.name.isdigit()]
        except OSError:
            return None
        self._pid = next(filter(self._is_one, pids), None)
        return self._pid is not None

    def _is_one(self, pid: str) -> bool:
        try:
            return (self._proc / pid / "comm").read_text(errors="replace").strip() == COMMAND
        except OSError:
            return False
