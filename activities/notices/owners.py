"""Who owns a pod in the end: the object that its users know as their job or service. Pure.

A pod names its controller only. What stands above that is in labels that the controllers write into their
pods, so nothing but pods has to be read. Sources of the labels: Kubernetes (batch/v1), JobSet
(docs, "JobSet labels"), Kubeflow training operator (pkg/apis/kubeflow.org/v1), KubeRay (ray-operator,
utils/constant.go), LeaderWorkerSet (api/leaderworkerset/v1), Volcano (apis/batch/v1alpha1/labels.go).
"""

from collections.abc import Mapping

from gpu_runbooks.activities.draining.workloads import JOBSET_LABEL, RAY_ORIGIN_LABEL
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.model.notify import KubernetesObject

JOBSET_UID_LABEL = "jobset.sigs.k8s.io/jobset-uid"
RAY_NAME_LABEL = "ray.io/originated-from-cr-name"
LEADER_WORKER_SET_LABEL = "leaderworkerset.sigs.k8s.io/name"
KUBEFLOW_LABEL = "training.kubeflow.org/job-name"
VOLCANO_LABEL = "volcano.sh/job-name"

OF_NODES = frozenset({"DaemonSet", "Node"})
"""Owners of what runs on every node: no job, whatever its pods have in common."""


def itself(pod: Object) -> KubernetesObject:
    """The pod as an object of an Event."""
    metadata = pod["metadata"]
    return KubernetesObject(
        api_version="v1",
        kind="Pod",
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
    )


def top_owner(pod: Object) -> KubernetesObject | None:
    """The highest owner that a pod tells of; None for a bare pod."""
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    controller = _controller(pod)
    if name := labels.get(JOBSET_LABEL):
        return _above(pod, "jobset.x-k8s.io/v1alpha2", "JobSet", name, labels.get(JOBSET_UID_LABEL, ""))
    if (kind := labels.get(RAY_ORIGIN_LABEL)) and (name := labels.get(RAY_NAME_LABEL)):
        if controller and (controller.kind, controller.name) == (kind, name):
            return controller
        return _above(pod, "ray.io/v1", kind, name)
    if name := labels.get(LEADER_WORKER_SET_LABEL):
        return _above(pod, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name)
    if (name := labels.get(KUBEFLOW_LABEL)) and controller and controller.kind == "Job":
        # The launcher of an MPIJob has a Job in between; its other pods are its own.
        return _above(pod, "kubeflow.org/v2beta1", "MPIJob", name)
    if controller is None and (name := labels.get(VOLCANO_LABEL)):
        return _above(pod, "batch.volcano.sh/v1alpha1", "Job", name)
    return controller


def job_of(pod: Object) -> KubernetesObject | None:
    """The job that a pod is part of; None for a bare pod, and for one of every node."""
    owner = top_owner(pod)
    return None if owner is None or owner.kind in OF_NODES else owner


def is_same(one: KubernetesObject | None, other: KubernetesObject) -> bool:
    """Whether both are the same object, by the names that people use."""
    return one is not None and str(one) == str(other)


def _above(pod: Object, api_version: str, kind: str, name: str, uid: str = "") -> KubernetesObject:
    namespace = pod["metadata"]["namespace"]
    return KubernetesObject(api_version=api_version, kind=kind, namespace=namespace, name=name, uid=uid)


def _controller(pod: Object) -> KubernetesObject | None:
    metadata = pod["metadata"]
    for reference in objects_in(metadata.get("ownerReferences")):
        if not reference.get("controller"):
            continue
        api_version, kind, name, uid = (
            str(reference.get(key) or "") for key in ("apiVersion", "kind", "name", "uid")
        )
        if kind == "ReplicaSet":
            generation = (metadata.get("labels") or {}).get("pod-template-hash")
            return _above(pod, api_version, "Deployment", name.removesuffix(f"-{generation}"))
        return _above(pod, api_version, kind, name, uid)
    return None
