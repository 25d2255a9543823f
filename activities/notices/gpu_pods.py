"""Which pods have GPUs of a node: by what they request, which is cheap to ask and says no more than that."""

from datetime import datetime, timedelta
from typing import Any

from gpu_runbooks.activities import names
from gpu_runbooks.activities.draining.pods import belongs_to_node, full_name, has_finished
from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.model.fault import Fault

MIG_RESOURCES = "nvidia.com/mig-"
SHARED_RESOURCE = f"{names.GPU_RESOURCE}.shared"
"""What the device plugin calls the parts of a GPU: its MIG slices, and its shares in time."""

JUST_ENDED = timedelta(minutes=5)
"""So long before a fault was first seen may its pod have ended: an alert comes after the crash."""


async def gpu_pods(kubernetes: Kubernetes, node: str, fault: Fault) -> list[Object]:
    """Pods with GPUs of a node at the time of a fault: the one that the fault names, else all.

    Raises `KubernetesError`.
    """
    pods = await kubernetes.items("/api/v1/pods", field_selector=f"spec.nodeName={node}")
    having = [pod for pod in pods if has_gpus(pod) and not belongs_to_node(pod) and _was_there(pod, fault)]
    named = [pod for pod in having if full_name(pod) == fault.pod]
    return named or having


def has_gpus(pod: Object) -> bool:
    """Whether a container of the pod asks for a GPU, a slice of one, or a share."""
    spec = pod.get("spec") or {}
    containers = objects_in(spec.get("containers")) + objects_in(spec.get("initContainers"))
    wanted: set[str] = set()
    for container in containers:
        resources = container.get("resources") or {}
        for asked in (resources.get("limits"), resources.get("requests")):
            wanted |= {name for name, amount in (asked or {}).items() if str(amount) != "0"}
    return any(
        name in {names.GPU_RESOURCE, SHARED_RESOURCE} or name.startswith(MIG_RESOURCES) for name in wanted
    )


def _was_there(pod: Object, fault: Fault) -> bool:
    """Neither made after the fault was reported, nor over before it began."""
    made = _moment(pod["metadata"].get("creationTimestamp"))
    if made is not None and made > fault.last_seen:
        return False
    if not has_finished(pod):
        return True
    ended = _ended(pod)
    return ended is not None and ended >= fault.first_seen - JUST_ENDED


def _ended(pod: Object) -> datetime | None:
    """When its last container ended; None where the kubelet did not say so."""
    states = [
        (container.get("state") or {}).get("terminated") or {}
        for container in objects_in((pod.get("status") or {}).get("containerStatuses"))
    ]
    return max(filter(None, (_moment(state.get("finishedAt")) for state in states)), default=None)


def _moment(text: Any) -> datetime | None:
    """A time of Kubernetes; None for none, and for the year 1 that some write in its place."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo is not None and moment.year > 1 else None
