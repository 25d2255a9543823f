"""`make bench-drain`: our drain against `kubectl drain`, on the same cluster in the same run.

It measures and judges no ratio: only a drain that did not empty its node is a failure.
"""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from testbed.background import together
from testbed.bench_drains import KUBECTL_USER, OUR_USER, DrainFailedError, KubectlDrain, OurDrain
from testbed.bench_fleet import BenchFleet
from testbed.bench_report import Comparison, Figures, ManyNodes, SlowPods, show
from testbed.bench_requests import RequestLog, Window
from testbed.cloud import Cloud
from testbed.control_plane import ControlPlane
from testbed.processes import Processes
from testbed.product import MANIFESTS, Product
from testbed.progress import Progress
from testbed.run_directory import run_directory
from testbed.temporal import Temporal
from testbed.testbed import CLUSTER

POLICY = Path(__file__).with_name("bench_policy.yaml")

WARM_UP_PODS = 5


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    compared: tuple[int, ...] = (30, 110, 250)
    """Pods of the nodes that both drain."""
    reference: int = 110
    """The size whose requests per pod are told apart; 110 is the kubelet's default limit."""
    rounds: int = 3
    """Drains of ours per size, of which the median counts. kubectl waits for its own rate limit most of the
    time and hardly varies: it gets one."""
    slow: Mapping[int, int] = field(default_factory=lambda: dict.fromkeys(range(1, 21), 2))
    """How many pods take so many seconds to stop."""
    nodes: int = 50
    """Nodes that are drained at once."""
    pods_each: int = 30


@dataclass
class Bench:
    """A cluster with nothing in it but what is measured."""

    fleet: BenchFleet
    kubectl: KubectlDrain
    ours: OurDrain
    requests: RequestLog
    progress: Progress
    nodes_used: int = 0

    @classmethod
    @asynccontextmanager
    async def start(cls, directory: Path, progress: Progress) -> AsyncIterator["Bench"]:
        """Start the parts that a drain needs: the control plane, Temporal, and two of the product's roles."""
        requests = RequestLog(directory, [KUBECTL_USER, OUR_USER])
        async with Processes(directory / "logs") as processes:
            plane = ControlPlane(directory, processes, api_server_flags=requests.flags)
            temporal = Temporal(directory, processes)
            unused = Cloud(directory, processes, plane.kubeconfig("admin"), CLUSTER)  # never started
            product = Product(directory, processes, plane, temporal, unused, cluster=CLUSTER, policy=POLICY)
            with progress.step("Kubernetes control plane and Temporal server"):
                await together(plane.launch(), temporal.start())
            async with plane.client() as kubernetes:
                bench = cls(
                    BenchFleet(kubernetes), KubectlDrain(plane), OurDrain(temporal), requests, progress
                )
                with progress.step("Product: controller and cluster-worker"):
                    await plane.apply_kustomization(MANIFESTS)
                    await together(product.start("controller"), product.start("cluster-worker"))
                    await bench.fleet.open()
                    await bench.kubectl.prepare()
                yield bench

    async def measure(self, plan: Plan, load_before: float) -> Figures:
        """Measure all. Raises `DrainFailedError` for a drain that did not empty its node."""
        with self.progress.step("Warm-up of both"):
            await self._drain_by_kubectl(WARM_UP_PODS)
            await self._drain_by_us(WARM_UP_PODS)
        comparisons = [
            await self._compare(pods, plan.rounds, kubectl_first=number % 2 == 0)
            for number, pods in enumerate(plan.compared)
        ]
        return Figures(
            tuple(comparisons), await self._slow_pods(plan), await self._many_nodes(plan), load_before
        )

    async def _compare(self, pods: int, rounds: int, *, kubectl_first: bool) -> Comparison:
        """Drain nodes of this size in turn, each node with fresh pods."""
        ours: list[Window] = []
        theirs: list[Window] = []
        turns = ["ours"] * rounds
        turns.insert(0 if kubectl_first else 1, "kubectl")
        for turn in turns:
            with self.progress.step(f"{pods} pods, {turn}"):
                if turn == "kubectl":
                    theirs.append(await self._drain_by_kubectl(pods))
                else:
                    ours.append(await self._drain_by_us(pods))
        return Comparison(
            pods,
            theirs[0].seconds,
            tuple(window.seconds for window in ours),
            self.requests.count(KUBECTL_USER, theirs[0]),
            tuple(self.requests.count(OUR_USER, window) for window in ours),
        )

    async def _drain_by_kubectl(self, pods: int) -> Window:
        (node,) = await self._nodes({0: pods})
        window = await self.kubectl.drain(node)
        await self._see_empty(node)
        return window

    async def _drain_by_us(self, pods: int) -> Window:
        (node,) = await self._nodes({0: pods})
        (step,) = await self.ours.drain(node)
        await self._see_empty(node)
        return step

    async def _slow_pods(self, plan: Plan) -> SlowPods:
        pods = sum(plan.slow.values())
        with self.progress.step(f"{pods} pods that take up to {max(plan.slow)} s to stop, ours"):
            (node,) = await self._nodes(plan.slow)
            async with self.fleet.terminations(node) as took:
                (step,) = await self.ours.drain(node)
            await self._see_empty(node)
        return SlowPods(pods, step.seconds, max(took.values()))

    async def _many_nodes(self, plan: Plan) -> ManyNodes:
        with self.progress.step(f"{plan.nodes} nodes of {plan.pods_each} pods at once, ours"):
            nodes = await self._nodes({0: plan.pods_each}, plan.nodes)
            steps = await self.ours.drain(*nodes)
            await self._see_empty(*nodes)
        began, ended = min(step.began for step in steps), max(step.ended for step in steps)
        return ManyNodes(plan.nodes, plan.pods_each, Window(began, ended).seconds)

    async def _nodes(self, pods: Mapping[int, int], count: int = 1) -> list[str]:
        """New nodes with running pods: by the seconds that they take to stop, how many."""
        first = self.nodes_used + 1
        self.nodes_used += count
        names = [f"bench-{number:03}" for number in range(first, first + count)]
        await self.fleet.fill(names, pods)
        return names

    async def _see_empty(self, *drained: str) -> None:
        """See for ourselves that the nodes are empty, whatever the drains say."""
        for node in drained:
            if left := await self.fleet.pods_on(node):
                raise DrainFailedError(f"{node} counts as drained and has {len(left)} pods")


async def bench_drain(output: Path | None, plan: Plan | None = None) -> int:
    """Measure, print the figures on stdout and write them to `output`. Progress goes to stderr."""
    plan = plan or Plan()
    progress = Progress(Console(stderr=True))
    load_before = os.getloadavg()[0]
    with run_directory() as directory:
        async with Bench.start(directory, progress) as bench:
            figures = await bench.measure(plan, load_before)
    show(figures, Console())
    if output:
        output.write_text(json.dumps(figures.as_json(plan.reference), indent=2) + "\n")
    return 0
