"""The two drains that are compared: `kubectl drain`, and the drain step of a real runbook."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowFailureError, WorkflowHandle

from gpu_runbooks.activities.model.drain import DrainResult
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, incident_id
from testbed.bench_fleet import NAMESPACE as PODS_NAMESPACE
from testbed.bench_requests import Window
from testbed.build import path_of
from testbed.control_plane import NAMESPACE, ControlPlane
from testbed.temporal import Temporal
from testbed.testbed import CLUSTER

LIMIT_SECONDS = 120
"""A drain that takes longer has failed."""

KUBECTL_ACCOUNT = "kubectl"
KUBECTL_USER = f"system:serviceaccount:{PODS_NAMESPACE}:{KUBECTL_ACCOUNT}"
OUR_USER = f"system:serviceaccount:{NAMESPACE}:cluster-worker"

Handle = WorkflowHandle[Any, Any]


class DrainFailedError(Exception):
    """A drain did not end with an empty node."""


class KubectlDrain:
    """`kubectl drain` as people run it, with an identity of its own and its cache of the API warm."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def prepare(self) -> None:
        """Make its ServiceAccount, of the same kind as ours, so that the API server ranks both alike."""
        kubectl = self._plane.kubectl
        account = f"{PODS_NAMESPACE}:{KUBECTL_ACCOUNT}"
        await kubectl("create", "serviceaccount", KUBECTL_ACCOUNT, f"--namespace={PODS_NAMESPACE}")
        await kubectl(
            *("create", "clusterrolebinding", "bench-kubectl", "--clusterrole=cluster-admin"),
            f"--serviceaccount={account}",
        )
        await self._plane.grant(KUBECTL_ACCOUNT, namespace=PODS_NAMESPACE)
        await kubectl("api-resources", identity=KUBECTL_ACCOUNT)

    async def drain(self, node: str) -> Window:
        """From the start of the command to its end. Raises `DrainFailedError` with its complaint."""
        command = (
            *(path_of("kubectl"), f"--kubeconfig={self._plane.kubeconfig(KUBECTL_ACCOUNT)}"),
            f"--cache-dir={self._plane.directory / 'kubectl-cache'}",
            *("drain", node, "--ignore-daemonsets", "--force", f"--timeout={LIMIT_SECONDS}s"),
        )
        began, clock = datetime.now(UTC), time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, complaint = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        seconds = time.monotonic() - clock
        if process.returncode:
            raise DrainFailedError(f"kubectl drain {node}: {complaint.decode().strip()}")
        return Window(began, began + timedelta(seconds=seconds))


class OurDrain:
    """The product's drain, within runbooks `DrainNode` on a real Temporal server."""

    def __init__(self, temporal: Temporal) -> None:
        self._temporal = temporal

    async def drain(self, *nodes: str) -> list[Window]:
        """Drain nodes at once and wait until the runbooks have ended.

        Each window is from the schedule of the drain's activity until the workflow had its result in hand.
        Raises `DrainFailedError` for one that did not end `drained`.
        """
        client = self._temporal.client
        handles = await asyncio.gather(
            *(
                client.start_workflow(
                    "DrainNode",
                    {"node": node, "reason": "benchmark", "operator": "bench"},
                    id=incident_id(CLUSTER, node),
                    task_queue=REMEDIATION_QUEUE,
                )
                for node in nodes
            )
        )
        await asyncio.gather(*map(_ended, handles))
        return [await self._step(handle) for handle in handles]

    async def _step(self, handle: Handle) -> Window:
        events = (await handle.fetch_history()).events
        scheduled = next((event for event in events if _activity(event) == "drain_pods"), None)
        if scheduled is None:
            raise DrainFailedError(f"{handle.id} never drained: see the log of the role controller")
        attributes = (
            (event, event.activity_task_completed_event_attributes)
            for event in events
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
        )
        found = next((one for one in attributes if one[1].scheduled_event_id == scheduled.event_id), None)
        if found is None:
            raise DrainFailedError(f"{handle.id}: its drain gave no result: see the log of cluster-worker")
        completed, outcome = found
        (result,) = await self._temporal.client.data_converter.decode(outcome.result.payloads, [DrainResult])
        if result.outcome != "drained":
            raise DrainFailedError(
                f"{handle.id}: {result.outcome} with {result.blocked_total} pods left: {result.message}"
            )
        received = next(
            event
            for event in events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED
            and event.event_id > completed.event_id
        )
        return Window(_time(scheduled), _time(received))


async def _ended(handle: Handle) -> None:
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            await handle.result()
    except TimeoutError:
        return  # the history says how far it came
    except WorkflowFailureError as error:
        raise DrainFailedError(f"{handle.id} failed: {error.cause}") from error


def _activity(event: HistoryEvent) -> str:
    return event.activity_task_scheduled_event_attributes.activity_type.name


def _time(event: HistoryEvent) -> datetime:
    return event.event_time.ToDatetime(UTC)
