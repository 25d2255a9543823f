"""The nodes of the testbed, what runs on them, and how they misbehave when asked to."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, Object
from gpu_runbooks.activities.names import GPU_RESOURCE
from testbed.control_plane import ControlPlane
from testbed.nodes import POOL, POOL_LABEL
from testbed.processes import PartFailedError
from testbed.test_pod_outcomes import NODE_ANNOTATION

WORKLOADS = Path(__file__).with_name("workloads.yaml")
WORKLOAD_NAMESPACE = "research"
POOL_SELECTOR = f"{POOL_LABEL}={POOL}"
PATIENCE = 60.0


class Fleet:
    """The GPU nodes of the pool and their workloads, seen by the cluster's administrator."""

    def __init__(self, plane: ControlPlane, kubernetes: Kubernetes) -> None:
        self._plane = plane
        self._kubernetes = kubernetes

    async def nodes(self) -> list[Object]:
        """The pool's Nodes, by name."""
        nodes = await self._kubernetes.items("/api/v1/nodes", label_selector=POOL_SELECTOR)
        return sorted(nodes, key=lambda node: str(node["metadata"]["name"]))

    async def node(self, name: str) -> Object:
        return await self._kubernetes.request("GET", f"/api/v1/nodes/{name}")

    async def pods_on(self, node: str) -> list[Object]:
        return await self._kubernetes.items("/api/v1/pods", field_selector=f"spec.nodeName={node}")

    async def start_program(self, node: str) -> None:
        """Have a pod with a GPU of this node, whatever else runs there."""
        container = {"name": "program", "image": "program", "resources": {"limits": {GPU_RESOURCE: 1}}}
        pod = {"metadata": {"name": f"program-{node}"}, "spec": {"nodeName": node, "containers": [container]}}
        await self._kubernetes.request("POST", "/api/v1/namespaces/default/pods", body=pod)

    async def wait_for_nodes(self, count: int) -> None:
        """Wait until the pool has so many Ready nodes."""
        await self.wait_until(
            "/api/v1/nodes",
            lambda nodes: sum(is_ready(node) for node in nodes) >= count,
            f"{count} Ready nodes",
            label_selector=POOL_SELECTOR,
        )

    async def start_workloads(self) -> None:
        """Start the workloads and wait until all their pods run (they fit on four nodes)."""
        wait = asyncio.create_task(
            # a bare pod is refused until the controller-manager has made the namespace's ServiceAccount
            self.wait_until(
                f"/api/v1/namespaces/{WORKLOAD_NAMESPACE}/serviceaccounts", bool, "ServiceAccount default"
            )
        )
        await self._plane.kubectl("create", "namespace", WORKLOAD_NAMESPACE)
        await wait
        await self._plane.kubectl("apply", "--server-side", "-f", str(WORKLOADS))
        await self.wait_until(f"/api/v1/namespaces/{WORKLOAD_NAMESPACE}/pods", _all_run, "workloads that run")

    async def wait_until(
        self,
        path: str,
        holds: Callable[[list[Object]], bool],
        what: str,
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> list[Object]:
        """Objects of a collection as soon as `holds` says so of all of them.

        Raises `PartFailedError` when it never does; `what` says what was waited for.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                async for objects in self._kubernetes.follow(
                    path, label_selector=label_selector, field_selector=field_selector
                ):
                    if holds(list(objects.values())):
                        return list(objects.values())
        except TimeoutError:
            pass
        raise PartFailedError(f"no {what} after {PATIENCE:.0f} s (GET {path})")

    # --- misbehaviour -----------------------------------------------------------------------------

    async def set_reboot_outcome(self, node: str, outcome: Literal["nothing", "never"] | None) -> None:
        """What the next reboots of a node lead to: nothing at all, or a node that never comes back."""
        await self.annotate(node, {"gpu-runbooks.dev/reboot-outcome": outcome})

    async def set_test_pods_fail(self, node: str, *, fail: bool = True) -> None:
        """Whether test pods fail on a node."""
        await self.annotate(node, {NODE_ANNOTATION: "fail" if fail else None})

    async def annotate(self, node: str, annotations: dict[str, str | None]) -> None:
        """Set annotations of a Node; None removes one."""
        body = {"metadata": {"annotations": annotations}}
        await self._kubernetes.request("PATCH", f"/api/v1/nodes/{node}", body=body, content_type=MERGE_PATCH)


def is_ready(node: Object) -> bool:
    """Whether the Node's condition Ready is True."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _all_run(pods: list[Object]) -> bool:
    """Besides the DaemonSet's there are 4 pods of training, 4 of inference and the notebook."""
    controlled = [pod for pod in pods if pod["metadata"]["labels"]["app"] != "node-exporter"]
    return len(controlled) == 9 and all(pod["status"]["phase"] == "Running" for pod in pods)
