"""A cancellation at each point of an incident: the slot is given back, and the block is known and whole.

One table, a row for each point. `held` is the activity that is under way when the cancellation comes.
"""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest
from incident.conftest import running_workers, until
from incident.fakes import World
from incident.plans import fault, identity, report
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import CancelledError
from temporalio.service import RPCError
from temporalio.worker import Worker

from gpu_runbooks.activities.model.slot import PoolBudget
from gpu_runbooks.activities.names import (
    CLOUD_QUEUE,
    CLUSTER_QUEUE,
    REMEDIATION_QUEUE,
    TEMPORAL_QUEUE,
    budget_id,
)
from gpu_runbooks.activities.temporal import Temporal
from gpu_runbooks.workers.controller import WORKFLOWS
from gpu_runbooks.workflows.audit import Status

PROMPT = {"max_heartbeat_throttle_interval": timedelta(milliseconds=100)}


async def start(client: Client, node: str, ladder: str, pool: str) -> WorkflowHandle:
    opened = report(
        ladder,
        of=fault(at=datetime.now(UTC)),
        identity=identity(node, provider_id=identity().provider_id),
        pool=pool,
        budget=PoolBudget(max_unavailable=1),
    )
    return await client.start_workflow(
        "NodeRemediation",
        {"report": opened.model_dump(mode="json")},
        id=f"node/test/{node}",
        task_queue=REMEDIATION_QUEUE,
        static_summary="a test",
    )


async def holders_and_waiters(client: Client, pool: str) -> list[str]:
    state = await client.get_workflow_handle(budget_id("test", pool)).query("state")
    return [request["incident"] for request in (*state["holders"], *state["waiters"])]


async def free_of(client: Client, pool: str, incident: str) -> None:
    async with asyncio.timeout(60):
        while incident in await holders_and_waiters(client, pool):
            await asyncio.sleep(0.05)


async def cancelled(handle: WorkflowHandle) -> Status:
    """What the incident says after it has ended by its cancellation."""
    with pytest.raises(WorkflowFailureError) as ended:
        await handle.result()
    assert isinstance(ended.value.cause, CancelledError)
    return await handle.query("status", result_type=Status)


LAST_SEEN = "had our block when last seen, and keeps it"


@pytest.mark.parametrize(
    ("point", "ladder", "held", "has_block", "said", "never_after"),
    [
        # The write that is under way when the cancellation comes is not made, or it is whole.
        ("block", "reset", "block", False, "has no block of ours", ["drain", "reset"]),
        ("drain", "reset", "drain", True, LAST_SEEN, ["reset", "unblock"]),
        ("just before the reboot", "reboot", "inspect", True, LAST_SEEN, ["reboot", "unblock"]),
        ("after the call of the reboot", "reboot", "await_reboot", True, LAST_SEEN, ["replace", "unblock"]),
        ("validation", "reset", "test_pod", True, LAST_SEEN, ["unblock"]),
        ("unblocking", "reset", "unblock", True, "has our block, and keeps it", []),
        ("claiming the successor", "replace", "claim", False, "may carry our block or not", ["unblock"]),
    ],
)
async def test_a_cancellation_at_each_point(server, point, ladder, held, has_block, said, never_after):
    name = f"cancel-{held}".replace("_", "-")
    node = World(node=identity(name, provider_id=identity().provider_id), pause={held: asyncio.Event()})
    async with running_workers(server, node):
        handle = await start(server, name, ladder, pool=name)
        await until(lambda: held in node.calls)
        await handle.cancel()
        seen = await cancelled(handle)
        await free_of(server, name, handle.id)
    assert (seen.phase, seen.outcome, seen.slot_held) == ("closed", "cancelled", False), point
    assert node.node_has_block() == has_block
    assert name in seen.reason  # the record names the node, and says what is on it
    assert said in seen.reason
    assert not set(never_after) & set(node.calls)


async def test_a_cancellation_before_the_slot_withdraws_the_request(server):
    """And the one that has the slot is not disturbed by it."""
    node = World(
        node=identity("slot-1", provider_id=identity().provider_id), pause={"drain": asyncio.Event()}
    )
    async with running_workers(server, node):
        first = await start(server, "slot-1", "reset", pool="one-slot")
        await until(lambda: "drain" in node.calls)
        waiter = await start(server, "slot-2", "reset", pool="one-slot")
        async with asyncio.timeout(60):
            while waiter.id not in await holders_and_waiters(server, "one-slot"):
                await asyncio.sleep(0.05)
        await waiter.cancel()
        assert (await cancelled(waiter)).blocked is False
        await free_of(server, "one-slot", waiter.id)
        assert await holders_and_waiters(server, "one-slot") == [first.id]
        node.pause["drain"].set()
        await first.result()
    assert node.calls.count("block") == 1


async def test_a_cancellation_that_meets_the_grant_of_the_slot(server):
    """Both are there when the workflow is told: the slot goes back, and nothing is done with it."""
    node = World(node=identity("granted", provider_id=identity().provider_id))

    def workflows() -> Worker:
        return Worker(server, task_queue=REMEDIATION_QUEUE, workflows=WORKFLOWS, max_cached_workflows=0)

    async with AsyncExitStack() as activities:
        await _activities(server, node, activities, without=CLUSTER_QUEUE)  # nobody looks at the pool
        async with workflows():
            handle = await start(server, "granted", "reset", pool="granted")
            async with asyncio.timeout(60):
                while not await _asked(server, "granted"):
                    await asyncio.sleep(0.05)
        request = {"incident": handle.id, "run_id": handle.first_execution_run_id, "node": "granted"}
        await handle.signal("slot_granted", request)
        await handle.cancel()
        async with workflows(), Worker(server, task_queue=CLUSTER_QUEUE, activities=node.cluster()):
            seen = await cancelled(handle)
            await free_of(server, "granted", handle.id)
    assert (seen.phase, seen.outcome, seen.blocked, seen.slot_held) == ("closed", "cancelled", False, False)
    assert "has no block of ours" in seen.reason
    assert node.acts == []


async def _asked(client: Client, pool: str) -> bool:
    """Whether the budget, which may not have begun, knows of a request."""
    try:
        return bool(await holders_and_waiters(client, pool))
    except RPCError:
        return False


async def test_a_cancellation_that_meets_the_end_of_the_unblocking_in_one_workflow_task(server):
    """Both are there when the workflow is told: the node is back, and the record does not say otherwise."""
    node = World(
        node=identity("same-task", provider_id=identity().provider_id), pause={"unblock": asyncio.Event()}
    )

    def workflows() -> Worker:
        return Worker(server, task_queue=REMEDIATION_QUEUE, workflows=WORKFLOWS, max_cached_workflows=0)

    async with AsyncExitStack() as activities:
        await _activities(server, node, activities)
        async with workflows():
            handle = await start(server, "same-task", "reset", pool="same-task")
            await until(lambda: "unblock" in node.calls)
        node.pause["unblock"].set()
        await _completed_last(handle)
        await handle.cancel()
        async with workflows():
            seen = await cancelled(handle)
            await free_of(server, "same-task", handle.id)
    assert not node.node_has_block()
    assert (seen.phase, seen.outcome, seen.blocked, seen.slot_held) == ("closed", "cancelled", False, False)
    assert "keeps" not in seen.reason


async def _activities(client: Client, world: World, stack: AsyncExitStack, without: str = "") -> None:
    temporal = Temporal(client)
    for queue, functions in (
        (CLUSTER_QUEUE, world.cluster()),
        (CLOUD_QUEUE, world.cloud()),
        (
            TEMPORAL_QUEUE,
            temporal.activities(),
        ),
    ):
        if queue != without:
            await stack.enter_async_context(Worker(client, task_queue=queue, activities=functions, **PROMPT))


async def _completed_last(handle: WorkflowHandle) -> None:
    """Wait until the unblocking is in the history, and no workflow task since has told the incident."""
    async with asyncio.timeout(60):
        while True:
            types = [event.event_type async for event in handle.fetch_history_events()]
            done = EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
            if done in types[-2:]:
                return
            await asyncio.sleep(0.05)
