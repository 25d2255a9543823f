"""What a drain owes to each pod of a node: leave it, wait for it, or evict it. Pure."""

from datetime import UTC, datetime, timedelta

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes import Object

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

PROTECTING_ANNOTATIONS = {
    "karpenter.sh/do-not-disrupt": "true",
    "karpenter.sh/do-not-evict": "true",  # its name before Karpenter v1beta1, still found on workloads
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    f"{names.PREFIX}/do-not-disrupt": "true",
}
"""Annotation and value by which an owner asks that a pod is not evicted."""

KUBELET_SLACK = timedelta(seconds=10)
"""Time after the grace period in which a live kubelet reports the end of a pod."""


def stays(pod: Object) -> bool:
    """A pod that a drain leaves alone: of a DaemonSet, a mirror of a static pod, or finished."""
    metadata = pod["metadata"]
    if MIRROR_ANNOTATION in (metadata.get("annotations") or {}):
        return True
    if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
        return True
    owners = metadata.get("ownerReferences") or ()
    return any(
        owner.get("kind") == "Node" or (owner.get("kind") == "DaemonSet" and owner.get("controller"))
        for owner in owners
    )


def protection(pod: Object, own_pod_uid: str) -> str | None:
    """Why no eviction of this pod may be asked for; None where it may."""
    metadata = pod["metadata"]
    if own_pod_uid and metadata["uid"] == own_pod_uid:
        return "it is the worker that drains the node: let a worker on another node take over"
    annotations = metadata.get("annotations") or {}
    for name, value in PROTECTING_ANNOTATIONS.items():
        if annotations.get(name) == value:
            return f"its annotation {name}={value} forbids eviction: wait for its end, or remove it"
    return None


def is_terminating(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def termination(pod: Object, node_ready: str, now: datetime) -> str:
    """Why a pod whose deletion has begun is still there.

    `deletionTimestamp` is the moment at which its grace period ends.
    """
    metadata = pod["metadata"]
    ends = datetime.fromisoformat(metadata["deletionTimestamp"]).astimezone(UTC)
    if now <= ends + KUBELET_SLACK and metadata.get("deletionGracePeriodSeconds") != 0:
        return f"terminating, its grace period ends at {ends.isoformat()}"
    if finalizers := metadata.get("finalizers"):
        return f"stuck on finalizer {', '.join(finalizers)}: its owner has to remove it"
    if node_ready != "True":
        return f"the node is silent (Ready={node_ready}): nobody can confirm that the pod's containers ended"
    return f"its grace period ended at {ends.isoformat()} and the kubelet has not ended it"


def full_name(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
