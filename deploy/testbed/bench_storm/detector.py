"""The broken detector: it calls nodes unhealthy that are not."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.nodes.node import NODES
from testbed.fleet import POOL_SELECTOR
from testbed.karpenter import UNHEALTHY

Answer = TypeVar("Answer")

TRIES = 20
AGAIN_SECONDS = 1.0

STRATEGIC = "application/strategic-merge-patch+json"


class BrokenDetector:
    """Writes the condition `KWOKUnhealthy` into Nodes of the pool."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self._kubernetes = kubernetes

    async def mark(self, count: int) -> None:
        """See to it that so many of the nodes that there are now are called unhealthy."""
        nodes = await self._nodes()
        marked = [node for node in nodes if is_marked(node)]
        others = [node for node in nodes if not is_marked(node)]
        for node in others[: max(0, count - len(marked))]:
            await self._write(node, "True", "SelfTestFailed")

    async def mend(self) -> None:
        """Take it back on every node that was called unhealthy."""
        for node in await self._nodes():
            if is_marked(node):
                await self._write(node, "False", "SelfTestPassed")

    async def _nodes(self) -> list[Object]:
        """The pool's nodes that stay, by name: which of them are marked says nothing of their age."""
        nodes = await patiently(lambda: self._kubernetes.items(NODES, label_selector=POOL_SELECTOR))
        return sorted(
            (node for node in nodes if "deletionTimestamp" not in node["metadata"]),
            key=lambda node: str(node["metadata"]["name"]),
        )

    async def _write(self, node: Object, status: str, reason: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        condition = {
            "type": UNHEALTHY,
            "status": status,
            "reason": reason,
            "message": "written by a detector whose own test is broken",
            "lastTransitionTime": now,
            "lastHeartbeatTime": now,
        }
        path = f"{NODES}/{node['metadata']['name']}/status"
        body = {"metadata": {"uid": node["metadata"]["uid"]}, "status": {"conditions": [condition]}}
        try:
            await patiently(
                lambda: self._kubernetes.request("PATCH", path, body=body, content_type=STRATEGIC)
            )
        except KubernetesError as error:
            if error.status not in {404, 409}:  # the node went away
                raise


def is_marked(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each["type"] == UNHEALTHY and each["status"] == "True" for each in conditions)


async def patiently(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Call until the API server answers: it is busy where a whole cluster shares one machine."""
    for _ in range(TRIES):
        try:
            return await call()
        except KubernetesError as error:
            if 0 < error.status < 500 and error.status != 429:
                raise
        await asyncio.sleep(AGAIN_SECONDS)
    return await call()
