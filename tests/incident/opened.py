"""An incident of the tests of workflows: how it is started, asked and waited for."""

import asyncio
import contextlib

from google.protobuf.empty_pb2 import Empty
from incident.plans import T0, fault, report
from temporalio.client import (
    Client,
    WorkflowQueryFailedError,
)

from gpu_runbooks.activities.names import REMEDIATION_QUEUE, budget_id, incident_id
from gpu_runbooks.workflows.audit import Result, Status
from gpu_runbooks.workflows.phases import Phase

NODE = incident_id("test", "n1")


RESET = ["block", "drain", "reset", "validate", "test_pod", "unblock"]


async def start(client: Client, ladder: str = "reset", *, of=None, workflow_id: str = NODE, **changes):
    now = await client_time(client)
    opened = report(ladder, of=of or fault(at=now), **changes)
    return await client.start_workflow(
        "NodeRemediation",
        {"report": opened.model_dump(mode="json")},
        id=workflow_id,
        task_queue=REMEDIATION_QUEUE,
        result_type=Result,
    )


async def client_time(client: Client):
    """The server's clock, which skips."""
    answer = await client.test_service.get_current_time(Empty())
    return answer.time.ToDatetime(tzinfo=T0.tzinfo)


async def status(handle) -> Status:
    return await handle.query("status", result_type=Status)


async def a_person_is_asked(handle) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(WorkflowQueryFailedError):  # it has not opened yet
                if (await status(handle)).phase is Phase.NEEDS_OPERATOR:
                    return
            await asyncio.sleep(0.02)


async def it_rests(handle) -> None:
    """Nothing but a timer is left. The server skips no time after a run was ended in mid-task."""
    async with asyncio.timeout(60):
        while True:
            *_, last = [event async for event in handle.fetch_history_events()]
            if last.HasField("timer_started_event_attributes"):
                return
            await asyncio.sleep(0.02)


async def slots(client: Client):
    return await client.get_workflow_handle(budget_id("test", "p5")).query("state")
