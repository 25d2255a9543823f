"""Closed incidents of a node that knew a fault: which of them answered it, and how."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.workers.intake.staleness import Dealt
from gpu_runbooks.workflows.messages import EXPIRED
from gpu_runbooks.workflows.phases import Outcome

FIRST_FAULT = "fault"
"""Memo of an incident: fingerprint of the fault in its input."""

AGAIN = "again"
"""Memo of an incident that evidence opened which an earlier incident had dealt with: True."""

EARLIER_RUNS = 20
"""Closed incidents of a node that are asked whether they dealt with a fault, latest first."""

READ_TIMEOUT = timedelta(seconds=3)

WITHOUT_RESULT = frozenset(
    {
        WorkflowExecutionStatus.CONTINUED_AS_NEW,
        WorkflowExecutionStatus.FAILED,
        WorkflowExecutionStatus.CANCELED,
        WorkflowExecutionStatus.TERMINATED,
        WorkflowExecutionStatus.TIMED_OUT,
    }
)


@dataclass(frozen=True)
class Known:
    """What closed incidents had to do with a fault."""

    dealt: Dealt | None = None
    """The latest one that answered it."""
    unsettled: bool = False
    """One knew it and ended without an answer."""


async def known_before(client: Client, latest: WorkflowExecutionDescription, report: FaultReport) -> Known:
    """Look through the closed incidents of a node, those that ended after the onset of the fault.

    Alertmanager repeats what still fires, and a gauge of the last Xid stays until the driver restarts.
    """
    unsettled, answered = False, None
    again: datetime | None = None
    async for run in _closed_since_onset(client, latest, report):
        memo = await run.memo()
        first = memo.get(FIRST_FAULT) == report.fault.fingerprint
        if first and memo.get(AGAIN) is True:
            again = max(again or run.start_time, run.start_time)
        if answered is not None:
            continue
        if run.status in WITHOUT_RESULT:
            unsettled = unsettled or first or await _was_told(client, run, report.fault.fingerprint)
            continue
        result = await _result_of(client, run)
        if report.fault.fingerprint in _listed(result.get("fingerprints")):
            if settles(result, report):
                answered = Dealt(run.run_id or "", str(result.get("outcome")))
            else:
                unsettled = True
    if answered is None:
        return Known(unsettled=unsettled)
    return Known(Dealt(answered.run_id, answered.outcome, again), unsettled)


async def _closed_since_onset(
    client: Client, latest: WorkflowExecutionDescription, report: FaultReport
) -> AsyncIterator[WorkflowExecution]:
    """The latest run as it is now, then those that only the list knows, which lags by moments."""
    onset = report.fault.first_seen
    if latest.close_time is not None and latest.close_time > onset:
        yield latest
    if latest.start_time <= onset:
        return
    query = f"WorkflowId = '{latest.id}' AND CloseTime >= '{onset.isoformat()}'"
    async for run in client.list_workflows(query, limit=EARLIER_RUNS, rpc_timeout=READ_TIMEOUT):
        if run.run_id != latest.run_id and run.close_time is not None and run.close_time > onset:
            yield run


async def _was_told(client: Client, run: WorkflowExecution, fingerprint: str) -> bool:
    """Whether a fault joined a run that is over: the update that brought it has its fingerprint as id."""
    handle = client.get_workflow_handle(run.id, run_id=run.run_id)
    update: Any = handle.get_update_handle(fingerprint, workflow_run_id=run.run_id)
    try:
        return bool(await update.result(rpc_timeout=READ_TIMEOUT) != EXPIRED)
    except WorkflowUpdateFailedError:
        return True  # the run took it, and ended before it could answer
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise


async def _result_of(client: Client, run: WorkflowExecution) -> dict[str, Any]:
    """The result of a run that ended by itself; empty for one that runs, and where it is no object."""
    if run.status is not WorkflowExecutionStatus.COMPLETED:
        return {}
    handle: Any = client.get_workflow_handle(run.id, run_id=run.run_id)
    result = await handle.result(follow_runs=False, rpc_timeout=READ_TIMEOUT)
    return result if isinstance(result, dict) else {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


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
            | Outcome.CLEARED
            | Outcome.NOTIFIED
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


async def is_first_fault(incident: WorkflowExecutionDescription, report: FaultReport) -> bool:
    """Whether an incident was opened by this very fault."""
    return (await incident.memo()).get(FIRST_FAULT) == report.fault.fingerprint
