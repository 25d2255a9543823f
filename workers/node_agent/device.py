"""What a reset has to know of a GPU besides its facts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

Ask = Callable[..., Any]
"""Asks NVML, and gives None for a refusal."""

SAYS_NO = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_FunctionNotFound)

NO_FABRIC = pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}


@dataclass(frozen=True)
class Device:
    """None is unknown."""

    minor: int | None = None
    """The device file is `/dev/nvidia<minor>`."""
    pids: frozenset[int] | None = None
    """Processes that work on it, by NVML."""
    vgpu: bool | None = None
    """A slice that the hypervisor deals out. It cannot be reset from inside."""
    fabric: int | None = None
    """State of the GPU in the fabric of NVSwitches: 0 has none, 3 completed."""


def measure_device(ask: Ask, handle: Any, pids: set[int] | None) -> Device:
    mode = ask(pynvml.nvmlDeviceGetVirtualizationMode, handle)
    return Device(
        minor=ask(pynvml.nvmlDeviceGetMinorNumber, handle),
        pids=None if pids is None else frozenset(pids),
        vgpu=None if mode is None else mode == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU,
        fabric=ask(_fabric, handle),
    )


def has_nvlinks(ask: Ask, handle: Any, counted: int) -> bool | None:
    """Whether the GPU has NVLinks. None where the driver does not tell."""
    return True if counted else ask(_answers_for_a_link, handle)


def leads_to_switch(ask: Ask, handle: Any, links: int) -> bool | None:
    """Whether the NVLinks lead to NVSwitches; all of a GPU lead to the same kind of device."""
    for link in range(links):
        kind = ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind not in {None, pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN}:
            return bool(kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)
    return None


def _answers_for_a_link(handle: Any) -> bool:
    try:
        pynvml.nvmlDeviceGetNvLinkState(handle, 0)
    except SAYS_NO:
        return False
    return True


def _fabric(handle: Any) -> int:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    try:
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(info))
    except SAYS_NO:
        return int(NO_FABRIC)
    return int(info.state)
