"""The real Karpenter with its kwok provider, beside a control plane: its "instances" are Nodes of kwok's.

Only pods that tolerate `TAINT` land on its nodes, and only they make it launch any: the other pods of a
control plane that tests share are none of its business.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpu_runbooks.activities.karpenter.objects import NODE_CLAIMS, NODE_POOLS
from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.names import NODE_POOL_LABEL
from testbed.build import path_of
from testbed.control_plane import ControlPlane
from testbed.nodes import GPU_INSTANCE_TYPE, POOL_LABEL, ZONE
from testbed.ports import free_port
from testbed.processes import Processes
from testbed.readiness import answers

NODE_CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
NODE_CLASS = "testbed"

TAINT = {"key": "example.com/karpenter", "effect": "NoSchedule"}

TOLERATIONS = [{"key": TAINT["key"], "operator": "Exists"}]
"""Of a pod that may run on Karpenter's nodes."""

UNHEALTHY = "KWOKUnhealthy"
"""Condition that its kwok provider repairs by a replacement when it has been True for 30 s."""

CAPACITY = {
    "cpu": "192",
    "memory": "2Ti",
    "pods": "110",
    "nvidia.com/gpu": "8",
    "vpc.amazonaws.com/efa": "32",
}


class Karpenter:
    """A Karpenter that can be stopped and launched again with other settings."""

    def __init__(self, plane: ControlPlane, processes: Processes, kubernetes: Kubernetes) -> None:
        self._plane = plane
        self._processes = processes
        self._kubernetes = kubernetes

    @classmethod
    @asynccontextmanager
    async def start(
        cls, plane: ControlPlane, *, node_repair: bool = True, legacy_node_repair: bool = False
    ) -> AsyncIterator["Karpenter"]:
        """Install its CRDs and run it, static capacity switched on, for the context.

        Raises `PartFailedError` with the end of its log, and `build.BinaryMissingError` where `make binaries`
        is due.
        """
        async with Processes(plane.directory / "logs") as processes, plane.client() as kubernetes:
            karpenter = cls(plane, processes, kubernetes)
            await karpenter._install()
            await karpenter.launch(node_repair=node_repair, legacy_node_repair=legacy_node_repair)
            try:
                yield karpenter
            finally:
                await karpenter.stop()

    async def launch(self, *, node_repair: bool = True, legacy_node_repair: bool = False) -> None:
        health = free_port()

        def command(port: int) -> list[str]:
            return [
                str(path_of("karpenter")),
                "--disable-leader-election=true",
                f"--metrics-port={health}",
                f"--health-probe-port={port}",
                f"--feature-gates=NodeRepair={str(node_repair).lower()},StaticCapacity=true",
                f"--legacy-node-repair={str(legacy_node_repair).lower()}",
                f"--instance-types-file-path={self._instance_types()}",
                "--batch-idle-duration=200ms",
                "--batch-max-duration=1s",
            ]

        await self._processes.serve(
            "karpenter",
            command,
            lambda port: answers(f"http://127.0.0.1:{port}/readyz"),
            environment={
                "KUBECONFIG": str(self._plane.kubeconfig("karpenter")),
                "SYSTEM_NAMESPACE": "kube-system",
            },
        )

    @property
    def pid(self) -> int:
        return self._processes["karpenter"].pid

    async def stop(self) -> None:
        await self._processes.stop("karpenter")

    async def make_pool(
        self,
        name: str,
        *,
        replicas: int | None = None,
        budgets: Sequence[Object] = ({"nodes": "100%"},),
        consolidate_after: str = "Never",
        termination_grace_period: str = "",
    ) -> Object:
        """Create a NodePool, static where `replicas` are given, and wait until Karpenter calls it Ready."""
        template: dict[str, Any] = {
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": NODE_CLASS},
            "requirements": [
                # a static pool launches the first of these; a dynamic one what its pods need
                {
                    "key": "node.kubernetes.io/instance-type",
                    "operator": "In",
                    "values": [GPU_INSTANCE_TYPE],
                },
            ],
            "taints": [TAINT],
            "expireAfter": "Never",
        }
        if termination_grace_period:
            template["terminationGracePeriod"] = termination_grace_period
        spec: dict[str, Any] = {
            "template": {"metadata": {"labels": {POOL_LABEL: name}}, "spec": template},
            "disruption": {
                "consolidationPolicy": "WhenEmpty",
                "consolidateAfter": consolidate_after,
                "budgets": list(budgets),
            },
        }
        if replicas is not None:
            spec["replicas"] = replicas
        body = {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": name},
            "spec": spec,
        }
        await self._kubernetes.request("POST", NODE_POOLS, body=body)
        await self._plane.kubectl("wait", "--for=condition=Ready", f"nodepool/{name}", "--timeout=30s")
        return await self._kubernetes.request("GET", f"{NODE_POOLS}/{name}")

    async def remove_pool(self, name: str) -> None:
        """Delete a NodePool. Its nodes follow, within seconds where no pod holds them."""
        await self._kubernetes.request("DELETE", f"{NODE_POOLS}/{name}")

    async def claims(self, pool: str) -> list[Object]:
        return await self._kubernetes.items(NODE_CLAIMS, label_selector=f"{NODE_POOL_LABEL}={pool}")

    async def _install(self) -> None:
        crds = sorted(path_of("karpenter").parent.glob("*.yaml"))
        await self._plane.kubectl("apply", "--server-side", *(f"--filename={file}" for file in crds))
        await self._plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        body = {
            "apiVersion": "karpenter.kwok.sh/v1alpha1",
            "kind": "KWOKNodeClass",
            "metadata": {"name": NODE_CLASS},
        }
        try:
            await self._kubernetes.request("POST", NODE_CLASSES, body=body)
        except KubernetesError as error:
            if error.status != 409:
                raise

    def _instance_types(self) -> Path:
        """File of the one instance type that this "cloud" has."""
        offering = {
            "Price": 55.04,
            "Available": True,
            "Requirements": [
                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [ZONE]},
            ],
        }
        kind = {
            "name": GPU_INSTANCE_TYPE,
            "offerings": [offering],
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": CAPACITY,
        }
        file = self._plane.directory / "karpenter-instance-types.json"
        file.write_text(json.dumps([kind]))
        return file
