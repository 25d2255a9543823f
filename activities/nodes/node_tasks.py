"""NodeTasks: what the agent of a node is asked to do, and what it answered.

The name follows from incident, kind and attempt, so a worker that starts again finds the task of its
predecessor and asks nothing twice.
"""

import logging
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ValidationError

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.kubernetes.waiting import seconds_until, wait_for
from gpu_runbooks.activities.model.node_task import (
    HardwareFacts,
    NodeTaskKind,
    NodeTaskResult,
    ResetOutcome,
    RunNodeTask,
)

LONGEST_MESSAGE = 1000
"""Characters of the agent's message that go into the history."""

LARGEST_FACTS = 12 * 1024
"""Bytes of its facts that do: a payload holds 16 KiB. Sixteen GPUs with a few pods each stay below it."""


def tasks_path(namespace: str) -> str:
    group = f"{names.NODE_TASK_GROUP}/{names.NODE_TASK_VERSION}"
    return f"/apis/{group}/namespaces/{namespace}/{names.NODE_TASK_PLURAL}"


def name_of(request: RunNodeTask) -> str:
    parts = (request.incident, request.run_id, request.kind, str(request.attempt))
    return f"{request.kind.lower()}-{names.digest(*parts)}"


HARMLESS = frozenset({NodeTaskKind.MEASURE, NodeTaskKind.COLLECT})
"""Kinds that may be done twice: their task is deleted as soon as its result is here."""

logger = logging.getLogger(__name__)


async def run_node_task(kubernetes: Kubernetes, namespace: str, request: RunNodeTask) -> NodeTaskResult:
    """Create the task or adopt it, watch it to its end, and delete it if it only measured.

    `not_started`: no agent took it by its start deadline, and none will, since it is deleted. `timed_out`: it
    was started and has not ended by its deadline, so nobody knows what it did.

    Raises `ApplicationError` BAD_INPUT when a task of this name asks for something else; `KubernetesError`.
    """
    result, _ = await carry_out(kubernetes, namespace, request)
    return result.model_copy(update={"facts": for_history(result.facts)})


async def carry_out(
    kubernetes: Kubernetes, namespace: str, request: RunNodeTask
) -> tuple[NodeTaskResult, Object]:
    """As `run_node_task`, and the ended task with all that the agent wrote; empty where it has not ended.

    A worker that dies after the deletion of a task that measured has it measured again.
    """
    ended = await _watched_to_its_end(kubernetes, namespace, request)
    result, task = (ended, {}) if isinstance(ended, NodeTaskResult) else (result_of(ended), ended)
    if request.kind in HARMLESS:
        try:
            await delete_node_task(kubernetes, namespace, result.task)
        except KubernetesError as error:
            # What was measured counts more than a task that lies about, which nobody carries out again.
            logger.warning("NodeTask %s is not deleted: %s", result.task, error)
    return result, task


async def _watched_to_its_end(
    kubernetes: Kubernetes, namespace: str, request: RunNodeTask
) -> Object | NodeTaskResult:
    """The ended task; a result where it did not end."""
    name = name_of(request)
    collection = tasks_path(namespace)
    task = await kubernetes.find(f"{collection}/{name}")
    if task is None:
        if seconds_until(request.start_deadline) <= 0:
            return NodeTaskResult(
                task=name, outcome="not_started", message="its start deadline passed before it was created"
            )
        task = await _create(kubernetes, collection, task_of(name, namespace, request))
    _require_same_spec(task, request)
    uid = task["metadata"]["uid"]
    while not is_started(task):
        seen = await _follow(kubernetes, collection, name, uid, request.start_deadline, started=True)
        if isinstance(seen, NodeTaskResult):
            return seen
        task = seen or task
        if not is_started(task) and await _withdrawn(kubernetes, f"{collection}/{name}", task):
            message = (
                f"no agent on node {request.identity.name} took it by {request.start_deadline.isoformat()}"
            )
            return NodeTaskResult(task=name, outcome="not_started", message=message)
        if not is_started(task):
            task = await kubernetes.request("GET", f"{collection}/{name}")
    seen = await _follow(kubernetes, collection, name, uid, request.deadline, started=False)
    if seen is not None:
        return seen
    message = f"started and not ended by {request.deadline.isoformat()}"
    return NodeTaskResult(task=name, outcome="timed_out", message=message)


async def delete_node_task(kubernetes: Kubernetes, namespace: str, name: str) -> None:
    """Delete the task. Already gone is success."""
    try:
        await kubernetes.request("DELETE", f"{tasks_path(namespace)}/{name}")
    except KubernetesError as error:
        if error.status != 404:
            raise


def task_of(name: str, namespace: str, request: RunNodeTask) -> Object:
    """The NodeTask to create: for this machine, this boot, and a limited time."""
    return {
        "apiVersion": f"{names.NODE_TASK_GROUP}/{names.NODE_TASK_VERSION}",
        "kind": "NodeTask",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {names.INCIDENT_LABEL: names.digest(request.incident)},
        },
        "spec": {
            **_purpose(request),
            "startDeadline": _rfc3339(request.start_deadline),
            "deadline": _rfc3339(request.deadline),
        },
    }


def is_started(task: Object) -> bool:
    return bool((task.get("status") or {}).get("phase"))


def is_ended(task: Object) -> bool:
    return (task.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def result_of(task: Object) -> NodeTaskResult:
    """Result of an ended task. What cannot be read makes it a failure: unknown is not healthy."""
    name, status = task["metadata"]["name"], task["status"]
    outcome: Literal["succeeded", "failed"] = "succeeded" if status["phase"] == "Succeeded" else "failed"
    message = str(status.get("message") or "")
    facts: HardwareFacts | None = None
    reset: ResetOutcome | None = None
    if status.get("facts") is not None:
        try:
            facts = HardwareFacts.model_validate(status["facts"])
        except ValidationError as error:
            outcome = "failed"
            message = f"the agent's facts cannot be read ({error.error_count()} errors); it said: {message}"
    if (word := status.get("outcome")) is not None:
        if word in set(ResetOutcome):
            reset = ResetOutcome(word)
        else:
            outcome = "failed"
            message = f"the agent's outcome {word!r} is not known here (is it newer?); it said: {message}"
    return NodeTaskResult(
        task=name, outcome=outcome, message=message[:LONGEST_MESSAGE], facts=facts, reset=reset
    )


def for_history(facts: HardwareFacts | None) -> HardwareFacts | None:
    """Facts that a payload holds, whatever a node wrote.

    Where the pods of the GPUs are too many they are unknown, so nothing is chosen by them; what is larger
    still is none of a real node.
    """
    if facts is None or len(facts.model_dump_json()) <= LARGEST_FACTS:
        return facts
    unknown = {"pod_uids": None, "host_processes": None, "allocated_pod_uids": None}
    gpus = tuple(gpu.model_copy(update=unknown) for gpu in facts.gpus)
    without_pods = facts.model_copy(update={"gpus": gpus})
    return without_pods if len(without_pods.model_dump_json()) <= LARGEST_FACTS else None


async def _create(kubernetes: Kubernetes, collection: str, task: Object) -> Object:
    try:
        return await kubernetes.request("POST", collection, body=task)
    except KubernetesError as error:
        if error.status != 409:
            raise
        return await kubernetes.request("GET", f"{collection}/{task['metadata']['name']}")


async def _follow(
    kubernetes: Kubernetes, collection: str, name: str, uid: str, deadline: datetime, *, started: bool
) -> Object | NodeTaskResult | None:
    """The task once it is started, or ended; a result when it vanished; None at the deadline."""

    def decide(tasks: dict[str, Object]) -> Object | NodeTaskResult | None:
        task = tasks.get(uid)
        if task is None:
            message = "somebody deleted the task: what it did is unknown"
            return NodeTaskResult(task=name, outcome="failed", message=message)
        return task if (is_started(task) if started else is_ended(task)) else None

    return await wait_for(kubernetes, collection, decide, deadline, field_selector=f"metadata.name={name}")


async def _withdrawn(kubernetes: Kubernetes, path: str, task: Object) -> bool:
    """Delete the task exactly as it was seen. False: it changed meanwhile, an agent may have taken it."""
    metadata = task["metadata"]
    preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
    try:
        await kubernetes.request("DELETE", path, body=body)
    except KubernetesError as error:
        if error.status == 409:
            return False
        if error.status != 404:
            raise
    return True


def _require_same_spec(task: Object, request: RunNodeTask) -> None:
    spec = task.get("spec") or {}
    other = [key for key, value in _purpose(request).items() if spec.get(key) != value]
    if other:
        raise errors.refusal(
            errors.BAD_INPUT,
            f"NodeTask {task['metadata']['name']} exists and differs in {', '.join(other)}; "
            "nothing was asked of the node. Delete the task if nobody works on it",
        )


def _purpose(request: RunNodeTask) -> dict[str, Any]:
    """What the task is for, apart from its deadlines."""
    optional = {"gpuUUID": request.gpu_uuid, "gpuPCIAddress": request.gpu_pci_address}
    return {
        "nodeName": request.identity.name,
        "nodeUID": request.identity.uid,
        "bootID": request.identity.boot_id,
        "kind": request.kind.value,
        "incident": request.incident,
        **{key: value for key, value in optional.items() if value is not None},
    }


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
