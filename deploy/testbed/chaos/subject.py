"""One incident of the matrix: its node, and what a person or a test does with it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio.client import (
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.activities.names import REMEDIATION_QUEUE, incident_id
from gpu_runbooks.workflows.audit import Result, Status
from testbed.chaos.policy import POOL_LABEL, TOLERATED, WIDE
from testbed.testbed import CLUSTER, Testbed

PATIENCE = 240.0
"""Seconds that only a failure reaches."""

LOOK_SECONDS = 0.25

ASK_SECONDS = timedelta(seconds=5)

EXPORTER = "nvidia.com/gpu.deploy.dcgm-exporter"
"""Label of a GPU service that a reset has to stop, and to start again."""

PROTECTED = {"karpenter.sh/do-not-disrupt": "true"}

WORD = {"operator": "chaos", "reason": "the matrix"}


class StuckError(Exception):
    """Something that was waited for did not come."""


async def eventually(holds: Callable[[], Awaitable[bool]], what: str, seconds: float = PATIENCE) -> None:
    """Wait until it holds. Raises `StuckError`, which says what was waited for."""
    try:
        async with asyncio.timeout(seconds):
            while not await holds():
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise StuckError(f"waited {seconds:.0f} s for {what}") from None


@dataclass
class Subject:
    """A node with an incident of its own."""

    testbed: Testbed
    node: str
    instance: str
    pool: str = WIDE
    run_id: str = ""
    """First run of the incident; empty before it has begun."""
    pods: list[str] = field(default_factory=list)
    """Names of the pods that a drain is to evict, once each."""

    @property
    def workflow_id(self) -> str:
        return incident_id(CLUSTER, self.node)

    @property
    def incident(self) -> WorkflowHandle[Any, Result]:
        """The incident of this run, and none that the node has after it."""
        return self.testbed.temporal.client.get_workflow_handle(
            self.workflow_id, run_id=self.run_id or None, result_type=Result
        )

    async def put_to_work(self) -> None:
        """Put the node into its pool, with a GPU service that a reset has to stop, and a pod."""
        body = {"metadata": {"labels": {POOL_LABEL: self.pool, EXPORTER: "true"}}}
        await self.testbed.kubernetes.request(
            "PATCH", f"/api/v1/nodes/{self.node}", body=body, content_type="application/merge-patch+json"
        )
        await self.run_pod("work", {})

    async def run_pod(self, kind: str, annotations: dict[str, str]) -> str:
        """Run a pod without a controller on the node; returns its path."""
        name = f"{kind}-{self.node}"
        stop = {"gpu-runbooks.dev/stop-seconds": "0"}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": stop | annotations},
            "spec": {
                "nodeName": self.node,
                "containers": [{"name": "main", "image": "registry.example/app:1"}],
            },
        }
        await self.testbed.kubernetes.request("POST", "/api/v1/namespaces/default/pods", body=body)
        self.pods.append(name)
        return f"/api/v1/namespaces/default/pods/{name}"

    async def start(self, ladder: str) -> None:
        """Start the incident as a person would."""
        handle = await self.testbed.temporal.client.start_workflow(
            "NodeRemediation",
            {"node": self.node, "reason": WORD["reason"], "operator": WORD["operator"], "ladder": ladder},
            id=self.workflow_id,
            task_queue=REMEDIATION_QUEUE,
        )
        self.run_id = handle.first_execution_run_id or ""

    async def alert(self) -> None:
        """Let Alertmanager report a fault that is tolerated for a while, and wait for its incident."""
        await self.testbed.alertmanager.fire({"alertname": TOLERATED, "node": self.node})
        await eventually(self._has_begun, f"an incident of node {self.node} from its alert")

    async def _has_begun(self) -> bool:
        try:
            self.run_id = (await self.incident.describe()).raw_info.first_run_id
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        return True

    async def status(self) -> Status | None:
        """What the incident says of itself; None while nobody can be asked."""
        try:
            seen: Status = await self.incident.query("status", result_type=Status, rpc_timeout=ASK_SECONDS)
        except (RPCError, WorkflowQueryFailedError):
            return None
        return seen

    async def say(self, update: str) -> None:
        """A person's word to an incident that is not over, said again while nobody listens."""

        async def said() -> bool:
            try:
                await self.incident.execute_update(update, WORD, rpc_timeout=ASK_SECONDS)
            except RPCError as error:
                return error.status is RPCStatusCode.NOT_FOUND  # the incident is over
            except WorkflowUpdateRPCTimeoutOrCancelledError:
                return False
            except WorkflowUpdateFailedError:
                seen = await self.status()
                return seen is not None and seen.question is None  # the word before it was heard
            return True

        await eventually(said, f"the update {update} of node {self.node}")
