"""Handing a job's faults to the record of the job, and asking which record knows a fault.

One update is in flight per job; the faults that wait meanwhile go together with the next one.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
)
from temporalio.common import SearchAttributePair, TypedSearchAttributes, WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import names
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.job import MOST_FAULTS, JobFault, JobReport
from gpu_runbooks.activities.model.notify import KubernetesObject
from gpu_runbooks.workers.intake.closed_incidents import FIRST_FAULT, READ_TIMEOUT
from gpu_runbooks.workers.intake.delivered import UNREACHABLE, Delivered, TemporalUnavailableError
from gpu_runbooks.workers.intake.handover import hand_over, latest
from gpu_runbooks.workflows.job_details import origin
from gpu_runbooks.workflows.job_record import short
from gpu_runbooks.workflows.messages import KNOWN
from gpu_runbooks.workflows.search_attributes import RUNBOOK_CLUSTER, RUNBOOK_FAULT, RUNBOOK_PHASE

MOST_RECORDS = 20
"""Records, latest first, that are asked whether they know a fault."""

MOST_REMEMBERED = 200
"""Results of closed records that are kept: they never change."""


@dataclass
class _Queue:
    """Faults of one job that wait for their update."""

    waiting: list[tuple[JobReport, asyncio.Future[Delivered]]] = field(default_factory=list)
    sender: asyncio.Task[None] | None = None


class JobRecords:
    """Records of the jobs of one cluster, over one client."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._client = client
        self._cluster = cluster
        self._queues: dict[str, _Queue] = {}
        self._closed: dict[str, frozenset[str]] = {}

    async def is_open(self, job: KubernetesObject) -> bool:
        """Whether a record of the job takes faults now. Raises `TemporalUnavailableError`."""
        try:
            last = await latest(self._client, self._id(job))
        except UNREACHABLE as error:
            raise TemporalUnavailableError(f"{self._id(job)}: {error!r}") from error
        return last is not None and last.status is WorkflowExecutionStatus.RUNNING

    async def that_knows(self, fault: Fault) -> Delivered | None:
        """The record that has this very fault, open or closed since its onset; None for news.

        Asked without the job: its pods may be gone when the alert comes again.
        Raises `TemporalUnavailableError`.
        """
        query = (
            f"WorkflowType = 'JobRecovery' AND RunbookCluster = '{self._cluster}' AND "
            f"(CloseTime IS NULL OR CloseTime >= '{fault.first_seen.isoformat()}')"
        )
        try:
            async for run in self._client.list_workflows(query, limit=MOST_RECORDS, rpc_timeout=READ_TIMEOUT):
                if await self._knows(run, fault):
                    if run.status is WorkflowExecutionStatus.RUNNING:
                        return Delivered("duplicate", run.id, run.run_id)
                    answered = f"same episode, already answered by the record of the job, run {run.run_id}"
                    return Delivered("ignored", run.id, run.run_id, answered)
        except UNREACHABLE as error:
            raise TemporalUnavailableError(f"records of jobs: {error!r}") from error
        return None

    async def deliver(self, report: JobReport) -> Delivered:
        """Make sure that the record of the job has a fault. Raises `TemporalUnavailableError`."""
        queue = self._queues.setdefault(self._id(report.job), _Queue())
        delivered: asyncio.Future[Delivered] = asyncio.get_running_loop().create_future()
        queue.waiting.append((report, delivered))
        if queue.sender is None:
            queue.sender = asyncio.create_task(self._send_all(self._id(report.job), queue))
        return await delivered

    async def _send_all(self, workflow_id: str, queue: _Queue) -> None:
        while queue.waiting:
            batch, queue.waiting = queue.waiting[:MOST_FAULTS], queue.waiting[MOST_FAULTS:]
            try:
                sent: Delivered | Exception = await self._send(workflow_id, [report for report, _ in batch])
            except Exception as error:  # noqa: BLE001 - those who wait have to hear of any
                sent = TemporalUnavailableError(f"{workflow_id}: {error!r}")
            for _, delivered in batch:
                if delivered.done():  # whoever sent it has given up
                    continue
                if isinstance(sent, Delivered):
                    delivered.set_result(sent)
                else:
                    delivered.set_exception(sent)
        del self._queues[workflow_id]

    async def _send(self, workflow_id: str, reports: list[JobReport]) -> Delivered:
        faults = {short(each.fault): each for report in reports for each in report.faults}
        report = reports[0].model_copy(
            update={
                "faults": tuple(map(_slim, faults.values())),
                "enforce": all(each.enforce for each in reports),
            }
        )
        last = await latest(self._client, workflow_id)
        running = last is not None and last.status is WorkflowExecutionStatus.RUNNING
        handed = await hand_over(
            self._client,
            report,
            self._start(workflow_id, report),
            workflow_id=workflow_id,
            update_id=names.digest(*sorted(faults)),
            running=running,
            is_ours=lambda run: _began_with(run, report),
        )
        if not handed.taken_up:
            return Delivered("started", workflow_id, handed.run_id, "no worker has taken it up yet")
        if handed.rejected is not None:
            cause = handed.rejected.cause
            if isinstance(cause, ApplicationError) and cause.type == KNOWN:
                return Delivered("duplicate" if running else "started", workflow_id, handed.run_id)
            raise TimeoutError(f"the update did not end: {cause!r}")
        return Delivered("joined" if running else "started", workflow_id, handed.run_id)

    def _start(self, workflow_id: str, report: JobReport) -> WithStartWorkflowOperation[object, object]:
        fault = report.faults[0].fault
        return WithStartWorkflowOperation(
            "JobRecovery",
            {"report": report.model_dump(mode="json")},
            id=workflow_id,
            task_queue=names.REMEDIATION_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"{fault.source} {fault.code} on nodes of {report.job}"[:200],
            static_details=origin(report),
            search_attributes=TypedSearchAttributes(
                [
                    SearchAttributePair(RUNBOOK_CLUSTER, self._cluster),
                    SearchAttributePair(RUNBOOK_FAULT, f"{fault.source}:{fault.code}"),
                    SearchAttributePair(RUNBOOK_PHASE, "open"),
                ]
            ),
            memo={FIRST_FAULT: _memo(report)},
        )

    async def _knows(self, run: WorkflowExecution, fault: Fault) -> bool:
        handle: Any = self._client.get_workflow_handle(run.id, run_id=run.run_id)
        if run.status is WorkflowExecutionStatus.RUNNING:
            known: bool = await handle.query("knows", short(fault), rpc_timeout=READ_TIMEOUT)
            return known
        if run.status is not WorkflowExecutionStatus.COMPLETED:
            return False
        if run.run_id not in self._closed:
            result = await handle.result(follow_runs=False, rpc_timeout=READ_TIMEOUT)
            listed = result.get("fingerprints") if isinstance(result, dict) else None
            self._closed[run.run_id] = frozenset(listed if isinstance(listed, list) else ())
            while len(self._closed) > MOST_REMEMBERED:
                del self._closed[next(iter(self._closed))]
        return short(fault) in self._closed[run.run_id]

    def _id(self, job: KubernetesObject) -> str:
        return names.job_id(self._cluster, job.namespace, job.name)


async def _began_with(run: WorkflowExecutionDescription, report: JobReport) -> bool:
    return (await run.memo()).get(FIRST_FAULT) == _memo(report)


def _memo(report: JobReport) -> str:
    """What tells the run that was started by these faults from one of others."""
    return names.digest(*(each.fault.fingerprint for each in report.faults))


def _slim(each: JobFault) -> JobFault:
    """With a short summary: ten faults are one payload."""
    fault = each.fault.model_copy(update={"summary": each.fault.summary[:100]})
    return each.model_copy(update={"fault": fault})
