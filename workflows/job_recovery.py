"""`JobRecovery`: the one record of a job whose nodes all have an application's fault. No node is touched."""

import contextlib
from datetime import timedelta
from functools import partial
from typing import Any

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.activities.errors import BAD_INPUT, refusal
    from gpu_runbooks.activities.model.job import JobReport
    from gpu_runbooks.activities.model.notify import NotifyOwner
    from gpu_runbooks.activities.names import job_id
    from gpu_runbooks.workflows.failures import in_words
    from gpu_runbooks.workflows.job_details import live_details
    from gpu_runbooks.workflows.job_record import Close, JobRecord, JobResult, Tell
    from gpu_runbooks.workflows.messages import ENDING, KNOWN
    from gpu_runbooks.workflows.notifying import send
    from gpu_runbooks.workflows.operator import wrong_fields
    from gpu_runbooks.workflows.phases import Outcome, Phase
    from gpu_runbooks.workflows.search_attributes import RUNBOOK_OUTCOME, RUNBOOK_PHASE


class JobStart(BaseModel):
    """Input, written by an intake."""

    report: JobReport


@workflow.defn
class JobRecovery:
    """Keeps the faults of one job's burst, tells the job's owner once, and closes when it is quiet."""

    @workflow.init
    def __init__(self, raw: Any = None) -> None:  # noqa: ARG002 - read in run, where an error can fail it
        self._record: JobRecord | None = None
        self._end: Close | None = None
        self._phase = Phase.OPEN

    @workflow.run
    async def run(self, raw: Any = None) -> JobResult:
        """Count, tell, wait, close."""
        record = self._record = JobRecord.open(_read(raw), workflow.now())
        try:
            while not isinstance(step := self._next(record), Close):
                if isinstance(step, Tell):
                    await self._tell(record, step)
                    continue
                self._enter(Phase.WAITING, record)
                wait = max(step.until - workflow.now(), timedelta(seconds=1))
                with contextlib.suppress(TimeoutError):
                    await workflow.wait_condition(
                        partial(record.has_more_than, record.faults),
                        timeout=wait,
                        timeout_summary="until the burst is over",
                    )
        except BaseException as error:
            if is_cancelled_exception(error):
                self._close(record, Close(Outcome.CANCELLED, "cancelled through Temporal"))
            raise
        self._close(record, step)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return record.result(step)

    def _next(self, record: JobRecord) -> Any:
        return record.next_step(
            workflow.now(), history_is_long=workflow.info().is_continue_as_new_suggested()
        )

    async def _tell(self, record: JobRecord, step: Tell) -> None:
        self._enter(Phase.NOTIFYING, record)
        request = NotifyOwner(
            incident=workflow.info().workflow_id,
            fault=record.first_fault,
            nodes=record.first_nodes,
            node_count=len(record.nodes),
            job=record.job,
        )
        try:
            record.told = await send(request, step.rung)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            record.problem = in_words(error)

    def _enter(self, phase: Phase, record: JobRecord) -> None:
        if phase is not self._phase:
            self._phase = phase
            workflow.upsert_search_attributes([RUNBOOK_PHASE.value_set(phase)])
        workflow.set_current_details(live_details(record, phase, self._end))

    def _close(self, record: JobRecord, end: Close) -> None:
        self._end = end
        workflow.upsert_search_attributes([RUNBOOK_OUTCOME.value_set(end.outcome)])
        self._enter(Phase.CLOSED, record)

    @workflow.update(description="Faults of this job, from an intake")
    async def report_fault(self, report: JobReport) -> str:
        await workflow.wait_condition(lambda: self._record is not None)
        if self._record is None or self._end is not None:
            raise ApplicationError("the record is closing: send it again", type=ENDING)
        self._record.add(report, workflow.now())
        workflow.set_current_details(live_details(self._record, Phase.WAITING, None))
        return "joined"

    @report_fault.validator
    def _validate_report_fault(self, report: JobReport) -> None:
        if self._end is not None:
            raise ApplicationError("the record is closing: send it again", type=ENDING)
        if self._record is not None and not self._record.news(report.faults):
            raise ApplicationError("these faults are part of the record already", type=KNOWN)

    @workflow.query(description="Whether the record knows a fault, by the short form of its fingerprint")
    def knows(self, fingerprint: str) -> bool:
        return self._record is not None and fingerprint in self._record.known


def _read(raw: Any) -> JobReport:
    """Read the input. Raises `BadInput`, with the workflow id that is right where the given one is not."""
    try:
        report = JobStart.model_validate(raw).report
    except ValidationError as error:
        raise refusal(BAD_INPUT, f"bad input of JobRecovery: {wrong_fields(error, JobStart)}") from None
    right = job_id(report.cluster, report.job.namespace, report.job.name)
    if workflow.info().workflow_id != right:
        raise refusal(BAD_INPUT, f"the workflow id of {report.job} must be {right!r}")
    return report
