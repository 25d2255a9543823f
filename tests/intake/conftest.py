"""The intake as its role runs it, between a real API server and a real Temporal server."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from intake.alerts import notification
from intake.stand_in import StandIn, StandInBudget
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from gpu_runbooks.activities.kubernetes.client import Kubernetes
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, incident_id
from gpu_runbooks.activities.nodes.node import readiness
from gpu_runbooks.workers.intake import role
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workflows.fleet_guard import FleetGuard
from testbed.control_plane import ControlPlane
from testbed.nodes import gpu_node
from testbed.ports import free_port
from testbed.processes import Processes
from testbed.readiness import answers
from testbed.temporal import Temporal

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
CLUSTER = "test"
POOL = "intake-tests"
TOKEN = "a-token-of-this-test"
KEEP_OTHERS_OFF = {"key": "example.com/tests-only", "effect": "NoSchedule"}

POLICY = f"""
mode: enforce
pools:
- name: {POOL}
  selector: {{gpu-runbooks.dev/pool: {POOL}}}
  budget: {{max_unavailable: 1}}
validation:
  test_pod: {{image: gpu-load-test, command: [gpu-load-test]}}
"""


class InTemporal:
    """What an intake leaves behind in Temporal."""

    temporal: Client

    async def incident(self, node: str) -> WorkflowExecutionDescription | None:
        """The latest incident of a node."""
        try:
            return await self.temporal.get_workflow_handle(incident_id(CLUSTER, node)).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise

    async def fingerprints(self, node: str) -> list[str]:
        """Faults that the open incident of a node knows."""
        handle = self.temporal.get_workflow_handle(incident_id(CLUSTER, node), result_type=list)
        return await handle.query("fingerprints")


@dataclass(frozen=True)
class Webhook(InTemporal):
    """A served intake, and what it left behind in Temporal."""

    url: str
    temporal: Client

    async def post(
        self, *alerts: dict[str, Any], token: str | None = TOKEN, **fields: Any
    ) -> tuple[int, dict[str, Any]]:
        """Post a notification; status and body of the answer."""
        return await self.post_body(notification(*alerts, **fields), token=token)

    async def post_body(self, body: Any, *, token: str | None = TOKEN) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        data = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/alertmanager", headers=headers, **data) as response,
        ):
            return response.status, await response.json()

    async def end_incident(self, node: str) -> None:
        handle = self.temporal.get_workflow_handle(incident_id(CLUSTER, node))
        await handle.signal("end")
        await handle.result()


@pytest.fixture(scope="session")
async def temporal(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Temporal]:
    directory = tmp_path_factory.mktemp("intake-temporal")
    async with Processes(directory / "logs") as processes:
        server = Temporal(directory, processes)
        await server.start()
        yield server


@pytest.fixture(scope="session")
async def admin(control_plane: ControlPlane) -> AsyncIterator[Kubernetes]:
    await control_plane.apply_kustomization(MANIFESTS)
    async with control_plane.client() as kubernetes:
        yield kubernetes


@pytest.fixture(scope="session")
async def kubeconfig(control_plane: ControlPlane, admin: Kubernetes) -> Path:
    """A connection with the intake's own rights."""
    return await control_plane.grant("intake")


@pytest.fixture
async def make_node(admin: Kubernetes) -> AsyncIterator[Callable[..., Awaitable[str]]]:
    made = []

    async def make(pool: str = POOL) -> str:
        name = f"gpu-{uuid.uuid4().hex[:8]}"
        body = gpu_node(name, f"i-{uuid.uuid4().hex[:17]}", pool=pool)
        body["spec"]["taints"] = [KEEP_OTHERS_OFF]
        await admin.request("POST", "/api/v1/nodes", body=body)
        made.append(name)
        while readiness(await admin.request("GET", f"/api/v1/nodes/{name}")) != "True":
            await asyncio.sleep(0.02)  # what a node shows decides about old evidence
        return name

    yield make
    for name in made:
        if await admin.find(f"/api/v1/nodes/{name}"):
            await admin.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
async def node(make_node: Callable[..., Awaitable[str]]) -> str:
    return await make_node()


@pytest.fixture
async def controller(temporal: Temporal) -> AsyncIterator[None]:
    """A worker with the stand-ins, and the guard of the fleet."""
    workflows = [StandIn, StandInBudget, FleetGuard]
    async with Worker(temporal.client, task_queue=REMEDIATION_QUEUE, workflows=workflows):
        yield


@asynccontextmanager
async def served(
    directory: Path, temporal: Temporal, kubeconfig: Path, *, address: str = "", intake: str = ""
) -> AsyncIterator[Webhook]:
    """The role as `gpu-runbooks intake` runs it, until the block ends. `intake`: section of the policy."""
    policy, token = directory / "policy.yaml", directory / "token"
    policy.write_text(POLICY + (f"intake: {intake}\n" if intake else ""))
    token.write_text(f"{TOKEN}\n")
    listen = f"127.0.0.1:{free_port()}"
    settings = Settings(cluster=CLUSTER, policy=policy, listen=listen, webhook_token_file=token)
    stop = asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(kubeconfig))
        patch.setenv("TEMPORAL_ADDRESS", address or temporal.address)
        running = asyncio.create_task(role.run(settings, stop))
        try:
            async with asyncio.timeout(60):
                while not running.done() and not await answers(f"http://{listen}/healthz"):
                    await asyncio.sleep(0.02)
            yield Webhook(f"http://{listen}", temporal.client)
        finally:
            stop.set()
            await running


@pytest.fixture
async def webhook(tmp_path: Path, temporal: Temporal, kubeconfig: Path) -> AsyncIterator[Webhook]:
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(served(tmp_path, temporal, kubeconfig))
