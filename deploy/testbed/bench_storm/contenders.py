"""The three that meet the storm, each on a cluster of its own: the same nodes of Karpenter, the same pods."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpu_runbooks.activities.karpenter.objects import NODE_CLAIMS, condition_of
from gpu_runbooks.activities.kubernetes.client import Kubernetes
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
LOOK_SECONDS = 1.0

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
        await plane.apply_kustomization(MANIFESTS)
        karpenter = await stack.enter_async_context(
            Karpenter.start(plane, node_repair=contender.node_repair, legacy_node_repair=contender.legacy)
        )
        budgets = [{"nodes": f"{plan.budget_percent}%"}]
        await karpenter.make_pool(POOL, replicas=plan.nodes, budgets=budgets)
        await _until_in_service(kubernetes, plan)
        temporal = None
        if contender.ours:
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

    async def claims_done() -> bool:
        claims = await kubernetes.items(NODE_CLAIMS)
        done = [claim for claim in claims if condition_of(claim, "Initialized").get("status") == "True"]
        nodes = await kubernetes.items(NODES, label_selector=POOL_SELECTOR)
        return len(done) == plan.nodes and sum(map(is_ready, nodes)) == plan.nodes

    async def account_made() -> bool:
        # a pod is refused until the controller-manager has made the namespace's ServiceAccount
        return bool(await kubernetes.items(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"))

    async def pods_run() -> bool:
        pods = await kubernetes.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
        return len([pod for pod in pods if pod["status"].get("phase") == "Running"]) == plan.pods

    try:
        async with asyncio.timeout(READY_PATIENCE):
            while not await claims_done():
                await asyncio.sleep(LOOK_SECONDS)
            await kubernetes.request("POST", "/api/v1/namespaces", body={"metadata": {"name": NAMESPACE}})
            while not await account_made():
                await asyncio.sleep(LOOK_SECONDS)
            path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
            await kubernetes.request("POST", path, body=_deployment(plan))
            while not await pods_run():
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise PartFailedError(
            f"the fleet was not in service after {READY_PATIENCE:.0f} s: see the log of karpenter"
        ) from None


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
