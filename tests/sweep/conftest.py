"""A sweep between a real API server and a real Temporal server."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cluster.conftest import admin, faulty, installed, kubernetes, make_node, proxy  # noqa: F401 - fixtures
from incident.conftest import dev_server, skipping  # noqa: F401 - a fixture
from intake.stand_in import StandIn
from sweep.stand_ins import Budget, Ending
from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from gpu_runbooks.activities.kubernetes.client import Kubernetes
from gpu_runbooks.activities.model.page import Page, Paged
from gpu_runbooks.activities.names import CLUSTER_QUEUE, REMEDIATION_QUEUE, TEMPORAL_QUEUE
from gpu_runbooks.activities.sweep.cluster import ClusterSweep
from gpu_runbooks.activities.sweep.temporal import TemporalSweep
from gpu_runbooks.workers.intake.incidents import Incidents
from gpu_runbooks.workers.intake.reception import Reception
from gpu_runbooks.workers.policy.policy_file import PolicyFile
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workers.sweeping import BadConditions
from gpu_runbooks.workflows import sweep_findings
from gpu_runbooks.workflows.fleet_sweep import FleetSweep
from testbed.control_plane import NAMESPACE, TEST_NAMESPACE

POOL = "sweep-tests"

POLICY = f"""
mode: enforce
pools:
- name: {POOL}
  selector: {{gpu-runbooks.dev/pool: {POOL}}}
  budget: {{max_unavailable: 1}}
validation:
  test_pod: {{image: gpu-load-test, command: [gpu-load-test]}}
"""


class Pager:
    """Who is called: takes the place of the ways to a person, which have tests of their own."""

    def __init__(self) -> None:
        self.pages: list[Page] = []

    @activity.defn
    async def page(self, request: Page) -> Paged:
        self.pages.append(request)
        return Paged(reached=("event",))


@dataclass
class InTemporal:
    """Workflows of one cluster on the server."""

    client: Client
    cluster: str

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """The worker of the workflows."""
        workflows = [FleetSweep, StandIn, Ending, Budget]
        async with Worker(self.client, task_queue=REMEDIATION_QUEUE, workflows=workflows):
            yield

    async def ended(self, node: str, outcome: str) -> str:
        """A runbook of this node that ended so; its first run id."""
        handle = await self.client.start_workflow(
            "DrainNode", outcome, id=f"node/{self.cluster}/{node}", task_queue=REMEDIATION_QUEUE
        )
        await handle.result()
        return str(handle.first_execution_run_id)

    async def opened(self, node: str) -> str:
        """An open incident of this node; its first run id."""
        report = {"fault": {"fingerprint": "f"}, "plan": {"identity": {"provider_id": "p"}}}
        handle = await self.client.start_workflow(
            "NodeRemediation",
            {"report": report},
            id=f"node/{self.cluster}/{node}",
            task_queue=REMEDIATION_QUEUE,
        )
        return str(handle.first_execution_run_id)


@dataclass
class Sweeping(InTemporal):
    """All that a sweep needs."""

    settings: Settings
    sweep: ClusterSweep
    conditions: BadConditions
    pager: Pager

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """The workers of all queues."""
        temporal = TemporalSweep(self.client).activities()
        cluster = [*self.sweep.activities(), self.pager.page]
        async with (
            super().working(),
            Worker(self.client, task_queue=TEMPORAL_QUEUE, activities=temporal),
            Worker(self.client, task_queue=CLUSTER_QUEUE, activities=cluster),
        ):
            yield

    async def start(self, name: str = "") -> WorkflowHandle[Any, Any]:
        """A sweep, as a person starts it."""
        return await self.client.start_workflow(
            "FleetSweep",
            {"cluster": self.cluster},
            id=f"sweep/{self.cluster}{name}",
            task_queue=REMEDIATION_QUEUE,
        )


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Client]:
    async with dev_server("frontend.WorkflowPauseEnabled=true") as client:
        yield client


@pytest.fixture
def in_temporal(server: Client) -> InTemporal:
    """A cluster of its own in Temporal."""
    return InTemporal(server, f"c-{uuid.uuid4().hex[:8]}")


@pytest.fixture
async def sweeping(in_temporal: InTemporal, kubernetes: Kubernetes, tmp_path: Path) -> Sweeping:  # noqa: F811
    """A cluster of its own in Temporal; on the API server all see the same nodes."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    server, cluster = in_temporal.client, in_temporal.cluster
    settings = Settings(cluster=cluster, policy=policy, namespace=NAMESPACE, test_namespace=TEST_NAMESPACE)
    policy_file = PolicyFile(settings)
    reception = Reception(kubernetes, Incidents(server, cluster), policy_file)
    conditions = BadConditions(policy_file, reception)
    sweep = ClusterSweep(
        kubernetes,
        NAMESPACE,
        TEST_NAMESPACE,
        # A young Node's condition is as young: an hour from now it has stood for too long.
        lambda node, now: conditions.overdue(node, now + timedelta(hours=1)),
        conditions.take_up,
    )
    return Sweeping(server, cluster, settings, sweep, conditions, Pager())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is new counts as left behind."""
    monkeypatch.setattr(sweep_findings, "SETTLES", timedelta(0))
