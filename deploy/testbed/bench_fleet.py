"""Nodes full of pods for the benchmark, and a look at how the pods end.

The pods have no controller. To make their successors is the work of other programs, which on a cluster run on
other machines: here it would take processor time from whichever drain is measured, and tell nothing of it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager

from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from testbed.background import beside, together
from testbed.fleet import is_ready
from testbed.nodes import gpu_node
from testbed.processes import PartFailedError

NAMESPACE = "bench"
POOL = "bench"

NODES = "/api/v1/nodes"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

PATIENCE = 90.0
LOOK_SECONDS = 0.2
CREATED_AT_ONCE = 8

GRACE_SECONDS = 30
"""Grace period of the pods: Kubernetes' default."""


class BenchFleet:
    """Nodes with pods, made and emptied by the cluster's administrator."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self._kubernetes = kubernetes

    async def open(self) -> None:
        """Make the namespace of the pods."""
        await self._kubernetes.request("POST", "/api/v1/namespaces", body={"metadata": {"name": NAMESPACE}})
        # a pod is refused until the controller-manager has made the namespace's ServiceAccount
        await self._until(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", bool, "ServiceAccount default")

    async def fill(self, names: Iterable[str], pods: Mapping[int, int]) -> None:
        """Register nodes and start pods on each: by the seconds that they take to stop, how many."""
        nodes = tuple(names)
        count = sum(pods.values())
        for number, name in enumerate(nodes):
            node = gpu_node(name, f"i-{number:017x}", pool=POOL)
            for amount in (node["status"]["capacity"], node["status"]["allocatable"]):
                amount["pods"] = str(count + 10)
            await self._kubernetes.request("POST", NODES, body=node)
        await self._until(NODES, lambda found: _ready_nodes(found) >= set(nodes), "Ready nodes")
        stops = [seconds for seconds, many in pods.items() for _ in range(many)]
        bodies = iter([_pod(name, number, stop) for name in nodes for number, stop in enumerate(stops)])

        async def create() -> None:
            for body in bodies:
                await self._kubernetes.request("POST", PODS, body=body)

        await together(*(create() for _ in range(CREATED_AT_ONCE)))
        await self._until(
            PODS, lambda found: not found, "end of pending pods", field_selector="status.phase=Pending"
        )

    async def pods_on(self, node: str) -> list[Object]:
        """What is left of the pods of a node. The node agent's pod, of a DaemonSet, is not among them."""
        return await self._kubernetes.items(PODS, field_selector=f"spec.nodeName={node}")

    @asynccontextmanager
    async def terminations(self, node: str) -> AsyncIterator[dict[str, float]]:
        """Seconds from deletion to end of each pod of a node that ends while the body runs, by UID."""
        begun: dict[str, float] = {}
        took: dict[str, float] = {}

        async def look() -> None:
            states = self._kubernetes.follow(PODS, field_selector=f"spec.nodeName={node}")
            async with aclosing(states):
                async for pods in states:
                    now = time.monotonic()
                    for uid, pod in pods.items():
                        if "deletionTimestamp" in pod["metadata"]:
                            begun.setdefault(uid, now)
                    took.update({uid: now - begun.pop(uid) for uid in begun.keys() - pods.keys()})

        async with beside(look()):
            yield took
            async with asyncio.timeout(PATIENCE):
                while begun:  # the news of the last end may be on its way
                    await asyncio.sleep(LOOK_SECONDS)

    async def _until(
        self, path: str, holds: Callable[[list[Object]], bool], what: str, *, field_selector: str = ""
    ) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not holds(await self._kubernetes.items(path, field_selector=field_selector)):
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise PartFailedError(f"no {what} after {PATIENCE:.0f} s (GET {path})") from None


def _ready_nodes(nodes: list[Object]) -> set[str]:
    return {node["metadata"]["name"] for node in nodes if is_ready(node)}


def _pod(node: str, number: int, stop_seconds: int) -> Object:
    return {
        "metadata": {
            "name": f"{node}-{number:03}",
            "annotations": {"gpu-runbooks.dev/stop-seconds": str(stop_seconds)},
        },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "containers": [{"name": "work", "image": "work"}],
        },
    }
