"""Which pods hold the GPUs that faults name: from the agent's measurement, never guessed. Pure."""

from collections.abc import Iterable

from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.node_task import GpuFacts, HardwareFacts

MOST_PODS = 64
"""Pods that one restart may name."""


class HoldersUnknownError(Exception):
    """Nobody can say which pods hold the GPU. The message says why, for a person."""


def pods_holding(facts: HardwareFacts | None, faults: Iterable[Fault]) -> tuple[str, ...]:
    """UIDs of the pods whose processes hold the GPUs of these faults; empty where nothing holds them.

    Raises `HoldersUnknownError` for a fault that names no GPU, a GPU that the agent does not see, and a GPU
    whose processes it cannot place.
    """
    found: dict[str, None] = {}
    for fault in faults:
        gpu = _gpu_of(facts, fault)
        if gpu.pod_uids is None or gpu.host_processes is None:
            raise HoldersUnknownError(f"the agent cannot say which pods hold {_name(fault)}")
        if not gpu.pod_uids and gpu.host_processes:
            raise HoldersUnknownError(
                f"no pod, but {gpu.host_processes} processes of the host hold {_name(fault)}, see nvidia-smi"
            )
        found |= dict.fromkeys(gpu.pod_uids)
    if len(found) > MOST_PODS:
        raise HoldersUnknownError(
            f"{len(found)} pods hold the GPUs: more than a restart ends, drain the node"
        )
    return tuple(found)


def _gpu_of(facts: HardwareFacts | None, fault: Fault) -> GpuFacts:
    entity = fault.entity
    if entity.uuid is None and entity.pci_address is None:
        raise HoldersUnknownError(
            f"{fault.source} {fault.code} names no GPU, by UUID or PCI address: nobody knows whose pods to "
            "restart. Find the pod and restart it, or give the alert a label with the GPU"
        )
    if facts is None:
        raise HoldersUnknownError(f"the agent measured nothing: nobody knows the pods on {_name(fault)}")
    for gpu in facts.gpus:
        if entity.uuid is not None and gpu.uuid == entity.uuid:
            return gpu
        if entity.uuid is None and gpu.pci_address == entity.pci_address:
            return gpu
    raise HoldersUnknownError(f"the agent does not see {_name(fault)} on this node")


def _name(fault: Fault) -> str:
    return f"GPU {fault.entity.uuid or fault.entity.pci_address}"
