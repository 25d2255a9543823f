"""What a Pod says of itself: whether it leaves with a drain, what forbids that, and why it stays. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from gpu_runbooks.activities import names
from gpu_runbooks.activities.draining.workloads import fits, owner_of
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.model.drain import BlockerReason, DrainPolicy

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

KARPENTER_ANNOTATION = "karpenter.sh/do-not-disrupt"
"""On a pod its value may also be a duration, such as `1h30m` from the pod's start (Karpenter's design
do-not-disrupt-grace-period)."""

DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:h|ms|m|s))+")
DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

FOREVER = timedelta(days=3650)

KUBELET_SLACK = timedelta(seconds=10)
"""Time after the grace period in which a live kubelet reports the end of a pod."""

CONTAINERS = (
    ("containers", "containerStatuses"),
    ("initContainers", "initContainerStatuses"),
    ("ephemeralContainers", "ephemeralContainerStatuses"),
)
"""Where a pod wants its containers, and where the kubelet reports them."""

Readiness = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class Obstacle:
    """Why a pod is still there: for a program, and for a person."""

    reason: BlockerReason
    message: str
    names: tuple[str, ...] = ()
    until: datetime | None = None
    """When it ends by itself, where that is known."""
    since: datetime | None = None
    """When it began, where the object says so: a drain may look later."""


def belongs_to_node(pod: Object) -> bool:
    """A pod that no drain touches: of a DaemonSet, or the mirror of a static pod."""
    metadata = pod["metadata"]
    owners = objects_in(metadata.get("ownerReferences"))
    return is_mirror(pod) or any(
        owner.get("kind") == "DaemonSet" and owner.get("controller") for owner in owners
    )


def is_mirror(pod: Object) -> bool:
    """The mirror of a static pod: the node itself starts it, and the API cannot end it."""
    metadata = pod["metadata"]
    if MIRROR_ANNOTATION in (metadata.get("annotations") or {}):
        return True
    return any(owner.get("kind") == "Node" for owner in objects_in(metadata.get("ownerReferences")))


def has_finished(pod: Object) -> bool:
    """Its phase says that it ended. That alone proves nothing: the control plane sets it too."""
    return status_of(pod).get("phase") in {"Succeeded", "Failed"}


def proven_finished(pod: Object, node_ready: Readiness) -> bool:
    """It has finished, no container is reported as running, and nobody gave it up on a silent node.

    The pod garbage collector and the eviction of a lost node set `Failed` without any word of the kubelet.
    """
    silent = is_terminating(pod) and node_ready != "True"
    return has_finished(pod) and not running_containers(pod) and not silent


def running_containers(pod: Object) -> tuple[str, ...]:
    """Names of the containers, of any kind, that the kubelet last reported as running."""
    status = status_of(pod)
    return tuple(
        str(each.get("name"))
        for _, reported in CONTAINERS
        for each in objects_in(status.get(reported))
        if isinstance(state := each.get("state"), dict) and state.get("running") is not None
    )


def is_terminating(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_ready(pod: Object) -> bool:
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in objects_in(status_of(pod).get("conditions"))
    )


def was_evicted(pod: Object) -> bool:
    """The Eviction API began its deletion, whoever asked (source: kubernetes, registry/core/pod/storage)."""
    return any(
        condition.get("type") == "DisruptionTarget" and condition.get("reason") == "EvictionByEvictionAPI"
        for condition in objects_in(status_of(pod).get("conditions"))
    )


def empty_dirs(pod: Object) -> tuple[str, ...]:
    """Names of the volumes whose data ends with the pod."""
    volumes = objects_in(spec_of(pod).get("volumes"))
    return tuple(str(volume.get("name", "?")) for volume in volumes if volume.get("emptyDir") is not None)


def containers_ended(pod: Object) -> bool:
    """Every container of the pod, init and ephemeral ones too, is reported as terminated."""
    spec, status = spec_of(pod), status_of(pod)
    for wanted, reported in CONTAINERS:
        ended = {
            each.get("name")
            for each in status.get(reported) or ()
            if (each.get("state") or {}).get("terminated") is not None
        }
        if any(container.get("name") not in ended for container in spec.get(wanted) or ()):
            return False
    return bool(spec.get("containers"))


def tolerates_block(pod: Object) -> bool:
    """The scheduler may place such a pod on a blocked node."""
    tolerations = objects_in(spec_of(pod).get("tolerations"))
    return all(
        any(_tolerates(toleration, key) for toleration in tolerations)
        for key in (names.BLOCK_TAINT, "node.kubernetes.io/unschedulable")
    )


def _tolerates(toleration: Object, key: str) -> bool:
    # a value is compared only by operator Equal, and a rule's name is nobody's toleration by chance
    everything = not toleration.get("key") and toleration.get("operator") == "Exists"
    return toleration.get("effect") in {None, "", "NoSchedule"} and (
        everything or toleration.get("key") == key
    )


# --- what forbids an eviction ---------------------------------------------------------------------------


def protections(
    pod: Object, policy: DrainPolicy, now: datetime, *, bare_stays: bool = False
) -> Iterator[Obstacle]:
    """Everything by which its owner or policy forbids the pod's eviction now."""
    for selector in policy.essential:
        if fits(selector, pod):
            marks = ", ".join(f"{key}={value}" for key, value in selector.labels.items())
            marks = marks or ", ".join((*selector.namespaces, *selector.owners))
            yield Obstacle(
                BlockerReason.ESSENTIAL,
                f"drains run on it themselves ({marks}): move it to another node, or order its eviction",
            )
    yield from _annotated(pod, policy, now)
    bare = owner_of(pod) is None
    if bare and bare_stays:
        yield Obstacle(
            BlockerReason.BARE_POD,
            "it has no controller, so nobody would start it again: restart it by hand, or order its eviction",
        )
    elif bare and policy.bare_pods == "block":
        yield Obstacle(
            BlockerReason.BARE_POD,
            "it has no controller, so it would be gone for good, and policy forbids that: delete it or order "
            "its eviction",
        )
    if policy.empty_dir == "block" and (volumes := empty_dirs(pod)):
        yield Obstacle(
            BlockerReason.EMPTY_DIR,
            f"its emptyDir volumes {', '.join(volumes)} would be lost, and policy forbids that: save what "
            "counts, then order its eviction",
            volumes,
        )


def _annotated(pod: Object, policy: DrainPolicy, now: datetime) -> Iterator[Obstacle]:
    annotations = pod["metadata"].get("annotations") or {}
    for name, forbidding in policy.protecting.items():
        value = str(annotations.get(name, "")).strip().lower()
        until = _protected_until(pod, value, now) if name == KARPENTER_ANNOTATION else None
        if until is not None and now < until:
            yield Obstacle(
                BlockerReason.DO_NOT_DISRUPT,
                f"its annotation {name}={value} forbids eviction until {until:%Y-%m-%d %H:%M:%S} UTC",
                (name,),
                until,
            )
        elif until is None and value in forbidding:
            yield Obstacle(
                BlockerReason.DO_NOT_DISRUPT,
                f"its annotation {name}={value} forbids eviction: wait for its end, or have its owner remove "
                "the annotation, or order its eviction",
                (name,),
            )


def _protected_until(pod: Object, value: str, now: datetime) -> datetime | None:
    """End of a protection that is given as a duration; None where it is none."""
    if not DURATION.fullmatch(value):
        return None
    seconds = sum(float(count) * SECONDS[unit] for count, unit in DURATION_PART.findall(value))
    started = status_of(pod).get("startTime")
    if not started:  # its time has not begun to run
        return now + FOREVER
    return moment(started) + timedelta(seconds=min(seconds, FOREVER.total_seconds()))


# --- why a deleted pod is still there -------------------------------------------------------------------


def termination(
    pod: Object, node_ready: Readiness, now: datetime, ready_since: datetime | None = None
) -> Obstacle:
    """Why a pod whose deletion has begun is still there.

    `deletionTimestamp` is the moment at which its grace period ends; a kubelet that has ended the containers
    sets the period to 0. `ready_since`: since when the node is as `node_ready` says.
    """
    metadata = pod["metadata"]
    ends = moment(metadata["deletionTimestamp"])
    finalizers = tuple(str(each) for each in metadata.get("finalizers") or ())
    # a forced deletion sets it too, and on a node that is not Ready nobody ends what runs
    ended = node_ready == "True" or not running_containers(pod)
    confirmed = metadata.get("deletionGracePeriodSeconds") == 0 and ended
    if finalizers and confirmed:
        return _kept_by(finalizers, min(ends, now))
    if node_ready != "True" and not confirmed:
        return Obstacle(
            BlockerReason.DEAD_KUBELET,
            f"the node is {state_in_words(node_ready)}: nobody ends the pod or confirms that its containers "
            "ended. Have the machine rebooted or replaced; a forced deletion proves nothing",
            tuple(filter(None, [spec_of(pod).get("nodeName")])),
            since=ready_since,
        )
    if now - KUBELET_SLACK <= ends:
        return Obstacle(
            BlockerReason.TERMINATING, f"its grace period ends at {ends:%H:%M:%S} UTC", until=ends
        )
    if finalizers:
        return _kept_by(finalizers, ends)
    return Obstacle(
        BlockerReason.NOT_ENDED,
        f"its grace period ended at {ends:%H:%M:%S} UTC and the kubelet has not ended it: look for processes "
        "that cannot be killed (state D) and at the kubelet's log on the node",
        since=ends,
    )


def state_in_words(node_ready: Readiness) -> str:
    """A node that is not Ready: its kubelet says nothing, or says so itself."""
    return f"{'not Ready' if node_ready == 'False' else 'silent'} (Ready={node_ready})"


def _kept_by(finalizers: tuple[str, ...], since: datetime) -> Obstacle:
    return Obstacle(
        BlockerReason.FINALIZER,
        f"stuck on finalizer {', '.join(finalizers)}: see whether the controller that owns it is running; it "
        "has to remove it",
        finalizers,
        since=since,
    )


def still_running(containers: tuple[str, ...]) -> Obstacle:
    """A pod whose phase says that it ended, and its containers do not. Evicted, it would vanish unproven."""
    return Obstacle(
        BlockerReason.NOT_ENDED,
        f"its phase says that it ended, but {', '.join(containers)} is reported as running: waiting "
        "for the kubelet's word; see the container runtime on the node",
        containers,
    )


# --- reading --------------------------------------------------------------------------------------------


def full_name(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def spec_of(pod: Object) -> Object:
    return pod.get("spec") or {}


def status_of(pod: Object) -> Object:
    return pod.get("status") or {}


def moment(text: str) -> datetime:
    """A time of the API. Raises `ValueError` for anything else."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (TypeError, OverflowError) as error:  # the last hours of year 9999, west of Greenwich
        raise ValueError(f"no time: {text!r}") from error
