"""Which pods the kubelet gave each GPU to, whether they use it or not, from the kubelet's own records.

The device manager writes `device-plugins/kubelet_internal_checkpoint` at every allocation and reads it at its
start. A device of NVIDIA's device plugin has the UUID of its GPU for its name, with `::<number>` behind it
where the GPU is shared. An entry outlives its pod until the kubelet needs the device for another one; and a
static pod stands there under the UID that its kubelet gave, which is not the one of its Pod object.

Claims (DRA) are in another file, `dra_manager_state`, which names devices as their driver likes. The file is
there on nodes whose kubelet knows claims.

Source: kubelet, `pkg/kubelet/cm/devicemanager/checkpoint` and `pkg/kubelet/cm/dra/state`, Kubernetes 1.36.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEVICES = Path("device-plugins", "kubelet_internal_checkpoint")
CLAIMS = Path("dra_manager_state")

WHOLE_GPU = re.compile(r"(?P<uuid>GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:::\d+)?")
"""Device name of the device plugin for a GPU, or for a share of it."""

GPU_RESOURCES = "nvidia.com/"
PARTS_OF_GPUS = ("GPU-", "MIG-")
"""How the devices of MIG and of other plugins' virtual GPUs begin, whatever their resource is called."""

DRIVERS_WITHOUT_GPUS = frozenset({"compute-domain.nvidia.com", "dra.net"})
"""DRA drivers whose devices are no GPUs: NVIDIA's IMEX channels, and network interfaces."""

LARGEST_FILE = 16 * 1024 * 1024
"""Bytes. A record of every device of a large node has a few hundred kilobytes."""

MOST_PODS = 64
"""Limit of the CRD for one GPU."""


class _UnreadableError(Exception):
    """The records do not tell."""


def allocated_pods(kubelet: Path) -> dict[str, tuple[str, ...]] | None:
    """UIDs of pods by the UUID of the GPU; a GPU that is not in it was given to nobody.

    None where the records do not tell: they cannot be read, or name a device that may be of any GPU.
    """
    try:
        if any(map(_may_hold_a_gpu, _claims(kubelet / CLAIMS))):
            return None
        pods: dict[str, set[str]] = {}
        for uuid, pod in _whole_gpus(kubelet / DEVICES):
            pods.setdefault(uuid, set()).add(pod)
    except (_UnreadableError, OSError, ValueError, RecursionError):
        return None
    if any(len(of_gpu) > MOST_PODS for of_gpu in pods.values()):
        return None
    return {uuid: tuple(sorted(of_gpu)) for uuid, of_gpu in pods.items()}


def _whole_gpus(file: Path) -> Iterator[tuple[str, str]]:
    """GPU and pod of each device that is a GPU."""
    data = _read(file)
    for entry in _list(_mapping(_mapping(data).get("Data")).get("PodDeviceEntries")):
        pod, resource = _mapping(entry).get("PodUID"), entry.get("ResourceName")
        if not isinstance(pod, str) or not 0 < len(pod) <= 64 or not isinstance(resource, str):
            raise _UnreadableError
        for device in _devices(entry.get("DeviceIDs")):
            if not isinstance(device, str):
                raise _UnreadableError
            if gpu := WHOLE_GPU.fullmatch(device):
                yield gpu["uuid"], pod
            elif resource.startswith(GPU_RESOURCES) or device.startswith(PARTS_OF_GPUS):
                raise _UnreadableError


def _devices(by_numa_node: Any) -> Iterator[Any]:
    """Names of devices, which lie under the number of their NUMA node."""
    for devices in _mapping(by_numa_node or {}).values():
        yield from _list(devices)


def _claims(file: Path) -> list[Any]:
    try:
        written = _mapping(_read(file)).get("Data")
    except FileNotFoundError:
        return []
    if not isinstance(written, str):
        raise _UnreadableError
    return _list(_mapping(json.loads(written)).get("ClaimInfoStateList"))


def _may_hold_a_gpu(claim: Any) -> bool:
    drivers = _mapping(_mapping(claim).get("DriverState") or {})
    return not drivers or not drivers.keys() <= DRIVERS_WITHOUT_GPUS


def _read(file: Path) -> Any:
    with file.open("rb") as opened:
        content = opened.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise _UnreadableError
    return json.loads(content)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _UnreadableError
    return value


def _list(value: Any) -> list[Any]:
    """A list; null is an empty one, as Go writes it."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _UnreadableError
    return value
