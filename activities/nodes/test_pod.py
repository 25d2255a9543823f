"""The test pod: loads all GPUs of one node, placed by the scheduler like any pod."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.kubernetes.waiting import seconds_until, wait_for
from gpu_runbooks.activities.model.node_task import RunTestPod, TestPodResult
from gpu_runbooks.activities.nodes.node import NODES, allocatable, require_same_machine

LONGEST_MESSAGE = 1000

GRACE_SECONDS = 5
"""The test has nothing to save."""


def name_of(request: RunTestPod) -> str:
    return f"gpu-test-{names.digest(request.incident, request.run_id, str(request.attempt))}"


async def run_test_pod(kubernetes: Kubernetes, request: RunTestPod) -> TestPodResult:
    """Create the test pod or adopt it, wait for its end, and delete it in any case.

    Raises `ApplicationError` NODE_CHANGED for another machine; `KubernetesError`.
    """
    name = name_of(request)
    node_path = f"{NODES}/{request.identity.name}"
    require_same_machine(await kubernetes.request("GET", node_path), request.identity)
    gpus = min(request.gpus, await _free(kubernetes, request, name)) if request.free_only else request.gpus
    if gpus < 1:
        message = "not scheduled: other pods have all GPUs of the node, or it offers none"
        return TestPodResult(outcome="timed_out", pod=name, message=message)
    collection = f"/api/v1/namespaces/{request.template.namespace}/pods"
    try:
        pod = await _created_or_adopted(kubernetes, collection, pod_of(name, request, gpus), request.deadline)
        if pod is None:
            message = "a test pod of this name is still terminating"
            return TestPodResult(outcome="timed_out", pod=name, message=message)
        result = await _end_of(kubernetes, collection, pod, request.identity.name, request.deadline)
        require_same_machine(await kubernetes.request("GET", node_path), request.identity)
        return verified(result, pod, request)
    finally:
        await _delete(kubernetes, f"{collection}/{name}")


def verified(result: TestPodResult, pod: Object, request: RunTestPod) -> TestPodResult:
    """The result with the GPUs that the pod asked for. A success without any, or with too few, is none."""
    had, wanted = gpus_of(pod), 1 if request.free_only else request.gpus
    if result.outcome == "succeeded" and had < wanted:
        message = (
            f"it succeeded on {had} of {wanted} GPUs, which proves nothing of the others: somebody changes "
            f"the pods of namespace {request.template.namespace}, such as an admission webhook"
        )
        return result.model_copy(update={"outcome": "failed", "gpus": had, "message": message})
    return result.model_copy(update={"gpus": had})


async def _free(kubernetes: Kubernetes, request: RunTestPod, test_pod: str) -> int:
    """GPUs that no other pod has, once there are any; 0 at the deadline.

    After a reset the device plugin offers them some seconds later, and on a busy node a pod may end.
    """
    here = {"field_selector": f"metadata.name={request.identity.name}"}

    def offered(nodes: dict[str, Object]) -> Object | None:
        return next((node for node in nodes.values() if allocatable(node, names.GPU_RESOURCE)), None)

    node: Object | None = await wait_for(kubernetes, NODES, offered, request.deadline, **here)
    if node is None:
        return 0
    path, on_it = "/api/v1/pods", {"field_selector": f"spec.nodeName={request.identity.name}"}

    def free(pods: dict[str, Object]) -> int | None:
        count = free_gpus(node, pods.values(), test_pod)
        return count if count > 0 else None

    return await wait_for(kubernetes, path, free, request.deadline, **on_it) or 0


def free_gpus(node: Object, pods: Iterable[Object], test_pod: str) -> int:
    """Allocatable GPUs that no pod on the node has, but for an earlier attempt's test pod of this name.

    A pod that has ended has given its GPUs back; one that is only being deleted has not.
    """
    taken = sum(
        gpus_of(pod)
        for pod in pods
        if pod["metadata"]["name"] != test_pod
        and (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}
    )
    return (allocatable(node, names.GPU_RESOURCE) or 0) - taken


def gpus_of(pod: Object) -> int:
    """GPUs that a pod holds while it runs: those of its containers, or more of one that initialises it."""
    spec = pod.get("spec") or {}
    counts = [_limit(container) for container in spec.get("containers") or ()]
    starting = [_limit(container) for container in spec.get("initContainers") or ()]
    return max(sum(counts), *starting, 0)


def _limit(container: Object) -> int:
    value = ((container.get("resources") or {}).get("limits") or {}).get(names.GPU_RESOURCE, "0")
    return int(value) if str(value).isdecimal() else 0


def pod_of(name: str, request: RunTestPod, gpus: int) -> Object:
    """The Pod to create, which takes this many GPUs.

    The affinity is to the Node's name, which is unique where the hostname label need not be. It tolerates our
    block, the cordon, the taint that keeps pods without GPUs off GPU nodes, and those that policy names; any
    other taint keeps it off.
    """
    ours = (names.BLOCK_TAINT, "node.kubernetes.io/unschedulable", names.GPU_RESOURCE)
    tolerated = dict.fromkeys((*ours, *request.template.tolerations))
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [request.identity.name]}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": request.template.namespace,
            "labels": {
                "app.kubernetes.io/name": "gpu-runbooks",
                "app.kubernetes.io/component": "gpu-test-pod",
                names.INCIDENT_LABEL: names.digest(request.incident),
            },
        },
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}
                }
            },
            "tolerations": [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in tolerated],
            "restartPolicy": "Never",
            "activeDeadlineSeconds": max(1, int(seconds_until(request.deadline))),
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "gpu-test",
                    "image": request.template.image,
                    "command": list(request.template.command),
                    "resources": {"limits": {names.GPU_RESOURCE: str(gpus)}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                }
            ],
        },
    }


def result_of(pod: Object) -> TestPodResult | None:
    """Result of a pod that has ended; None before."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    match status.get("phase"):
        case "Succeeded":
            return TestPodResult(outcome="succeeded", pod=name)
        case "Failed" if status.get("reason") == "DeadlineExceeded":
            return TestPodResult(outcome="timed_out", pod=name, message=_why_failed(status))
        case "Failed":
            return TestPodResult(outcome="failed", pod=name, message=_why_failed(status))
        case _:
            return None


def why_waiting(pod: Object) -> str:
    """Why a pod has not ended yet: the scheduler's word, or the kubelet's."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") != "True":
            return f"not scheduled: {condition.get('message') or condition.get('reason')}"
    for state in _container_states(status, "waiting"):
        return f"its container waits: {state.get('reason')} {state.get('message') or ''}".rstrip()
    return f"it is {status.get('phase') or 'not reported by the kubelet'}"


async def _created_or_adopted(
    kubernetes: Kubernetes, collection: str, pod: Object, deadline: datetime
) -> Object | None:
    """The pod on the server. One that is still being deleted is waited out first; None at the deadline."""
    name = pod["metadata"]["name"]
    while True:
        try:
            return await kubernetes.request("POST", collection, body=pod)
        except KubernetesError as error:
            if error.status != 409:
                raise
        standing = await kubernetes.find(f"{collection}/{name}")
        if standing is None:
            continue
        if not standing["metadata"].get("deletionTimestamp"):
            return standing
        if not await _gone(kubernetes, collection, standing, deadline):
            return None


async def _gone(kubernetes: Kubernetes, collection: str, pod: Object, deadline: datetime) -> bool:
    uid, selector = pod["metadata"]["uid"], f"metadata.name={pod['metadata']['name']}"

    def decide(pods: dict[str, Object]) -> bool | None:
        return None if uid in pods else True

    return bool(await wait_for(kubernetes, collection, decide, deadline, field_selector=selector))


async def _end_of(
    kubernetes: Kubernetes, collection: str, pod: Object, node: str, deadline: datetime
) -> TestPodResult:
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    last = "it was not seen"

    def decide(pods: dict[str, Object]) -> TestPodResult | None:
        nonlocal last
        seen = pods.get(uid)
        if seen is None:
            return TestPodResult(outcome="failed", pod=name, message="somebody deleted it before it ended")
        last = why_waiting(seen)
        ended = result_of(seen)
        ran_on = (seen.get("spec") or {}).get("nodeName")
        if ended is not None and ran_on not in {None, node}:
            message = f"it ran on node {ran_on} and not on {node}: somebody changes its affinity"
            return ended.model_copy(update={"outcome": "failed", "message": message})
        return ended

    ended = await wait_for(kubernetes, collection, decide, deadline, field_selector=f"metadata.name={name}")
    message = f"not ended by the deadline: {last}"[:LONGEST_MESSAGE]
    return ended or TestPodResult(outcome="timed_out", pod=name, message=message)


async def _delete(kubernetes: Kubernetes, path: str) -> None:
    try:
        await kubernetes.request("DELETE", path)
    except KubernetesError as error:
        if error.status != 404:
            raise


def _why_failed(status: dict[str, Any]) -> str:
    ends = [
        f"exit code {state.get('exitCode')} {state.get('reason') or ''} {state.get('message') or ''}".strip()
        for state in _container_states(status, "terminated")
    ]
    said = (status.get("reason"), status.get("message"), *ends)
    return "; ".join(str(part) for part in said if part)[:LONGEST_MESSAGE]


def _container_states(status: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    states = [container.get("state") or {} for container in status.get("containerStatuses") or ()]
    return [state[kind] for state in states if state.get(kind)]
