"""What only the real server shows: rejected updates, continue-as-new, and what the UI displays."""

import asyncio
from datetime import UTC, datetime

import pytest
from incident.conftest import dev_server, until
from incident.fakes import World
from incident.plans import fault, identity, report
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowHistory, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from gpu_runbooks.activities.model.slot import FindHolders, PoolBudget
from gpu_runbooks.activities.names import (
    CLOUD_QUEUE,
    CLUSTER_QUEUE,
    REMEDIATION_QUEUE,
    TEMPORAL_QUEUE,
    budget_id,
)
from gpu_runbooks.activities.temporal import Temporal
from gpu_runbooks.workers.controller import WORKFLOWS
from gpu_runbooks.workflows.audit import Result, Status

WHOLE_LADDER = {"resets": ["failed"], "reboots": ["unproven"]}


async def start(client: Client, name: str, ladder: str = "reset", *, of=None, **changes):
    opened = report(
        ladder,
        of=of or fault(at=datetime.now(UTC)),
        identity=identity(name, provider_id=identity().provider_id),
        **{"pool": f"pool-{name}", **changes},
    )
    return await client.start_workflow(
        "NodeRemediation",
        {"report": opened.model_dump(mode="json")},
        id=f"node/test/{name}",
        task_queue=REMEDIATION_QUEUE,
        result_type=Result,
        static_summary="n",
    )


def world(name: str, **script) -> World:
    return World(node=identity(name, provider_id=identity().provider_id), **script)


async def events_of(client: Client, workflow_id: str, run_id: str | None = None) -> list:
    history: WorkflowHistory = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    return list(history.events)


async def attributes_of(handle) -> dict:
    described = await handle.describe()
    return {pair.key.name: pair.value for pair in described.typed_search_attributes}


async def test_repeats_are_turned_away_without_an_event(server, workers):
    node = world("repeats", pause={"drain": asyncio.Event()})
    async with workers(server, node):
        of = fault(at=datetime.now(UTC))
        handle = await start(server, "repeats", of=of)
        await until(lambda: "drain" in node.calls)
        same = report(of=of, identity=node.node)
        before = len(await events_of(server, handle.id))
        for _ in range(50):
            with pytest.raises(WorkflowUpdateFailedError) as known:
                await handle.execute_update("report_fault", same)
            assert isinstance(known.value.cause, ApplicationError)
            assert known.value.cause.type == "Known"
        assert len(await events_of(server, handle.id)) == before
        other = report(of=fault("79"), identity=identity("repeats", provider_id="aws:///z/i-other"))
        with pytest.raises(WorkflowUpdateFailedError) as foreign:
            await handle.execute_update("report_fault", other)
        assert foreign.value.cause.type == "OtherMachine"
        node.pause["drain"].set()
        await handle.result()


async def test_a_whole_ladder_fits_in_250_events_and_every_activity_says_what_it_does(server, workers):
    node = world("whole", **WHOLE_LADDER)
    async with workers(server, node):
        handle = await start(server, "whole")
        assert (await handle.result()).outcome == "replaced"
    events = await events_of(server, handle.id)
    assert len(events) <= 250
    scheduled = [e for e in events if e.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED]
    assert len(scheduled) > 20
    assert all(event.user_metadata.summary.data for event in scheduled)
    timers = [e for e in events if e.event_type == EventType.EVENT_TYPE_TIMER_STARTED]
    assert all(event.user_metadata.summary.data for event in timers)
    assert all(
        len(payload.data) <= 16_384
        for event in scheduled
        for payload in event.activity_task_scheduled_event_attributes.input.payloads
    )


async def test_an_incident_that_continues_as_new_in_mid_ladder_undoes_nothing(workers):
    async with dev_server("limit.historyCount.suggestContinueAsNew=40") as client:
        node = world("long", **WHOLE_LADDER)
        async with workers(client, node):
            handle = await start(client, "long")
            assert (await handle.result()).outcome == "replaced"
        assert node.acts == [
            *["block", "drain", "reset", "drain", "reboot", "await_reboot", "drain", "replace", "claim"],
            *["confirm", "validate", "test_pod", "unblock"],
        ]
        runs = [run async for run in client.list_workflows("WorkflowId = 'node/test/long'")]
        assert len(runs) >= 3
        signals = [
            event.workflow_execution_signaled_event_attributes.signal_name
            for run in sorted(
                [run async for run in client.list_workflows("WorkflowType = 'DisruptionBudget'")],
                key=lambda run: run.start_time,
            )
            for event in await events_of(client, run.id, run.run_id)
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
        ]
        assert [name for name in signals if name != "brake"] == ["request_slot", "return_slot"]


async def test_a_budget_that_continues_as_new_loses_no_holder_and_no_waiter(workers):
    async with dev_server("limit.historyCount.suggestContinueAsNew=10") as client:
        node = world("a", pause={"drain": asyncio.Event()})
        async with workers(client, node):
            first = await start(client, "a", budget=PoolBudget(max_unavailable=1))
            budget = client.get_workflow_handle(budget_id("test", "pool-a"))
            await until(lambda: "drain" in node.calls)
            for count in range(30):
                await budget.signal(
                    "request_slot",
                    {"incident": f"node/test/w{count}", "run_id": "r", "node": f"w{count}", "limit": 1},
                )
            async with asyncio.timeout(60):
                while len((await budget.query("state"))["waiters"]) < 30:
                    await asyncio.sleep(0.05)
            runs = [run async for run in client.list_workflows("WorkflowType = 'DisruptionBudget'")]
            assert len(runs) >= 2
            assert [holder["node"] for holder in (await budget.query("state"))["holders"]] == ["a"]
            node.pause["drain"].set()
            await first.result()


async def test_the_ui_shows_who_began_it_each_rung_and_its_proof(server, workers):
    node = world("shown", validations=[False, False, False])
    async with workers(server, node):
        handle = await start(server, "shown")
        async with asyncio.timeout(60):
            while (attributes := await attributes_of(handle)).get("RunbookPhase") != "needs-operator":
                await asyncio.sleep(0.05)
        assert attributes["RunbookFault"] == "xid:95"
        assert {"i-shown", "GPU-1", "i-n2"} <= set(attributes["RunbookHardware"])
        metadata = await handle.query("__temporal_workflow_metadata")
        details = metadata.current_details
        assert "alertmanager" in details
        assert "recovery action" in details
        for rung in ("reset_gpu", "reboot", "replace", "validate"):
            assert f"| {rung} | 1 |" in details
        await handle.execute_update("abort", {"operator": "ana", "reason": "seen enough"})
        result = await handle.result()
        assert result.reason == "aborted by ana: seen enough"
        assert (await attributes_of(handle))["RunbookOutcome"] == "aborted"


async def test_an_incident_that_waits_for_a_person_makes_room_for_the_machine_that_took_the_name(
    server, workers
):
    node = world("renamed", drains=["blocked"])
    async with workers(server, node):
        handle = await start(server, "renamed")
        async with asyncio.timeout(60):
            while (await handle.query("status", result_type=Status)).phase != "needs-operator":
                await asyncio.sleep(0.05)
        other = report(of=fault("79"), identity=identity("renamed", provider_id="aws:///z/i-other"))
        assert await handle.execute_update("report_fault", other) == "expired"
        result = await handle.result()
        assert result.outcome == "expired"
        assert "i-other" in result.reason
        assert other.fault.fingerprint not in result.fingerprints


async def test_a_budget_that_begins_anew_knows_the_slots_that_the_one_before_it_gave(server, workers):
    """A terminated budget must not let a second node of the pool be disrupted."""
    node = world("first", pause={"drain": asyncio.Event()})
    async with workers(server, node):
        one = await start(server, "first", pool="shared", budget=PoolBudget(max_unavailable=1))
        await until(lambda: "drain" in node.calls)
        budget = server.get_workflow_handle(budget_id("test", "shared"))
        await budget.terminate("a slip")
        other = await start(server, "second", pool="shared", budget=PoolBudget(max_unavailable=1))
        async with asyncio.timeout(60):
            while True:
                state = await budget.query("state")
                if state["complete"] and state["waiters"]:
                    break
                await asyncio.sleep(0.05)
        assert [holder["node"] for holder in state["holders"]] == ["first"]
        assert [waiter["node"] for waiter in state["waiters"]] == ["second"]
        await other.cancel()
        node.pause["drain"].set()
        await one.result()
        async with asyncio.timeout(60):
            while (await budget.query("state"))["holders"]:
                await asyncio.sleep(0.05)


async def test_who_only_tells_an_owner_holds_no_slot(server, workers):
    node = world("telling", pause={"notify": asyncio.Event()})
    temporal = Temporal(server)
    async with workers(server, node):
        handle = await start(server, "telling", "notify", pool="told")
        async with asyncio.timeout(60):
            query = "RunbookPool = 'told' AND RunbookPhase = 'notifying'"
            while not [run async for run in server.list_workflows(query)]:
                await asyncio.sleep(0.05)
        assert (await temporal.find_holders(FindHolders(cluster="test", pool="told"))).holders == ()
        node.pause["notify"].set()
        assert (await handle.result()).outcome == "notified"


async def test_a_cancellation_is_never_lost_wherever_it_meets_the_incident(server, workers):
    """The SDK loses one that meets an external signal on its way, and the server sends it only once."""
    node = world("cancelled")
    async with workers(server, node):
        handles = [await start(server, f"cancelled-{number}", pool="cancelled") for number in range(40)]
        for number, handle in enumerate(handles):
            await asyncio.sleep(0.01 * (number % 4))
            await handle.cancel()
        for handle in handles:
            async with asyncio.timeout(60):
                with pytest.raises(WorkflowFailureError):
                    await handle.result()
        budget = server.get_workflow_handle(budget_id("test", "cancelled"))
        async with asyncio.timeout(60):
            while (state := await budget.query("state"))["holders"] or state["waiters"]:
                await asyncio.sleep(0.05)
    assert "reset" not in node.calls


async def test_a_cancelled_incident_says_so_and_asks_nobody(server, workers):
    node = world("asking", drains=["blocked"])
    async with workers(server, node):
        handle = await start(server, "asking")
        async with asyncio.timeout(60):
            while (await attributes_of(handle)).get("RunbookPhase") != "needs-operator":
                await asyncio.sleep(0.05)
        details = (await handle.query("__temporal_workflow_metadata")).current_details
        assert "--name retry" in details
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        seen = await handle.query("status", result_type=Status)
        assert (seen.phase, seen.outcome, seen.question) == ("closed", "cancelled", None)
        attributes = await attributes_of(handle)
        assert (attributes["RunbookPhase"], attributes["RunbookOutcome"]) == ("closed", "cancelled")


async def test_an_act_that_waited_for_a_worker_is_behind_another_look_at_the_node(server):
    """The cloud worker is away for longer than the look holds; meanwhile the node is given back."""
    node = world("waiting")
    async with (
        Worker(
            server,
            task_queue=REMEDIATION_QUEUE,
            workflows=WORKFLOWS,
        ),
        Worker(server, task_queue=CLUSTER_QUEUE, activities=node.cluster()),
        Worker(server, task_queue=TEMPORAL_QUEUE, activities=Temporal(server).activities()),
    ):
        handle = await start(server, "waiting", "replace")
        async with asyncio.timeout(60):
            while not await timed_out(server, handle.id):
                await asyncio.sleep(0.5)
        node.marker = None
        async with Worker(server, task_queue=CLOUD_QUEUE, activities=node.cloud()):
            assert (await handle.result()).outcome == "released"
    assert node.acts == ["block", "drain", "unblock"]


async def timed_out(client: Client, workflow_id: str) -> bool:
    kind = EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT
    return any(event.event_type == kind for event in await events_of(client, workflow_id))
