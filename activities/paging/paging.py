"""Calling a person by every way that the site has. Who cannot be reached stops no ladder."""

from datetime import UTC, datetime

from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError
from gpu_runbooks.activities.kubernetes.explanation import explained
from gpu_runbooks.activities.model.page import Page, Paged
from gpu_runbooks.activities.nodes.node import NODES
from gpu_runbooks.activities.paging.alert import alert
from gpu_runbooks.activities.paging.alertmanagers import Alertmanagers
from gpu_runbooks.activities.paging.event import NAMESPACE, event

LONGEST_PROBLEM = 600


async def page(kubernetes: Kubernetes, alertmanagers: Alertmanagers, request: Page) -> Paged:
    """Raise, repeat or take back an alert, and write its Event on the Node. Safe to repeat.

    Raises nothing that has to do with either: what went wrong is in the answer. One Alertmanager that took it
    is enough, since replicas tell each other what they sent, but one that did not is told of all the same.
    The Event goes first: it is there whatever an Alertmanager does.
    """
    now, reached, problems = datetime.now(UTC), [], []
    if request.node and not request.over:
        try:
            await _write(kubernetes, request, now)
            reached.append("event")
        except KubernetesError as error:
            problems.append(f"Event on node {request.node}: {explained(error)}")
    if alertmanagers.known:
        took, refused = await alertmanagers.tell(alert(request, now))
        problems += refused
        reached += ["alertmanager"] if took else []
    return Paged(reached=tuple(reached), problem="; ".join(problems)[:LONGEST_PROBLEM])


async def _write(kubernetes: Kubernetes, request: Page, now: datetime) -> None:
    node = await kubernetes.find(f"{NODES}/{request.node}")
    uid = node["metadata"]["uid"] if node else ""
    path = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
    try:
        await kubernetes.request("POST", path, body=event(request, uid, now))
    except KubernetesError as error:
        if error.status != 409 or error.reason != "AlreadyExists":
            raise
