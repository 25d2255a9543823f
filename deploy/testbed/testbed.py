"""All parts together: a cluster of GPU nodes on AWS with the product at work in it, on one machine."""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from gpu_runbooks.activities.kubernetes.client import Kubernetes
from testbed import gpus
from testbed.agents import Agents
from testbed.alertmanager import Alertmanager
from testbed.api_proxy import ApiProxy
from testbed.background import beside, together
from testbed.build import path_of
from testbed.cloud import Cloud
from testbed.control_plane import ControlPlane
from testbed.fleet import Fleet
from testbed.processes import PartFailedError, Processes
from testbed.product import MANIFESTS, POLICY, ROLES, Product
from testbed.progress import Progress
from testbed.temporal import Temporal
from testbed.test_pod_outcomes import decide_test_pods

CLUSTER = "testbed"
"""Name of the cluster: part of every workflow id."""


@dataclass(frozen=True)
class Testbed:
    """A running testbed. Each part says itself what it can do."""

    __test__ = False  # not a test case of pytest

    directory: Path
    processes: Processes
    plane: ControlPlane
    kubernetes: Kubernetes
    """The cluster's administrator."""
    temporal: Temporal
    cloud: Cloud
    fleet: Fleet
    agents: Agents
    product: Product
    alertmanager: Alertmanager

    @property
    def proxy(self) -> ApiProxy:
        """The proxy through which the product reaches the API server."""
        if self.plane.roles_through is None:
            raise PartFailedError("this testbed was started without a proxy: start it with proxied=True")
        return self.plane.roles_through

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        directory: Path,
        *,
        nodes: int = 8,
        workloads: bool = True,
        roles: Iterable[str] = ROLES,
        policy: Path = POLICY,
        repeat_interval: timedelta = timedelta(hours=4),
        proxied: bool = False,
        progress: Progress | None = None,
    ) -> AsyncIterator["Testbed"]:
        """Start all parts, with files and logs in `directory`; they end with the context.

        `workloads` need three nodes. No node has an agent at first: `agents.start` gives it one, and from
        then on nodes that join get one as well. With `proxied` the product's roles and agents reach the API
        server through a proxy that can inject faults; all else reaches it directly.

        Raises `PartFailedError` with the end of a log, and `build.BinaryMissingError` where `make binaries`
        is due.
        """
        progress = progress or Progress()
        async with AsyncExitStack() as parts:
            processes = await parts.enter_async_context(Processes(directory / "logs"))
            plane = ControlPlane(directory, processes)
            temporal = Temporal(directory, processes)
            cloud = Cloud(directory, processes, plane.kubeconfig("admin"), CLUSTER)
            await together(
                _step(progress, "Kubernetes control plane", plane.launch()),
                _step(progress, "Temporal server and UI", temporal.start()),
                _step(progress, "EC2 and Auto Scaling", _launch(cloud, nodes)),
                asyncio.to_thread(gpus.library),
            )
            if proxied:
                plane.roles_through = await parts.enter_async_context(plane.proxy())
            product = Product(directory, processes, plane, temporal, cloud, cluster=CLUSTER, policy=policy)
            alertmanager = Alertmanager(
                directory, processes, webhook=product.webhook, token_file=product.token_file
            )
            async with plane.client() as kubernetes:
                fleet = Fleet(plane, kubernetes)
                agents = Agents(directory, processes, plane, fleet)
                async with beside(decide_test_pods(kubernetes), agents.follow(kubernetes)):
                    await together(
                        _step(progress, f"Fleet of {nodes} GPU nodes", _populate(fleet, nodes, workloads)),
                        _step(progress, "Product", _install(plane, product, roles)),
                        _step(progress, "Alertmanager", alertmanager.start(repeat_interval=repeat_interval)),
                    )
                    yield cls(
                        directory=directory,
                        processes=processes,
                        plane=plane,
                        kubernetes=kubernetes,
                        temporal=temporal,
                        cloud=cloud,
                        fleet=fleet,
                        agents=agents,
                        product=product,
                        alertmanager=alertmanager,
                    )

    def addresses(self) -> dict[str, str]:
        """What a person needs to look around, by what it is."""
        return {
            "Temporal UI": self.temporal.ui,
            "Temporal": self.temporal.address,
            "Kubernetes": f"KUBECONFIG={self.plane.kubeconfig('admin')}",
            "Alertmanager": self.alertmanager.url,
            "EC2 (AWS_ENDPOINT_URL)": self.cloud.url,
            "Logs": str(self.directory / "logs"),
            "Programs": " ".join(
                str(program)
                for program in (
                    Path(sys.executable).with_name("gpu-runbooks"),
                    Path(sys.executable).with_name("temporal"),
                    path_of("kubectl"),
                )
            ),
        }


async def _step(progress: Progress, what: str, work: Coroutine[Any, Any, None]) -> None:
    with progress.step(what):
        await work


async def _launch(cloud: Cloud, nodes: int) -> None:
    await cloud.start()
    await cloud.launch(nodes)


async def _populate(fleet: Fleet, nodes: int, workloads: bool) -> None:
    await fleet.wait_for_nodes(nodes)
    if workloads:
        await fleet.start_workloads()


async def _install(plane: ControlPlane, product: Product, roles: Iterable[str]) -> None:
    await plane.apply_kustomization(MANIFESTS)
    await together(*(product.start(role) for role in roles))
