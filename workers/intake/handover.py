"""Update-with-start: a fault is safe once a workflow has it, in its input or in an update."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WithStartWorkflowOperation,
    WorkflowExecutionDescription,
    WorkflowUpdateFailedError,
    WorkflowUpdateStage,
)
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.workers.intake.closed_incidents import READ_TIMEOUT

UPDATE_SECONDS = 5.0
"""A worker answers within milliseconds; one that has not after this is not there."""


@dataclass(frozen=True)
class HandedOver:
    """A fault that Temporal has."""

    run_id: str
    answer: Any = None
    """Of the update, where it was accepted."""
    rejected: WorkflowUpdateFailedError | None = None
    taken_up: bool = True
    """False: it is in the input, and no worker has looked at it yet."""


async def hand_over(
    client: Client,
    argument: Any,
    starting: WithStartWorkflowOperation[object, object],
    *,
    workflow_id: str,
    update_id: str,
    running: bool,
    is_ours: Callable[[WorkflowExecutionDescription], Awaitable[bool]],
) -> HandedOver:
    """Report a fault to the open workflow, or open it.

    `is_ours` says whether a run has this argument in its input. A rejection is a result too. Raises whatever
    says that Temporal or a worker is away: then the fault may not be there.
    """
    # A failed call also fails this future, which nobody here awaits: asyncio would log each as an error.
    starting._workflow_handle.add_done_callback(lambda handle: handle.cancelled() or handle.exception())  # noqa: SLF001
    try:
        async with asyncio.timeout(UPDATE_SECONDS):
            update = await client.start_update_with_start_workflow(
                "report_fault",
                argument,
                start_workflow_operation=starting,
                wait_for_stage=WorkflowUpdateStage.COMPLETED,
                id=update_id,
                rpc_timeout=timedelta(seconds=UPDATE_SECONDS),
            )
    except (RPCTimeoutOrCancelledError, TimeoutError):
        # No worker took the update. If it opened the workflow, then the fault is in the input and safe.
        started = None if running else await latest(client, workflow_id)
        if started is None or not await is_ours(started):
            raise
        return HandedOver(started.run_id or "", taken_up=False)
    run_id = update.workflow_run_id or ""
    try:
        return HandedOver(run_id, await update.result())
    except WorkflowUpdateFailedError as error:
        return HandedOver(run_id, rejected=error)


async def latest(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    """The latest run, open or closed; None where there was none within the retention."""
    try:
        return await client.get_workflow_handle(workflow_id).describe(rpc_timeout=READ_TIMEOUT)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
