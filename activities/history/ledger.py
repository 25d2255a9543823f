"""The ledger of hardware, read from Temporal's own visibility: incidents by the hardware they touched.

Visibility is eventually consistent: a repair of the last seconds may be missing, and what an incident writes
shows a moment later. So the ledger lowers no guard: it only makes a ladder begin higher, or end at a person.
"""

import logging
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, ListWorkflowExecutionsRequest
from temporalio.client import Client
from temporalio.converter import WorkflowSerializationContext, decode_typed_search_attributes

from gpu_runbooks.activities.history.recorded_repairs import MEMO, is_hardware_name, repairs_of_memo
from gpu_runbooks.activities.model.ledger import (
    MOST_REPAIRS,
    HardwareHistory,
    PastRepair,
    RecallHardware,
)

PAGE = 100
"""Runs of one answer: with the largest memos it stays under gRPC's 4 MiB."""

MOST_RUNS = 500
"""Runs that one recall reads, open ones and the latest closed ones first."""

LARGEST_HISTORY = 12 * 1024
"""Bytes of the repairs of one answer: a payload holds 16 KiB."""

CALL_TIMEOUT = timedelta(seconds=10)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecordedRun:
    """One run of an incident as visibility shows it. A run that continued as new has the next one's id."""

    incident: str
    run_id: str
    status: str
    """In Temporal's words and small letters: running, completed, terminated, ..."""
    started: datetime
    closed: datetime | None
    outcome: str
    """Search attribute `RunbookOutcome`; empty while there is none."""
    phase: str
    repairs: tuple[PastRepair, ...] | None
    """None where the memo cannot be read: another key, or another program."""


async def recall_hardware(client: Client, request: RecallHardware) -> HardwareHistory:
    """What other incidents, closed or open, did to this hardware since then.

    Raises `RPCError` where Temporal does not answer; worth a retry.
    """
    names = [name for name in request.hardware if is_hardware_name(name)]
    known_since = max(request.since, datetime.now(UTC) - await retention(client))
    repairs: dict[PastRepair, None] = {}
    read = 0
    if names:
        async for run in recorded_runs(client, request.since, names):
            read += 1
            if read > MOST_RUNS:
                known_since = max(known_since, run.closed or run.started)
                break
            if run.repairs is None:
                known_since = max(known_since, run.closed or datetime.now(UTC))
            repairs |= dict.fromkeys(
                _asked_for(repair, names)
                for repair in run.repairs or ()
                if repair.run_id != request.run_id and repair.ended >= request.since
            )
    newest = sorted(
        (repair for repair in repairs if repair.hardware), key=lambda each: each.ended, reverse=True
    )
    kept = _fitting(newest)
    if len(kept) < len(newest):
        known_since = max(known_since, newest[len(kept)].ended)
    return HardwareHistory(
        repairs=tuple(kept), complete_since=known_since if known_since > request.since else None
    )


async def recorded_runs(
    client: Client, since: datetime, hardware: Collection[str] = ()
) -> AsyncIterator[RecordedRun]:
    """Runs of incidents that are open, or closed since then: those that touched any of this hardware, or all.

    Open ones and the latest closed ones come first. Raw requests, since the SDK's own list fails whole over
    one paused workflow. Names are to be checked before, by `is_hardware_name`.
    """
    quoted = ", ".join(f"'{name}'" for name in hardware)
    touched = f"IN ({quoted})" if quoted else "IS NOT NULL"
    moment = f"{since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    query = f"RunbookHardware {touched} AND (CloseTime >= '{moment}' OR CloseTime IS NULL)"
    token = b""
    while True:
        page = await client.workflow_service.list_workflow_executions(
            ListWorkflowExecutionsRequest(
                namespace=client.namespace, query=query, page_size=PAGE, next_page_token=token
            ),
            retry=True,
            timeout=CALL_TIMEOUT,
        )
        for info in page.executions:
            yield await _run(client, info)
        token = page.next_page_token
        if not token:
            return


async def retention(client: Client) -> timedelta:
    """How long the namespace keeps closed workflows. Raises `RPCError`."""
    found = await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace=client.namespace), retry=True, timeout=CALL_TIMEOUT
    )
    return found.config.workflow_execution_retention_ttl.ToTimedelta()


async def _run(client: Client, info: WorkflowExecutionInfo) -> RecordedRun:
    shown = {pair.key.name: pair.value for pair in decode_typed_search_attributes(info.search_attributes)}
    return RecordedRun(
        incident=info.execution.workflow_id,
        run_id=info.execution.run_id,
        status=_status(info.status),
        started=info.start_time.ToDatetime(UTC),
        closed=info.close_time.ToDatetime(UTC) if info.HasField("close_time") else None,
        outcome=str(shown.get("RunbookOutcome") or ""),
        phase=str(shown.get("RunbookPhase") or ""),
        repairs=await _repairs(client, info),
    )


async def _repairs(client: Client, info: WorkflowExecutionInfo) -> tuple[PastRepair, ...] | None:
    payload = info.memo.fields.get(MEMO)
    if payload is None:
        return ()
    execution = info.execution
    context = WorkflowSerializationContext(namespace=client.namespace, workflow_id=execution.workflow_id)
    try:
        (raw,) = await client.data_converter.with_context(context).decode([payload])
    except Exception:  # a codec raises what it likes, and one odd run must not hide all others
        log.exception(
            "the memo of %s, run %s, cannot be read: its repairs do not count",
            execution.workflow_id,
            execution.run_id,
        )
        return None
    return repairs_of_memo(raw)


def _status(number: WorkflowExecutionStatus.ValueType) -> str:
    name = WorkflowExecutionStatus.Name(number) if number in WorkflowExecutionStatus.values() else str(number)
    return name.removeprefix("WORKFLOW_EXECUTION_STATUS_").lower()


def _asked_for(repair: PastRepair, names: Collection[str]) -> PastRepair:
    """The repair with those of its names that were asked for: a machine of eight GPUs has some twenty."""
    return repair.model_copy(update={"hardware": tuple(name for name in repair.hardware if name in names)})


def _fitting(repairs: list[PastRepair]) -> list[PastRepair]:
    """As many as a payload holds, from the start."""
    kept, size = [], 0
    for repair in repairs[:MOST_REPAIRS]:
        size += len(repair.model_dump_json()) + 1
        if size > LARGEST_HISTORY:
            break
        kept.append(repair)
    return kept
