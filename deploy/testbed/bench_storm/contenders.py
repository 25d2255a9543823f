"""The three that meet the storm, each on a cluster of its own: the same nodes of Karpenter, the same pods."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpu_runbooks.activities.karpenter.objects import NODE_CLAIMS, condition_of
from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from gpu_runbooks.activities.nodes.node import NODES
from testbed.agents import Agents
from testbed.background import beside, together
from testbed.bench_burst.blocks import is_blocked
from testbed.bench_storm.plan import Plan
from testbed.cloud import Cloud
from testbed.control_plane import ControlPlane
from testbed.fleet import POOL_SELECTOR, Fleet, is_ready
from testbed.karpenter import TOLERATIONS, Karpenter
from testbed.nodes import POOL, POOL_LABEL
from testbed.processes import PartFailedError, Processes
from testbed.product import MANIFESTS, Product
from testbed.temporal import Temporal
from testbed.test_pod_outcomes import decide_test_pods
from testbed.testbed import CLUSTER

NAMESPACE = "storm"
READY_PATIENCE = 300.0

ROLES = ("controller", "cluster-worker", "intake")


@dataclass(frozen=True)
class Contender:
    """Who answers to bad conditions on a cluster."""

    name: str
    """As the figures are named."""
    title: str
    node_repair: bool
    legacy: bool = False

    @property
    def ours(self) -> bool:
        return not self.node_repair


OURS = Contender("ours", "gpu-runbooks, Karpenter's own repair off", node_repair=False)
CONTENDERS = (
    OURS,
    Contender("karpenter", "Karpenter with NodeRepair", node_repair=True),
    Contender("karpenter_legacy", "Karpenter with its legacy controller", node_repair=True, legacy=True),
)


@dataclass(frozen=True)
class StormCluster:
    kubernetes: Kubernetes
    """The cluster's administrator."""
    temporal: Temporal | None
    """Of gpu-runbooks."""


@asynccontextmanager
async def started(contender: Contender, directory: Path, plan: Plan) -> AsyncIterator[StormCluster]:
    """A cluster with the fleet of the plan in service, and the contender at work."""
    async with AsyncExitStack() as stack:
        processes = await stack.enter_async_context(Processes(directory / "logs"))
        plane = ControlPlane(directory, processes)
        await plane.launch()
        kubernetes = await stack.enter_async_context(plane.client())
        karpenter = await stack.enter_async_context(
            Karpenter.start(plane, node_repair=contender.node_repair, legacy_node_repair=contender.legacy)
        )
        budgets = [{"nodes": f"{plan.budget_percent}%"}]
        await karpenter.make_pool(POOL, replicas=plan.nodes, budgets=budgets)
        await _until_in_service(kubernetes, plan)
        temporal = None
        if contender.ours:
            await plane.apply_kustomization(MANIFESTS)
            temporal = Temporal(directory, processes)
            await temporal.start()
            policy = directory / "policy.yaml"
            policy.write_text(yaml.safe_dump(plan.policy(), sort_keys=False))
            unused = Cloud(directory, processes, plane.kubeconfig("admin"), CLUSTER)  # never started
            product = Product(directory, processes, plane, temporal, unused, cluster=CLUSTER, policy=policy)
            agents = Agents(directory, processes, plane, Fleet(plane, kubernetes))
            await stack.enter_async_context(
                beside(
                    decide_test_pods(kubernetes),
                    agents.follow(kubernetes),
                    _start_agents(kubernetes, agents),
                )
            )
            await together(*map(product.start, ROLES))
        yield StormCluster(kubernetes, temporal)


async def _start_agents(kubernetes: Kubernetes, agents: Agents) -> None:
    """Start the agent of a node when the node is blocked: nobody asks it anything before."""
    known: set[str] = set()
    async with (
        asyncio.TaskGroup() as starts,
        aclosing(kubernetes.follow(NODES, label_selector=POOL_SELECTOR)) as states,
    ):
        async for nodes in states:
            for uid, node in nodes.items():
                if uid not in known and is_blocked(node):
                    known.add(uid)
                    starts.create_task(agents.start(node["metadata"]["name"]))


async def _until_in_service(kubernetes: Kubernetes, plan: Plan) -> None:
    """Wait for nodes and pods."""
    await _until(
        kubernetes,
        NODE_CLAIMS,
        lambda claims: sum(map(_is_initialized, claims)) == plan.nodes,
        f"{plan.nodes} initialized NodeClaims",
    )
    await _until(
        kubernetes,
        NODES,
        lambda nodes: sum(map(is_ready, nodes)) == plan.nodes,
        f"{plan.nodes} Ready nodes",
    )
    await kubernetes.request("POST", "/api/v1/namespaces", body={"metadata": {"name": NAMESPACE}})
    # a pod is refused until the controller-manager has made the namespace's ServiceAccount
    await _until(
        kubernetes, f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", bool, "ServiceAccount default"
    )
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    await kubernetes.request("POST", path, body=_deployment(plan))
    await _until(
        kubernetes,
        f"/api/v1/namespaces/{NAMESPACE}/pods",
        lambda pods: sum(map(_runs, pods)) == plan.pods,
        f"{plan.pods} pods that run",
    )


async def _until(kubernetes: Kubernetes, path: str, holds: Callable[[list[Object]], bool], what: str) -> None:
    try:
        async with asyncio.timeout(READY_PATIENCE), aclosing(kubernetes.follow(path)) as states:
            async for objects in states:
                if holds(list(objects.values())):
                    return
    except TimeoutError:
        pass
    raise PartFailedError(f"no {what} after {READY_PATIENCE:.0f} s (GET {path}): see the log of karpenter")


def _is_initialized(claim: Object) -> bool:
    return bool(condition_of(claim, "Initialized").get("status") == "True")


def _runs(pod: Object) -> bool:
    return bool((pod.get("status") or {}).get("phase") == "Running")


def _deployment(plan: Plan) -> dict[str, object]:
    labels = {"app": "work"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "work"},
        "spec": {
            "replicas": plan.pods,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {"gpu-runbooks.dev/stop-seconds": "2"}},
                "spec": {
                    "nodeSelector": {POOL_LABEL: POOL},
                    "tolerations": TOLERATIONS,
                    "terminationGracePeriodSeconds": 30,
                    "containers": [
                        {
                            "name": "work",
                            "image": "work",
                            "resources": {"limits": {"nvidia.com/gpu": str(plan.gpus_per_pod)}},
                        }
                    ],
                },
            },
        },
    }
