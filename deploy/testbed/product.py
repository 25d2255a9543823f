"""The product's own processes, each with the credentials of its role and no others."""

import asyncio
import secrets
import sys
from pathlib import Path

from gpu_runbooks.activities.names import CLOUD_QUEUE, CLUSTER_QUEUE, REMEDIATION_QUEUE, TEMPORAL_QUEUE
from testbed.cloud import Cloud
from testbed.control_plane import NAMESPACE, TEST_NAMESPACE, ControlPlane
from testbed.ports import free_port
from testbed.processes import READY_SECONDS, Processes
from testbed.temporal import NAMESPACE as TEMPORAL_NAMESPACE
from testbed.temporal import Temporal

POLICY = Path(__file__).with_name("policy.yaml")
SOURCES = Path(__file__).parents[2] / "tests" / "dev"
"""Holds gpu_runbooks as links to the folders of this checkout."""

MANIFESTS = Path(__file__).parents[1] / "manifests"

QUEUES = {
    "controller": (REMEDIATION_QUEUE, TEMPORAL_QUEUE),
    "cluster-worker": (CLUSTER_QUEUE,),
    "cloud-worker": (CLOUD_QUEUE,),
}
"""Queues that a role works on: it is ready when it polls them all."""

ROLES = ("controller", "cluster-worker", "cloud-worker", "intake")

WITH_KUBERNETES = ("cluster-worker", "intake")
"""Roles whose ServiceAccount has rights; the others get no token, as in the manifests."""

TERMINATION_GRACE = 45.0
"""Seconds that the roles' Pods have to end, by their manifests."""

PROGRAM = Path(sys.executable).with_name("gpu-runbooks")


class Product:
    """Processes of the product's roles by name."""

    def __init__(
        self,
        directory: Path,
        processes: Processes,
        plane: ControlPlane,
        temporal: Temporal,
        cloud: Cloud,
        *,
        cluster: str,
        policy: Path = POLICY,
    ) -> None:
        self._processes = processes
        self._plane = plane
        self._temporal = temporal
        self._cloud = cloud
        self._cluster = cluster
        self._policy = policy
        self.evidence = directory.absolute() / "evidence"
        """Folder of the evidence that cluster-worker keeps."""
        self._intake = f"127.0.0.1:{free_port()}"
        self.token_file = directory / "webhook-token"
        """Holds the bearer token that the webhook demands."""
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(secrets.token_urlsafe(24))

    @property
    def webhook(self) -> str:
        """Address to which Alertmanager posts."""
        return f"http://{self._intake}/alertmanager"

    async def start(self, role: str) -> None:
        """Start a role with its own credentials and wait until it works.

        Raises `PartFailedError` with the end of its log if it does not.
        """
        part = await self._processes.start(role, [str(PROGRAM), role], await self._environment(role))
        await part.ready(lambda: self._works(role, part.pid), READY_SECONDS)

    async def stop(self, role: str) -> None:
        """Ask a role to end (SIGTERM), and wait for it as long as Kubernetes would wait for its Pod."""
        await self._processes.stop(role, TERMINATION_GRACE)

    async def kill(self, role: str) -> None:
        """Kill a role (SIGKILL) in whatever it is doing."""
        await self._processes.kill(role)

    async def _works(self, role: str, pid: int) -> bool:
        if role == "intake":
            return await _listens(self._intake)
        polled = [await self._temporal.polls(queue, pid) for queue in QUEUES[role]]
        return all(polled)

    async def _environment(self, role: str) -> dict[str, str]:
        environment = {
            # This checkout's code, whatever the environment's installation points at.
            "PYTHONPATH": str(SOURCES),
            "TEMPORAL_ADDRESS": self._temporal.address,
            "TEMPORAL_NAMESPACE": TEMPORAL_NAMESPACE,
            "GPU_RUNBOOKS_CLUSTER": self._cluster,
            "GPU_RUNBOOKS_NAMESPACE": NAMESPACE,
            "GPU_RUNBOOKS_POLICY": str(self._policy),
        }
        if role in WITH_KUBERNETES:
            environment["KUBECONFIG"] = str(await self._plane.grant(role))
        if role == "cluster-worker":
            environment["GPU_RUNBOOKS_TEST_NAMESPACE"] = TEST_NAMESPACE
            environment["GPU_RUNBOOKS_EVIDENCE"] = self.evidence.as_uri()
        if role == "cloud-worker":
            environment |= self._cloud.environment(role)
        if role == "intake":
            environment |= self._cloud.environment(role)
            environment["GPU_RUNBOOKS_EVENT_QUEUE"] = self._cloud.events
            environment["GPU_RUNBOOKS_LISTEN"] = self._intake
            environment["GPU_RUNBOOKS_WEBHOOK_TOKEN_FILE"] = str(self.token_file)
        return environment


async def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True
