"""The kubelet's records of allocated GPUs, for simulated nodes, which have no kubelet.

In the format of the kubelet's device manager (`pkg/kubelet/cm/devicemanager/checkpoint`).
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Entry = dict[str, Any]
"""What one container was given of one resource."""

CHECKPOINT = Path("device-plugins", "kubelet_internal_checkpoint")


def assemble(kubelet: Path) -> None:
    """The records of a node on which nothing is allocated."""
    (kubelet / CHECKPOINT).parent.mkdir(parents=True)
    _write(kubelet, [])


def allocate(kubelet: Path, gpu_uuid: str, pod_uid: str) -> None:
    """Give a GPU to a pod, as at the pod's start."""
    entry: Entry = {
        "PodUID": pod_uid,
        "ContainerName": "main",
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": {"0": [gpu_uuid]},
        "AllocResp": "",
    }
    _write(kubelet, [*_entries(kubelet), entry])


def start_pod(kubelet: Path, gpu_uuids: Iterable[str], pod_uid: str, count: int) -> None:
    """Give a pod so many of the node's free GPUs, the first ones, unless it has some."""
    entries = _entries(kubelet)
    if any(entry["PodUID"] == pod_uid for entry in entries):
        return
    taken = {uuid for entry in entries for uuids in entry["DeviceIDs"].values() for uuid in uuids}
    for uuid in [uuid for uuid in gpu_uuids if uuid not in taken][:count]:
        allocate(kubelet, uuid, pod_uid)


def end_pod(kubelet: Path, pod_uid: str) -> None:
    """Take back all that a pod was given. It may be nothing."""
    entries = _entries(kubelet)
    kept = [entry for entry in entries if entry["PodUID"] != pod_uid]
    if len(kept) < len(entries):
        _write(kubelet, kept)


def _entries(kubelet: Path) -> list[Entry]:
    return list(json.loads((kubelet / CHECKPOINT).read_text())["Data"]["PodDeviceEntries"])


def _write(kubelet: Path, entries: list[Entry]) -> None:
    """In one step, as the kubelet does it."""
    content = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0}
    fresh = kubelet / CHECKPOINT.with_suffix(".new")
    fresh.write_text(json.dumps(content))
    fresh.replace(kubelet / CHECKPOINT)
