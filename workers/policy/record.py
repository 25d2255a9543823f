"""`gpu-runbooks policy record`: the faults that incidents took in, from Temporal's histories, line by line.

An incident's first fault is in the input of its first run, each later one in an update that it accepted. What
a person started has no plan in its input, and is no fault that a policy is asked about again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.converter import WorkflowSerializationContext
from temporalio.service import RPCError

from gpu_runbooks.activities.history.ledger import retention
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.workers.policy.recorded_faults import RecordedFault, recorded
from gpu_runbooks.workers.temporal_connection import connect, unanswered
from gpu_runbooks.workers.terminal import progress, say
from gpu_runbooks.workflows.ledger import window_in_words
from gpu_runbooks.workflows.phases import Runbook

PAGE = 100
AT_ONCE = 8
"""Histories that are read at the same time."""

CALL_TIMEOUT = timedelta(seconds=10)

log = logging.getLogger(__name__)


@dataclass
class Tally:
    """What was read so far."""

    runs: int = 0
    faults: int = 0
    missing: int = 0
    """Runs whose history could not be read."""
    unreadable: int = 0
    """Reports in histories that this version cannot read."""
    by_people: int = 0
    """Runs that a person started."""


async def record(since: timedelta, cluster: str, out: Callable[[str], Any], err: Console) -> None:
    """Write the recorded faults. Raises `RuntimeError` and `ValueError` where Temporal cannot be asked."""
    start, tally = datetime.now(UTC) - since, Tally()

    def so_far() -> str:
        read = f"{_count(tally.runs, 'run')} and {_count(tally.faults, 'fault')}"
        return f"reading faults from Temporal, {read} so far"

    async with progress(err, so_far):
        client = await connect(lazy=True)
        try:
            kept = await retention(client)
            async for event in recorded_faults(client, start, tally, cluster):
                out(event.model_dump_json(exclude_defaults=True) + "\n")
        except (RPCError, RuntimeError) as error:
            raise RuntimeError(unanswered(client, error)) from error
    faults, runs = _count(tally.faults, "fault"), _count(tally.runs, "run")
    say(err, f"{faults} of {runs} of incidents since {start:%Y-%m-%d %H:%M} UTC.")
    if tally.by_people:
        say(err, f"Of them {_count(tally.by_people, 'run')} by order of people: no fault of a policy.")
    if tally.missing:
        say(err, f"Passed over: {_count(tally.missing, 'run')} whose history is gone or could not be read.")
    if tally.unreadable:
        say(err, f"Passed over: {_count(tally.unreadable, 'report')} that this version cannot read.")
    if kept < since:
        say(err, f"The namespace {client.namespace} keeps closed incidents for {window_in_words(kept)} only.")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


async def recorded_faults(
    client: Client, since: datetime, tally: Tally, cluster: str = ""
) -> AsyncIterator[RecordedFault]:
    """Faults that incidents took in since then, each once per incident. `tally` counts along.

    Holds a page of runs and the faults of a few histories. Raises `RPCError` where Temporal lists none.
    """
    limit = asyncio.Semaphore(AT_ONCE)

    async def read(info: WorkflowExecutionInfo) -> list[RecordedFault]:
        async with limit:
            return await _faults_of(client, info, since, tally)

    async for page in _runs(client, since, cluster):
        for first in range(0, len(page), AT_ONCE):
            for found in await asyncio.gather(*map(read, page[first : first + AT_ONCE])):
                for event in found:
                    tally.faults += 1
                    yield event


async def _runs(client: Client, since: datetime, cluster: str) -> AsyncIterator[list[WorkflowExecutionInfo]]:
    """Runs of incidents that are open, or closed since then, page by page."""
    moment = f"{since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    # Those that people start too: they take faults in while they are open.
    types = ", ".join(f"'{runbook}'" for runbook in Runbook)
    query = f"WorkflowType IN ({types}) AND (CloseTime >= '{moment}' OR CloseTime IS NULL)"
    if cluster:
        query += f" AND RunbookCluster = '{cluster}'"
    token = b""
    while True:
        # Raw, since the SDK's own list fails whole over one paused workflow.
        page = await client.workflow_service.list_workflow_executions(
            ListWorkflowExecutionsRequest(
                namespace=client.namespace, query=query, page_size=PAGE, next_page_token=token
            ),
            retry=True,
            timeout=CALL_TIMEOUT,
        )
        yield list(page.executions)
        token = page.next_page_token
        if not token:
            return


async def _faults_of(
    client: Client, info: WorkflowExecutionInfo, since: datetime, tally: Tally
) -> list[RecordedFault]:
    """Faults of one run. One whose history is gone, or cannot be read, is counted and passed over."""
    tally.runs += 1
    execution = info.execution
    handle = client.get_workflow_handle(execution.workflow_id, run_id=execution.run_id)
    found: dict[str, RecordedFault] = {}
    try:
        async for event, payloads in _reports(handle):
            moment = event.event_time.ToDatetime(UTC)
            report = await _report(client, execution.workflow_id, payloads, tally)
            if report is not None and moment >= since:
                found.setdefault(
                    report.fault.fingerprint, recorded(report, execution.workflow_id, execution.run_id)
                )
    except RPCError as error:
        log.info("history of %s, run %s: %s", execution.workflow_id, execution.run_id, error.message)
        tally.missing += 1
    return list(found.values())


async def _reports(handle: WorkflowHandle[Any, Any]) -> AsyncIterator[tuple[HistoryEvent, Payloads]]:
    """Events of a history in which a report may be, with the arguments that hold it."""
    async for event in handle.fetch_history_events(page_size=PAGE, rpc_timeout=CALL_TIMEOUT):
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            yield event, event.workflow_execution_started_event_attributes.input
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            asked = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
            if asked.name == "report_fault":
                yield event, asked.args


async def _report(client: Client, workflow_id: str, payloads: Payloads, tally: Tally) -> FaultReport | None:
    """The report in the arguments of a start or an update; None where there is none to be read."""
    context = WorkflowSerializationContext(namespace=client.namespace, workflow_id=workflow_id)
    try:
        raw, *_ = await client.data_converter.with_context(context).decode(payloads.payloads)
        if isinstance(raw, dict) and "incident" in raw:
            return None  # it continues a run, which has its own line in the list
        if isinstance(raw, dict) and "operator" in raw:
            tally.by_people += 1
            return None
        return FaultReport.model_validate(raw.get("report", raw))
    except ValidationError as error:
        log.info("a report of %s: %s", workflow_id, error.errors(include_input=False)[:1])
    except Exception as error:  # noqa: BLE001 - a codec raises what it likes, and one odd run must not hide all others
        log.info("a report of %s cannot be decoded: %r", workflow_id, error)
    tally.unreadable += 1
    return None
