"""What a pod is to its owners, and which rule of the drain policy is for it. Pure.

Sources: the kinds and labels are those of the Kubeflow training operators, JobSet, KubeRay (`ray-operator`,
utils/constant.go), KServe, Knative and LeaderWorkerSet. A job of Volcano is of kind Job too.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.model.drain import DrainPolicy, PodRule, PodSelector, Workload

TRAINING_OWNERS = frozenset(
    {
        "Job",
        "JobSet",
        "PyTorchJob",
        "TFJob",
        "MPIJob",
        "XGBoostJob",
        "PaddleJob",
        "JAXJob",
        "TrainJob",
        "RayJob",
        "RayCluster",
    }
)
INFERENCE_OWNERS = frozenset(
    {"Deployment", "StatefulSet", "LeaderWorkerSet", "InferenceService", "Revision", "RayService"}
)

JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
RAY_ORIGIN_LABEL = "ray.io/originated-from-crd"
"""Which of KubeRay's kinds a Ray pod comes from: all of them own it through a RayCluster."""

INFRASTRUCTURE_NAMESPACES = ("kube-system", "gpu-operator", "nvidia-*")
INFRASTRUCTURE_PRIORITIES = "system-"
"""Prefix of the two priority classes that Kubernetes keeps for the parts of a cluster."""


@dataclass(frozen=True)
class Owner:
    """A pod's controller, as its users know it: Deployment for a ReplicaSet."""

    kind: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def owner_of(pod: Object) -> Owner | None:
    """The controller that makes the pod anew; None for a bare pod."""
    metadata = pod["metadata"]
    for reference in objects_in(metadata.get("ownerReferences")):
        if not reference.get("controller"):
            continue
        kind, name, uid = (str(reference.get(key) or "") for key in ("kind", "name", "uid"))
        if kind == "ReplicaSet":
            generation = (metadata.get("labels") or {}).get("pod-template-hash")
            return Owner("Deployment", name.removesuffix(f"-{generation}"), uid)
        return Owner(kind, name, uid)
    return None


def workload_of(pod: Object, policy: DrainPolicy) -> Workload:
    """What the pod is: its own label says first, then the site's policy, then what is known of its kind."""
    labels = pod["metadata"].get("labels") or {}
    owner = owner_of(pod)
    if (said := labels.get(names.WORKLOAD_LABEL)) in set(Workload):
        return Workload(said)
    for selector in policy.workloads:
        if fits(selector, pod):
            return selector.workload
    if _is_infrastructure(pod):
        return Workload.INFRASTRUCTURE
    kind = "RayService" if labels.get(RAY_ORIGIN_LABEL) == "RayService" else owner.kind if owner else ""
    if kind in TRAINING_OWNERS or JOBSET_LABEL in labels:
        return Workload.TRAINING
    return Workload.INFERENCE if kind in INFERENCE_OWNERS else Workload.OTHER


def _is_infrastructure(pod: Object) -> bool:
    priority = str((pod.get("spec") or {}).get("priorityClassName") or "")
    return priority.startswith(INFRASTRUCTURE_PRIORITIES) or _in(INFRASTRUCTURE_NAMESPACES, pod)


def fits(selector: PodSelector, pod: Object) -> bool:
    """Whether the selector selects the pod. One that gives nothing selects none."""
    if not (selector.namespaces or selector.labels or selector.owners):
        return False
    if selector.namespaces and not _in(selector.namespaces, pod):
        return False
    labels = pod["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in selector.labels.items()):
        return False
    owner = owner_of(pod)
    return not selector.owners or (owner is not None and owner.kind in selector.owners)


def rule_for(pod: Object, workload: Workload, policy: DrainPolicy) -> PodRule | None:
    """The first rule that fits; None means to evict."""
    for rule in policy.rules:
        if rule.namespaces and not _in(rule.namespaces, pod):
            continue
        if not rule.workloads or workload in rule.workloads:
            return rule
    return None


def _in(patterns: tuple[str, ...], pod: Object) -> bool:
    return any(fnmatchcase(pod["metadata"]["namespace"], pattern) for pattern in patterns)
