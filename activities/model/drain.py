"""A drain: which pods leave a node, how, and what keeps them."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from pydantic import Field

from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.wire import Moment, Span, Wire

LONGEST_GRACE = timedelta(hours=2)
"""How long beyond its deadline a drain waits at most for grace periods that still run then."""


class Workload(StrEnum):
    """What a pod is to its owners."""

    TRAINING = "training"
    """A worker of a job: losing it loses the work since its last checkpoint."""
    INFERENCE = "inference"
    """One of several replicas that serve requests."""
    INFRASTRUCTURE = "infrastructure"
    """Serves the cluster itself."""
    OTHER = "other"


class DrainMethod(StrEnum):
    """How a pod is made to leave. All of them end at the Eviction API."""

    EVICT = "evict"
    WAIT_FOR_COMPLETION = "wait_for_completion"
    """Leave it alone until it ends by itself or the rule's deadline passes, then evict."""
    CHECKPOINT_THEN_EVICT = "checkpoint_then_evict"
    """Ask it to checkpoint, wait until it says so or the rule's deadline passes, then evict."""


class PodSelector(Wire):
    """Some pods: in one of the namespaces, with all the labels, of one of the owner kinds.

    What is not given does not count; a selector that gives nothing selects no pod.
    """

    namespaces: tuple[str, ...] = ()
    """Shell patterns."""
    labels: dict[str, str] = Field(default={})
    owners: tuple[str, ...] = ()
    """Kinds of a pod's controller, such as `PyTorchJob`. A ReplicaSet counts as `Deployment`."""


class WorkloadSelector(PodSelector):
    """Pods that are of a workload."""

    workload: Workload


class PodRule(Wire):
    """How the pods that it fits leave a node."""

    name: str
    namespaces: tuple[str, ...] = ()
    """Shell patterns; empty for all."""
    workloads: tuple[Workload, ...] = ()
    """Empty for all."""
    method: DrainMethod
    deadline: Span = timedelta(0)
    """Longest wait for completion or checkpoint, from the start of the drain."""
    checkpoint_port: int | None = None
    """Port of the pod on which it is asked to checkpoint; None asks by annotation."""
    checkpoint_path: str = "/checkpoint"


PROTECTING: dict[str, tuple[str, ...]] = {
    "karpenter.sh/do-not-disrupt": ("true",),
    "karpenter.sh/do-not-evict": ("true",),  # its name before Karpenter v1beta1, still found on workloads
    "cluster-autoscaler.kubernetes.io/safe-to-evict": ("false",),
    "gpu-runbooks.dev/do-not-disrupt": ("true",),
}

TEMPORAL = (
    PodSelector(labels={"app.kubernetes.io/name": "temporal"}),
    PodSelector(labels={"app.kubernetes.io/part-of": "temporal"}),
)
"""Pods of Temporal's own Helm chart, by its labels."""


class DrainPolicy(Wire):
    """What a drain owes to pods. The first rule that fits a pod decides, none means `evict`."""

    rules: tuple[PodRule, ...] = ()
    workloads: tuple[WorkloadSelector, ...] = ()
    """The site's own, before the built-in ones."""
    protecting: dict[str, tuple[str, ...]] = Field(default=PROTECTING)
    """Annotations by which an owner forbids eviction, each with the values that do, in small letters."""
    essential: tuple[PodSelector, ...] = TEMPORAL
    """Pods that no drain may evict, since it runs on them."""
    bare_pods: Literal["report", "block"] = "report"
    """A pod without a controller is made anew by nobody."""
    empty_dir: Literal["report", "block"] = "report"
    """The data of an emptyDir volume ends with its pod."""
    finalizers: Literal["wait", "accept_when_stopped"] = "wait"
    """Whether a deleted pod that only a finalizer keeps counts as gone once all its containers ended."""
    silent_node: Span = timedelta(minutes=2)
    """How long to wait for a node that is not Ready: nobody there ends pods or says that they ended."""


class OverrideMethod(StrEnum):
    """What an operator may order for a pod that keeps a drain from ending."""

    EVICT = "evict"
    """Despite its annotation, policy or wait. Its budgets still hold."""
    DELETE = "delete"
    """With its own grace period, despite its budgets."""
    ABANDON = "abandon"
    """Go on without it: the machine may be reset or rebooted under it."""


class PodOverride(Wire):
    """An operator's order for one pod, for this incident only."""

    uid: str
    method: OverrideMethod
    operator: str
    reason: str


class DrainPods(Wire):
    """Have pods leave a node: all that do not belong to it, or `only` some."""

    identity: NodeIdentity
    incident: str
    run_id: str
    started: datetime
    """When the incident began this drain: the deadlines of the rules count from here, whoever resumes it."""
    deadline: datetime
    policy: DrainPolicy
    overrides: tuple[PodOverride, ...] = Field(default=(), max_length=100)
    only: tuple[str, ...] | None = Field(default=None, max_length=64)
    """UIDs of the pods that are to leave. The others stay."""
    restart: bool = False
    """They are to be made anew by their owners, here or elsewhere: the node needs no block, and a pod that
    nobody would make anew stays."""
    seen_until: datetime | None = None
    """Of a restart, when the fault was last seen: pods that were made later had no part in it, and stay."""


class BlockerReason(StrEnum):
    """Why a pod is still on the node."""

    NOT_TRIED = "not-tried"
    COMPLETION = "waiting-for-completion"
    CHECKPOINT = "waiting-for-checkpoint"
    TERMINATING = "terminating"
    """Its grace period runs."""
    BUDGET = "budget"
    BUDGET_NOT_OBSERVED = "budget-not-observed"
    """The budget changed, and its controller has not counted its pods since."""
    UNHEALTHY_BEHIND_BUDGET = "unhealthy-behind-budget"
    """The pod itself is not Ready, and its budget protects it all the same: waiting cures nothing."""
    TWO_BUDGETS = "two-budgets"
    THROTTLED = "throttled"
    API_SERVER = "api-server"
    """No answer, or an error of the server."""
    DENIED = "denied"
    """An admission policy or webhook said no."""
    FORBIDDEN = "forbidden"
    NAMESPACE_TERMINATING = "namespace-terminating"
    FINALIZER = "finalizer"
    DEAD_KUBELET = "dead-kubelet"
    """The node is silent: nobody can confirm that the containers ended."""
    NOT_ENDED = "not-ended"
    """Its grace period is over, and a live kubelet has not ended it."""
    NOT_DELETED = "not-deleted"
    """The eviction was accepted, and the pod's deletion has not begun."""
    RESPAWNING = "respawning"
    """Its owner makes it again on this node, block or not."""
    BARE_POD = "bare-pod"
    EMPTY_DIR = "empty-dir"
    DO_NOT_DISRUPT = "do-not-disrupt"
    ESSENTIAL = "essential"
    OWN_WORKER = "own-worker"
    UNREADABLE = "unreadable"
    """The API server's object cannot be understood, so nothing is known of it."""


class PodBlocker(Wire):
    """A pod that keeps a drain from ending."""

    namespace: str
    name: str
    uid: str
    workload: Workload = Workload.OTHER
    reason: BlockerReason
    names: tuple[str, ...] = ()
    """Budgets, finalizers, webhook, annotation or owner that the reason is about."""
    message: str
    """The reason in words, with what to do."""
    attempts: int
    """Evictions asked for."""
    since: Moment
    """Since when for this reason."""


class DrainProgress(Wire):
    """How far a drain is: signal `drain_progress` of an incident, sent when something stands in the way."""

    started: Moment
    """Of the drain that it is about."""
    remaining: int
    gone: int
    blockers: tuple[PodBlocker, ...] = ()


class EvidenceReference(Wire):
    """Where a list lies that is too long for the history."""

    digest: str
    """`sha256:` and the hexadecimal digest of the content."""
    location: str
    """URL, or empty where there is no sink or it did not take the content."""
    size: int
    """Bytes."""
    problem: str = ""
    """Why it lies nowhere."""


class DrainResult(Wire):
    """Outcome of a drain. Only `drained` unlocks a reset, reboot or replacement."""

    outcome: Literal["drained", "blocked", "cancelled", "failed"]
    gone: int = 0
    """Pods that were on the node and are gone, of which the next lines say how."""
    evicted: int = 0
    completed: int = 0
    """Ended by themselves."""
    checkpointed: int = 0
    """Acknowledged a checkpoint before their eviction."""
    deleted: int = 0
    abandoned: int = 0
    """Left where they are by an operator's order; not gone."""
    skipped: int = 0
    """DaemonSet, mirror and finished pods."""
    blockers: tuple[PodBlocker, ...] = ()
    """At most 20; `blocked_total` counts all."""
    blocked_total: int = 0
    message: str = ""
    evidence: EvidenceReference | None = None
    """Every pod with what was done to it."""
