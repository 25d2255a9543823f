"""Which pods hold the GPUs that faults name: from the agent's measurement, never guessed. Pure."""

from collections.abc import Iterable, Sequence

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


def one_gpu(
    facts: HardwareFacts | None, gpus: Sequence[tuple[str | None, str | None]]
) -> tuple[str | None, str | None]:
    """The GPU that all these are, each by UUID or PCI address; nothing for several.

    An exporter names a GPU by one, a log by the other: only what was measured tells that they are the same.
    """
    if len(gpus) == 1 or facts is None:
        return gpus[0] if len(gpus) == 1 else (None, None)
    found = [_find(facts, *gpu) for gpu in gpus]
    first = found[0] if found else None
    same = first is not None and all(gpu is not None and gpu.index == first.index for gpu in found)
    return (first.uuid, first.pci_address) if first is not None and same else (None, None)


def sees(facts: HardwareFacts | None, gpu: tuple[str | None, str | None]) -> bool:
    """Whether the GPU of this UUID or PCI address was measured; True where nothing was: nobody looked."""
    return facts is None or _find(facts, *gpu) is not None


def reset_alone(facts: HardwareFacts | None, gpu: tuple[str | None, str | None]) -> bool | None:
    """Whether the GPU of this UUID and PCI address can be reset by itself; None where nothing was measured.

    What the agent does not know counts as no: then all GPUs are reset together.
    """
    if facts is None:
        return None
    found = _find(facts, *gpu)
    return found is not None and found.reset_alone is True


def pods_of(facts: HardwareFacts | None, gpu: tuple[str | None, str | None]) -> tuple[str, ...] | None:
    """UIDs of the pods that have a GPU, whether they use it or were only given it.

    None where that is not known for sure, or where the GPU is not reset by itself: then the whole node is
    drained. Processes of the host are no pods: they are the business of the pause of the GPU services.
    """
    if not reset_alone(facts, gpu) or facts is None:
        return None
    found = _find(facts, *gpu)
    if found is None or found.mig_enabled is not False:
        return None
    if found.pod_uids is None or found.host_processes is None or found.allocated_pod_uids is None:
        return None
    pods = tuple(dict.fromkeys((*found.pod_uids, *found.allocated_pod_uids)))
    return pods if len(pods) <= MOST_PODS else None


def _find(facts: HardwareFacts, uuid: str | None, pci_address: str | None) -> GpuFacts | None:
    """The GPU of this UUID, else of this PCI address; None where neither is given or seen."""
    for gpu in facts.gpus:
        if uuid is not None and gpu.uuid == uuid:
            return gpu
        if uuid is None and pci_address is not None and gpu.pci_address == pci_address:
            return gpu
    return None


def _gpu_of(facts: HardwareFacts | None, fault: Fault) -> GpuFacts:
    entity = fault.entity
    if entity.uuid is None and entity.pci_address is None:
        raise HoldersUnknownError(
            f"{fault.source} {fault.code} names no GPU, by UUID or PCI address: nobody knows whose pods to "
            "restart. Find the pod and restart it, or give the alert a label with the GPU"
        )
    if facts is None:
        raise HoldersUnknownError(f"the agent measured nothing: nobody knows the pods on {_name(fault)}")
    found = _find(facts, entity.uuid, entity.pci_address)
    if found is None:
        raise HoldersUnknownError(f"the agent does not see {_name(fault)} on this node")
    return found


def _name(fault: Fault) -> str:
    return f"GPU {fault.entity.uuid or fault.entity.pci_address}"
