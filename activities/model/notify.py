"""Word to the owner of a workload that a fault of the application's kind was seen at its work."""

from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.wire import Wire

MOST_NODES = 20
"""Nodes of a job that are looked at for its pods, and named: the others are a number."""


class KubernetesObject(Wire):
    """An object that an Event can be about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""
    """Empty where no pod says it."""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class NotifyOwner(Wire):
    """Write the Event of a fault to the pods concerned and to their owners."""

    incident: str
    """Workflow id, which the note names."""
    fault: Fault
    nodes: tuple[NodeIdentity, ...]
    """Where pods are looked for."""
    node_count: int = 1
    """Of all nodes that have it."""
    job: KubernetesObject | None = None
    """Only this job and its pods; None for all pods that have GPUs of the nodes, and their owners."""


class OwnerNotified(Wire):
    """Which objects have the Event now."""

    objects: tuple[str, ...] = ()
    """The first of them, such as `PyTorchJob team-a/train`."""
    total: int = 0
    left_out: str = ""
    """Who did not get it, and why; empty where all did."""
