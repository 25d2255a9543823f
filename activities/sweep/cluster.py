"""The sweep's activities of queue `cluster`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.cluster import translated
from gpu_runbooks.activities.gpu_services.services import resume_gpu_services
from gpu_runbooks.activities.heartbeat import beating
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.kubernetes.listing import Kept, Page, page_of
from gpu_runbooks.activities.model.repair import ResumeGpuServices
from gpu_runbooks.activities.model.sweep import (
    BadCondition,
    LookAtNodes,
    Mended,
    NextPage,
    NodeMachine,
    NodeMachines,
    NodesPage,
    NodeWork,
    SweptNode,
    TakenUp,
    TakeUp,
    WorksPage,
)
from gpu_runbooks.activities.nodes.block_state import unblocking_patch
from gpu_runbooks.activities.nodes.node import NODES, identity_of
from gpu_runbooks.activities.nodes.node_tasks import tasks_path
from gpu_runbooks.activities.sweep.contract import SweepOfCluster
from gpu_runbooks.activities.sweep.marks import is_marked, marks_of, pod_seen, task_seen

AT_A_TIME = 12
"""Objects in one answer of the API server."""

ENOUGH = 10
"""Found objects after which a page ends: with one more answer, of 700 bytes each, it stays under 16 KiB."""

CALLS = 10
"""Nodes that are asked for at the same time."""

TEST_PODS = "app.kubernetes.io/name=gpu-runbooks,app.kubernetes.io/component=gpu-test-pod"

Overdue = Callable[[Object, datetime], tuple[BadCondition, ...]]
"""Conditions of a Node that policy does not tolerate for so long, and that are not good."""

Intake = Callable[[Object, str], Awaitable[TakenUp]]
"""Take up a condition of this type, as the intake does it."""


log = logging.getLogger(__name__)


class ClusterSweep(SweepOfCluster):
    """Needs a connection with the cluster worker's role, its namespaces, and policy's word on conditions."""

    def __init__(
        self, kubernetes: Kubernetes, namespace: str, test_namespace: str, overdue: Overdue, intake: Intake
    ) -> None:
        self._kubernetes = kubernetes
        self._tasks = tasks_path(namespace)
        self._test_pods = f"/api/v1/namespaces/{test_namespace}/pods"
        self._overdue = overdue
        self._intake = intake

    def activities(self) -> list[Callable[..., Any]]:
        """All of them, for a worker."""
        return [
            self.list_marked_nodes,
            self.read_again,
            self.list_node_tasks,
            self.list_test_pods,
            self.look_at_nodes,
            self.clear_leftovers,
            self.resume_left_services,
            self.delete_work,
            self.take_up_condition,
        ]

    @activity.defn
    async def list_marked_nodes(self, request: NextPage) -> NodesPage:
        def keep(node: Object) -> SweptNode:
            return marks_of(node, self._overdue(node, datetime.now(UTC)))

        found: list[SweptNode] = []
        seen, unreadable, token = 0, 0, request.token
        async with _answering():
            while True:
                page = await self._page(NODES, token, keep)
                readable = [node for node in page.items if node is not None]
                found += filter(is_marked, readable)
                seen += len(readable)
                unreadable += len(page.oddities) + len(page.items) - len(readable)
                token = page.rest
                if not token or len(found) >= ENOUGH:
                    return NodesPage(nodes=tuple(found), seen=seen, unreadable=unreadable, more=token)

    @activity.defn
    async def read_again(self, request: LookAtNodes) -> NodesPage:
        async with _answering():
            nodes = await self._nodes(request)
        seen = tuple(filter(None, (_made_sense_of(marks_of, node) for node in nodes)))
        return NodesPage(nodes=seen, seen=len(nodes))

    @activity.defn
    async def list_node_tasks(self, request: NextPage) -> WorksPage:
        now = datetime.now(UTC)
        return await self._works(self._tasks, request.token, lambda task: task_seen(task, now))

    @activity.defn
    async def list_test_pods(self, request: NextPage) -> WorksPage:
        return await self._works(self._test_pods, request.token, pod_seen, labels=TEST_PODS)

    @activity.defn
    async def look_at_nodes(self, request: LookAtNodes) -> NodeMachines:
        async with _answering():
            nodes = await self._nodes(request)
        return NodeMachines(
            machines=tuple(
                NodeMachine(
                    name=node["metadata"]["name"],
                    instance_id=identity_of(node).instance_id,
                    made=datetime.fromisoformat(node["metadata"]["creationTimestamp"]),
                )
                for node in nodes
            )
        )

    @activity.defn
    async def clear_leftovers(self, seen: SweptNode) -> Mended:
        path = f"{NODES}/{seen.name}"
        async with _answering():
            node = await self._kubernetes.find(path)
            if node is None or not _is_as_seen(node, seen):
                return Mended(changed=True)
            patch, going = unblocking_patch(node, None, seen.replaces)
            if not going:
                return Mended()
            try:
                await self._kubernetes.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
            except KubernetesError as error:
                if error.status in {404, 409}:
                    return Mended(changed=True)
                raise
        return Mended(done=going)

    @activity.defn
    async def resume_left_services(self, seen: SweptNode) -> Mended:
        async with _answering():
            node = await self._kubernetes.find(f"{NODES}/{seen.name}")
            if node is None or not _is_same_pause(marks_of(node), seen):
                return Mended(changed=True)
            # A pause that comes in between names another run, and is left alone.
            resumed = await resume_gpu_services(
                self._kubernetes,
                ResumeGpuServices(
                    identity=identity_of(node), incident=seen.pause_incident, run_id=seen.pause_run_id
                ),
            )
        return Mended(done=resumed.restored, changed=resumed.node_gone)

    @activity.defn
    async def delete_work(self, work: NodeWork) -> Mended:
        collection = self._tasks if work.kind == "NodeTask" else self._test_pods
        preconditions = {"uid": work.uid, "resourceVersion": work.version}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        async with _answering():
            try:
                await self._kubernetes.request("DELETE", f"{collection}/{work.name}", body=body)
            except KubernetesError as error:
                if error.status in {404, 409}:
                    return Mended(changed=True)
                raise
        return Mended(done=(f"{work.kind} {work.name}",))

    @activity.defn
    async def take_up_condition(self, request: TakeUp) -> TakenUp:
        async with _answering():
            node = await self._kubernetes.find(f"{NODES}/{request.node}")
            if node is None or node["metadata"]["uid"] != request.uid:
                return TakenUp(status="over", reason="the node is another one by now")
            if request.type not in {bad.type for bad in self._overdue(node, datetime.now(UTC))}:
                return TakenUp(status="over", reason="the condition is not bad any more")
            return await self._intake(node, request.type)

    async def _nodes(self, request: LookAtNodes) -> list[Object]:
        """Those of the nodes that exist."""
        places = asyncio.Semaphore(CALLS)

        async def look(name: str) -> Object | None:
            async with places:
                return await self._kubernetes.find(f"{NODES}/{name}")

        return list(filter(None, await asyncio.gather(*map(look, request.names))))

    async def _works(
        self, path: str, token: str, keep: Callable[[Object], NodeWork], labels: str = ""
    ) -> WorksPage:
        async with _answering():
            page = await self._page(path, token, keep, labels)
        works = tuple(work for work in page.items if work is not None)
        unreadable = len(page.oddities) + len(page.items) - len(works)
        return WorksPage(works=works, unreadable=unreadable, more=page.rest)

    async def _page(
        self, path: str, token: str, keep: Callable[[Object], Kept], labels: str = ""
    ) -> Page[Kept | None]:
        """A page, with None for an object that could not be made sense of."""
        query = {"limit": str(AT_A_TIME), "continue": token, "labelSelector": labels}
        query = {name: value for name, value in query.items() if value}
        try:
            answer = await self._kubernetes.request("GET", path, query=query)
        except KubernetesError as error:
            # The list grew too old. Each object is judged by itself, so the rest may be of now.
            rest = (error.body.get("metadata") or {}).get("continue")
            if error.status != 410 or not token or not isinstance(rest, str) or rest in {"", token}:
                raise
            answer = await self._kubernetes.request("GET", path, query=query | {"continue": rest})
        page = page_of(answer, partial(_made_sense_of, keep))
        if page is None:
            raise KubernetesError(0, "Unreadable", f"GET {path}: the answer is no list")
        return page


def _made_sense_of(keep: Callable[[Object], Kept], found: Object) -> Kept | None:
    try:
        return keep(found)
    except Exception:
        # Anybody may have written what is in an object, and one of them must not hide all others.
        log.exception("%s %s cannot be read", found.get("kind", "object"), found["metadata"]["name"])
        return None


def _is_as_seen(node: Object, seen: SweptNode) -> bool:
    """Whether a Node is the one that was seen and carries the same of ours: no incident came in between."""
    now = marks_of(node)
    return not seen.marker and now.model_copy(update={"bad": seen.bad}) == seen


def _is_same_pause(now: SweptNode, seen: SweptNode) -> bool:
    def pause(node: SweptNode) -> tuple[str, ...]:
        return node.uid, node.pause, node.pause_incident, node.pause_run_id

    return pause(now) == pause(seen)


@asynccontextmanager
async def _answering() -> AsyncIterator[None]:
    """Beat while the API server is asked, and say in words what it refuses.

    A list that grew too old between two pages (410), and that the server does not go on with, is not asked
    again: it would be as old.
    """
    try:
        async with beating():
            yield
    except KubernetesError as error:
        if error.status == 410:
            raise ApplicationError(str(error), type=errors.UNAVAILABLE, non_retryable=True) from error
        raise translated(error) from error
