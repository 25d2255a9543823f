"""Telling the owners of workloads about a fault of the application's kind, by Events on their objects."""

from datetime import UTC, datetime

from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.model.notify import (
    MOST_NODES,
    KubernetesObject,
    NotifyOwner,
    OwnerNotified,
)
from gpu_runbooks.activities.notices.gpu_pods import gpu_pods
from gpu_runbooks.activities.notices.notice import event
from gpu_runbooks.activities.notices.owners import is_same, itself, job_of

MOST_OBJECTS = 100
"""Objects that get the Event of one fault, owners first."""

MOST_NAMES = 20
LONGEST_NAME = 150
"""Of the objects in the result, and characters of each: it is a payload."""


async def notify_owner(kubernetes: Kubernetes, request: NotifyOwner) -> OwnerNotified:
    """Write the Event of a fault to the pods that have GPUs of its nodes, and to their top owners.

    Safe to repeat: the name of an Event stands for the fault and the object. Nobody there is a result, no
    error. Raises `KubernetesError`.
    """
    pods: list[Object] = []
    for node in request.nodes[:MOST_NODES]:
        pods += await gpu_pods(kubernetes, node.name, request.fault)
    if request.job is not None:
        pods = [pod for pod in pods if is_same(job_of(pod), request.job)]
    owners = {str(owner): owner for pod in pods if (owner := job_of(pod))}
    if request.job is not None:
        owners = {str(request.job): request.job}  # known from its pods when the fault came
    objects = [*owners.values(), *map(itself, pods)]
    written, refused = [], ""
    for about in objects[:MOST_OBJECTS]:
        try:
            await _write(kubernetes, await _with_uid(kubernetes, about), request)
        except KubernetesError as error:
            if error.status != 404 and "NamespaceTerminating" not in error.causes():
                raise
            refused = f"namespace {about.namespace} is going away"
        else:
            written.append(str(about)[:LONGEST_NAME])
    left_out = [refused] if refused else []
    if len(objects) > MOST_OBJECTS:
        left_out.append(f"{len(objects) - MOST_OBJECTS} of {len(objects)} objects: more than one fault tells")
    if not objects:
        left_out.append("no pod with GPUs was there at the time of the fault")
    return OwnerNotified(
        objects=tuple(written[:MOST_NAMES]), total=len(written), left_out="; ".join(left_out)
    )


async def _write(kubernetes: Kubernetes, about: KubernetesObject, request: NotifyOwner) -> None:
    path = f"/apis/events.k8s.io/v1/namespaces/{about.namespace}/events"
    try:
        await kubernetes.request("POST", path, body=event(about, request, datetime.now(UTC)))
    except KubernetesError as error:
        if error.status != 409 or error.reason != "AlreadyExists":
            raise


async def _with_uid(kubernetes: Kubernetes, about: KubernetesObject) -> KubernetesObject:
    """The object with its UID, which the pods of a Deployment do not tell: `kubectl describe` goes by it."""
    if about.kind != "Deployment" or about.uid:
        return about
    path = f"/apis/apps/v1/namespaces/{about.namespace}/deployments"
    found = await kubernetes.items(path, field_selector=f"metadata.name={about.name}")
    uid = found[0]["metadata"]["uid"] if found else ""
    return about.model_copy(update={"uid": uid})
