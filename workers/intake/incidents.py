"""Handing a fault to Temporal: it opens the incident of its node, or joins the one that is open.

The answer is given only when the fault is durable: in the input of a running incident, or in an update that
its workflow accepted. Every path may be taken again with the same fault.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from weakref import WeakValueDictionary

from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WithStartWorkflowOperation,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
    WorkflowUpdateStage,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.activities.model.fault import ConditionCleared
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, incident_id
from gpu_runbooks.workflows.audit import origin
from gpu_runbooks.workflows.messages import ENDING, EXPIRED, KNOWN, OTHER_MACHINE
from gpu_runbooks.workflows.phases import Outcome
from gpu_runbooks.workflows.search_attributes import opening

UPDATE_SECONDS = 5.0
"""A worker answers within milliseconds; one that has not after this is not there."""

READ_TIMEOUT = timedelta(seconds=3)

AT_ONCE = 16
"""Deliveries at the same time. More of them end no sooner: each only takes longer, up to its time limit."""

FIRST_FAULT = "fault"
"""Memo of an incident: fingerprint of the fault in its input."""

EARLIER_RUNS = 20
"""Closed incidents of a node that are asked whether they dealt with a fault, latest first."""


class TemporalUnavailableError(Exception):
    """The fault may not be in Temporal: it has to be sent again."""


@dataclass(frozen=True)
class Delivered:
    """What became of a fault."""

    status: Literal["started", "joined", "duplicate"]
    workflow_id: str
    run_id: str
    reason: str = ""


class Incidents:
    """Incidents of one cluster, over one client. One update is in flight per incident."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._client = client
        self._cluster = cluster
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._limit = asyncio.Semaphore(AT_ONCE)

    async def deliver(self, report: FaultReport, note: str = "") -> Delivered:
        """Make sure that the incident of the fault's node knows the fault.

        `note` is shown in the static details of an incident that this fault opens.
        Raises `TemporalUnavailableError`.
        """
        workflow_id = incident_id(self._cluster, report.plan.identity.name)
        lock = self._locks.setdefault(workflow_id, asyncio.Lock())
        try:
            async with lock, self._limit:
                return await self._deliver(workflow_id, report, note)
        except ApplicationError as error:
            raise TemporalUnavailableError(f"{workflow_id}: {error.message}") from error
        # RuntimeError is what a lazy client raises that cannot connect; ValueError, a description with a
        # status that the SDK has no name for, such as that of a workflow paused through the server.
        except (RPCError, RPCTimeoutOrCancelledError, TimeoutError, RuntimeError, ValueError) as error:
            raise TemporalUnavailableError(f"{workflow_id}: {error!r}") from error

    async def clear(self, node: str, cleared: ConditionCleared) -> None:
        """Tell the node's open incident that a condition became good again; nobody where there is none.

        A hint only: one that is lost costs a look at the node. Raises `TemporalUnavailableError`.
        """
        workflow_id = incident_id(self._cluster, node)
        try:
            handle = self._client.get_workflow_handle(workflow_id)
            await handle.signal("condition_cleared", cleared, rpc_timeout=READ_TIMEOUT)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise TemporalUnavailableError(f"{workflow_id}: {error!r}") from error
        except (RPCTimeoutOrCancelledError, TimeoutError, RuntimeError) as error:
            raise TemporalUnavailableError(f"{workflow_id}: {error!r}") from error

    async def _deliver(self, workflow_id: str, report: FaultReport, note: str) -> Delivered:
        latest = await self._latest(workflow_id)
        running = latest is not None and latest.status is WorkflowExecutionStatus.RUNNING
        if latest is not None:
            repeat = running and await _is_first_fault(latest, report)
            known = latest if repeat else await self._closed_over(latest, report)
            if known is not None:
                return Delivered("duplicate", workflow_id, known.run_id or "")
        try:
            async with asyncio.timeout(UPDATE_SECONDS):
                update = await self._client.start_update_with_start_workflow(
                    "report_fault",
                    report,
                    start_workflow_operation=self._start(workflow_id, report, note),
                    wait_for_stage=WorkflowUpdateStage.COMPLETED,
                    id=report.fault.fingerprint,
                    rpc_timeout=timedelta(seconds=UPDATE_SECONDS),
                )
        except (RPCTimeoutOrCancelledError, TimeoutError):
            # No worker took the update. If it opened the incident, then the fault is in the input and safe.
            started = None if running else await self._latest(workflow_id)
            if started is None or not await _is_first_fault(started, report):
                raise
            return Delivered("started", workflow_id, started.run_id or "", "no worker has taken it up yet")
        run_id = update.workflow_run_id or ""
        try:
            taken = await update.result()
        except WorkflowUpdateFailedError as error:
            return Delivered(_rejected(error, running=running), workflow_id, run_id)
        if taken == EXPIRED:
            raise TemporalUnavailableError(
                f"{workflow_id} was about an earlier machine of that name and ends now; the fault is taken "
                "when it is sent again"
            )
        return Delivered("joined" if running else "started", workflow_id, run_id)

    def _start(
        self, workflow_id: str, report: FaultReport, note: str
    ) -> WithStartWorkflowOperation[object, object]:
        fault, plan = report.fault, report.plan
        start: WithStartWorkflowOperation[object, object] = WithStartWorkflowOperation(
            "NodeRemediation",
            {"report": report.model_dump(mode="json")},
            id=workflow_id,
            task_queue=REMEDIATION_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"{fault.source} {fault.code}: ladder {plan.treatment.ladder}",
            static_details=origin(fault, plan) + (f"\n\n{note}" if note else ""),
            search_attributes=opening(self._cluster, plan, fault),
            memo={FIRST_FAULT: fault.fingerprint},
        )
        # A failed call also fails this future, which nobody here awaits: asyncio would log each as an error.
        start._workflow_handle.add_done_callback(lambda handle: handle.cancelled() or handle.exception())  # noqa: SLF001
        return start

    async def _latest(self, workflow_id: str) -> WorkflowExecutionDescription | None:
        """The latest incident of a node, open or closed; None where there was none within the retention."""
        try:
            return await self._client.get_workflow_handle(workflow_id).describe(rpc_timeout=READ_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise

    async def _closed_over(
        self, latest: WorkflowExecutionDescription, report: FaultReport
    ) -> WorkflowExecution | None:
        """The closed incident that dealt with this very fault; None for news.

        Alertmanager repeats what still fires, and a gauge of the last Xid stays until the driver restarts.
        """
        onset = report.fault.first_seen
        if latest.close_time is not None and await self._dealt_with(latest, report):
            return latest
        if latest.start_time <= onset:
            return None
        query = f"WorkflowId = '{latest.id}' AND CloseTime >= '{onset.isoformat()}'"
        async for run in self._client.list_workflows(query, limit=EARLIER_RUNS, rpc_timeout=READ_TIMEOUT):
            if run.run_id != latest.run_id and await self._dealt_with(run, report):
                return run
        return None

    async def _dealt_with(self, run: WorkflowExecution, report: FaultReport) -> bool:
        """Whether a run ended by itself, after the onset of the fault, with the fault among those it knew."""
        if run.status is not WorkflowExecutionStatus.COMPLETED or run.close_time is None:
            return False
        if run.close_time <= report.fault.first_seen:
            return False
        handle = self._client.get_workflow_handle(run.id, run_id=run.run_id, result_type=dict)
        result = await handle.result(follow_runs=False, rpc_timeout=READ_TIMEOUT)
        return report.fault.fingerprint in result.get("fingerprints", ()) and settles(result, report)


def settles(result: dict[str, Any], report: FaultReport) -> bool:
    """Whether the way that an incident ended is an answer to a fault that still fires."""
    match result.get("outcome"):
        case (
            Outcome.RETURNED
            | Outcome.REPLACED
            | Outcome.RESTARTED
            | Outcome.VALIDATED
            | Outcome.HELD
            | Outcome.RELEASED
            | Outcome.ABORTED
        ):
            return True
        case Outcome.LEFT_ALONE | Outcome.OBSERVED:
            # Another policy may have another answer.
            return bool(result.get("policy_digest") == report.plan.policy_digest)
        case Outcome.EXPIRED:
            # The machine was gone; the same one is back, or it is another, whose fault this cannot be.
            return bool(result.get("provider_id") != report.plan.identity.provider_id)
        case _:
            return False


async def _is_first_fault(incident: WorkflowExecutionDescription, report: FaultReport) -> bool:
    return (await incident.memo()).get(FIRST_FAULT) == report.fault.fingerprint


def _rejected(error: WorkflowUpdateFailedError, *, running: bool) -> Literal["started", "duplicate"]:
    """What a rejection by the incident means. Raises where the fault is not taken."""
    cause = error.cause
    if not isinstance(cause, ApplicationError):
        raise TimeoutError(f"the update did not end: {cause!r}")
    if cause.type == KNOWN:
        return "duplicate" if running else "started"
    if cause.type in {OTHER_MACHINE, ENDING}:
        raise TemporalUnavailableError(f"to be sent again when that incident is over: {cause.message}")
    raise cause
