"""Nodes full of pods for the benchmark, and a look at how the pods end.

The pods belong to real ReplicaSets and came through the real scheduler, as on a cluster. Each ReplicaSet is
tied to one node, so the pods that it makes anew during a drain stay pending and crowd no other node.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager

from gpu_runbooks.activities.kubernetes import Kubernetes, Object
from testbed.background import beside
from testbed.fleet import is_ready
from testbed.nodes import gpu_node
from testbed.processes import PartFailedError

NAMESPACE = "bench"
POOL = "bench"

NODES = "/api/v1/nodes"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
REPLICA_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets"

PATIENCE = 90.0
LOOK_SECONDS = 0.2

GRACE_SECONDS = 30
"""Grace period of the pods: Kubernetes' default."""


class BenchFleet:
    """Nodes with pods, made and emptied by the cluster's administrator."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self._kubernetes = kubernetes

    async def open(self) -> None:
        """Make the namespace of the pods."""
        await self._kubernetes.request("POST", "/api/v1/namespaces", body={"metadata": {"name": NAMESPACE}})

    async def fill(self, names: Iterable[str], pods: Mapping[int, int]) -> None:
        """Register nodes and start pods on each: by the seconds that they take to stop, how many."""
        nodes = tuple(names)
        room = str(sum(pods.values()) + 10)
        for number, name in enumerate(nodes):
            node = gpu_node(name, f"i-{number:017x}", pool=POOL)
            for amount in (node["status"]["capacity"], node["status"]["allocatable"]):
                amount["pods"] = room
            await self._kubernetes.request("POST", NODES, body=node)
        await self._until(NODES, lambda found: _ready_nodes(found) >= set(nodes), "Ready nodes")
        for name in nodes:
            for seconds, count in pods.items():
                body = _replica_set(name, seconds, count)
                await self._kubernetes.request("POST", REPLICA_SETS, body=body)
        await self._until(REPLICA_SETS, lambda found: all(map(_is_complete, found)), "pods that run")

    async def clear(self) -> None:
        """Remove all pods and their ReplicaSets, so that nothing is busy with them any more."""
        for replica_set in await self._kubernetes.items(REPLICA_SETS):
            path = f"{REPLICA_SETS}/{replica_set['metadata']['name']}"
            await self._kubernetes.request("DELETE", path, body={"propagationPolicy": "Foreground"})
        await self._until(REPLICA_SETS, lambda found: not found, "end of the ReplicaSets")

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

    async def _until(self, path: str, holds: Callable[[list[Object]], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not holds(await self._kubernetes.items(path)):
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise PartFailedError(f"no {what} after {PATIENCE:.0f} s (GET {path})") from None


def _ready_nodes(nodes: list[Object]) -> set[str]:
    return {node["metadata"]["name"] for node in nodes if is_ready(node)}


def _is_complete(replica_set: Object) -> bool:
    return bool(replica_set["status"].get("readyReplicas") == replica_set["spec"]["replicas"])


def _replica_set(node: str, stop_seconds: int, count: int) -> Object:
    name = f"{node}-{stop_seconds}"
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {
                    "labels": {"app": name},
                    "annotations": {"gpu-runbooks.dev/stop-seconds": str(stop_seconds)},
                },
                "spec": {
                    "nodeSelector": {"kubernetes.io/hostname": node},
                    "terminationGracePeriodSeconds": GRACE_SECONDS,
                    "containers": [{"name": "work", "image": "work"}],
                },
            },
        },
    }
