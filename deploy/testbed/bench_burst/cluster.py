"""A cluster of kwok nodes with the product at work in it: one process of each role, as deployed."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from gpu_runbooks.activities.nodes.node import NODES
from testbed.background import together
from testbed.bench_burst.plan import Plan
from testbed.cloud import Cloud
from testbed.control_plane import NAMESPACE, ControlPlane
from testbed.fleet import is_ready
from testbed.nodes import gpu_node
from testbed.processes import PartFailedError, Processes
from testbed.product import MANIFESTS, Product
from testbed.progress import Progress
from testbed.temporal import Temporal
from testbed.testbed import CLUSTER

ROLES = ("controller", "cluster-worker", "intake")
"""Nothing of the burst's ladder touches EC2."""

LEASE_SECONDS = 400
HEARTBEAT_SECONDS = 300
PATIENT = ("--node-monitor-grace-period=15m",)
"""A thousand kubelets are other machines' work: here their leases would take a good part of what is measured,
and a machine that is short of processor time would make nodes NotReady that nothing is wrong with. What has
not changed they report every 5 minutes (nodeStatusReportFrequency of the kubelet)."""

PODS_OF_OURS = tuple(f"/apis/apps/v1/namespaces/{NAMESPACE}/{kind}" for kind in ("daemonsets", "deployments"))
"""The roles run beside the cluster, and nothing of the ladder asks an agent. A thousand pods of agents
would still be starting, and those of the others find no node: with each change of one the scheduler would try
all of them again."""

CREATED_AT_ONCE = 16
READY_PATIENCE = 300.0
LOOK_SECONDS = 1.0

APISERVER = "kube-apiserver"
CALM = 0.35
"""Of a processor: what a thousand nodes cost the API server without any news of them."""
CALM_SECONDS = 5.0
MIB = 1024


@dataclass(frozen=True)
class BurstCluster:
    """Nodes, server and product of one burst."""

    kubernetes: Kubernetes
    """The cluster's administrator."""
    temporal: Temporal
    product: Product
    processes: Processes

    @classmethod
    @asynccontextmanager
    async def start(cls, directory: Path, plan: Plan, progress: Progress) -> AsyncIterator["BurstCluster"]:
        """Start all of it; it ends with the context. Raises `PartFailedError` with the end of a log."""
        policy = directory / "policy.yaml"
        policy.write_text(yaml.safe_dump(plan.policy(), sort_keys=False))
        async with Processes(directory / "logs") as processes:
            plane = ControlPlane(
                directory,
                processes,
                controller_manager_flags=PATIENT,
                lease_seconds=LEASE_SECONDS,
                heartbeat_seconds=HEARTBEAT_SECONDS,
            )
            temporal = Temporal(directory, processes)
            unused = Cloud(directory, processes, plane.kubeconfig("admin"), CLUSTER)  # never started
            product = Product(directory, processes, plane, temporal, unused, cluster=CLUSTER, policy=policy)
            with progress.step("Kubernetes control plane and Temporal server"):
                await together(plane.launch(), temporal.start())
            async with plane.client() as kubernetes:
                with progress.step(f"{plan.nodes} nodes in {plan.pools} pools"):
                    await plane.apply_kustomization(MANIFESTS)
                    await together(*(kubernetes.request("DELETE", kind) for kind in PODS_OF_OURS))
                    await _populate(kubernetes, plan)
                with progress.step(f"Product: {', '.join(ROLES)}"):
                    await together(*map(product.start, ROLES))
                with progress.step("The control plane has taken in the new nodes"):
                    await _calm(processes[APISERVER].pid)
                yield cls(kubernetes, temporal, product, processes)

    def memory(self) -> dict[str, float]:
        """The most that each role of the product ever had in memory, in MiB, as the kernel counts it."""
        return {role: _peak(self.processes[role].pid) for role in ROLES}


async def _calm(pid: int) -> None:
    """Wait until a process takes little processor time: no fleet is made in the minute before its burst."""
    try:
        async with asyncio.timeout(READY_PATIENCE):
            before = _processor_seconds(pid)
            while True:
                await asyncio.sleep(CALM_SECONDS)
                now = _processor_seconds(pid)
                if now - before < CALM * CALM_SECONDS:
                    return
                before = now
    except TimeoutError:
        raise PartFailedError(f"{APISERVER} is still busy after {READY_PATIENCE:.0f} s") from None


def _processor_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _peak(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return float(line.split()[1]) / MIB


def _ready() -> Object:
    """As a kubelet that has joined reports itself."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


async def _populate(kubernetes: Kubernetes, plan: Plan) -> None:
    left = iter(range(plan.nodes))

    async def create() -> None:
        for number in left:
            body = gpu_node(plan.node(number), f"i-{number:017x}", pool=plan.pool_of(number))
            body["status"]["conditions"] = [_ready()]
            await kubernetes.request("POST", NODES, body=body)

    await together(*(create() for _ in range(CREATED_AT_ONCE)))
    try:
        async with asyncio.timeout(READY_PATIENCE):
            while not all(map(is_ready, await kubernetes.items(NODES))):
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise PartFailedError(f"not all nodes were Ready after {READY_PATIENCE:.0f} s") from None
