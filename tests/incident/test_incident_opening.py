"""How an incident begins, and what it waits for before anything is touched."""

import asyncio
from datetime import timedelta

import pytest
from incident.conftest import until
from incident.fakes import World
from incident.opened import NODE, RESET, a_person_is_asked, client_time, it_rests, slots, start, status
from incident.plans import T0, fault, identity, report
from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy

from gpu_runbooks.activities.model.node import BlockMarker
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, incident_id
from gpu_runbooks.workflows.audit import Result
from gpu_runbooks.workflows.phases import Outcome, Phase


async def test_update_with_start_begins_one_incident_and_the_next_alert_joins_it(skipping, workers):
    world = World(pause={"drain": asyncio.Event()})
    client = skipping.client
    async with workers(client, world):
        with skipping.auto_time_skipping_disabled():
            now = await client_time(client)
            runs = set()
            for code in ("95", "63", "94"):
                arriving = report(of=fault(code, at=now))
                begin = WithStartWorkflowOperation(
                    "NodeRemediation",
                    {"report": arriving.model_dump(mode="json")},
                    id=NODE,
                    task_queue=REMEDIATION_QUEUE,
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                )
                try:
                    answer = await client.execute_update_with_start_workflow(
                        "report_fault", arriving, start_workflow_operation=begin
                    )
                except WorkflowUpdateFailedError as known:
                    answer = known.cause.type
                assert answer == ("Known" if code == "95" else "joined")
                runs.add((await begin.workflow_handle()).first_execution_run_id)
            assert len(runs) == 1
            world.pause["drain"].set()
            handle = client.get_workflow_handle(NODE, result_type=Result)
            assert len((await handle.result()).fingerprints) == 3
    assert world.calls.count("block") == 1


async def test_the_budget_lets_one_node_of_the_pool_at_a_time_and_severity_goes_first(skipping, workers):
    world = World(pause={"drain": asyncio.Event()})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            first = await start(skipping.client)
            await until(lambda: "drain" in world.calls)
            waiting = {
                ladder: await start(
                    skipping.client,
                    ladder,
                    workflow_id=incident_id("test", name),
                    identity=identity(name, provider_id=world.node.provider_id),
                )
                for name, ladder in (("n3", "reset"), ("n4", "replace"))
            }
            while len((await slots(skipping.client))["waiters"]) < 2:
                await asyncio.sleep(0.02)
            assert world.calls.count("block") == 1
            for handle in waiting.values():
                assert (await status(handle)).phase is Phase.WAITING_FOR_SLOT
            world.pause["block"] = asyncio.Event()
            await first.execute_update("abort", {"operator": "ana", "reason": "enough seen"})
            world.pause["drain"].set()
            await first.result()
            while not (await slots(skipping.client))["holders"]:
                await asyncio.sleep(0.02)
            assert [slot["node"] for slot in (await slots(skipping.client))["holders"]] == ["n4"]
            await waiting["reset"].cancel()
            while (await slots(skipping.client))["waiters"]:
                await asyncio.sleep(0.02)
            await waiting["replace"].cancel()
            world.pause["block"].set()


async def test_the_slot_of_a_terminated_incident_is_found_and_freed(skipping, workers):
    world = World(drains=["blocked"])
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "drain" in world.calls)
            await a_person_is_asked(handle)
            await it_rests(handle)
            await handle.terminate("somebody did")
            assert len((await slots(skipping.client))["holders"]) == 1
        await skipping.sleep(timedelta(minutes=3))
        assert (await slots(skipping.client))["holders"] == []


async def test_a_toleration_of_hours_passes_before_anything_is_touched(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        before = await client_time(skipping.client)
        handle = await start(skipping.client, toleration=timedelta(hours=6))
        await handle.result()
        assert await client_time(skipping.client) - before >= timedelta(hours=6)
        assert world.acts == RESET


async def test_a_person_starts_with_node_reason_and_name_alone(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        handle = await skipping.client.start_workflow(
            "NodeRemediation",
            {"node": "n1", "reason": "ECC errors in the training log", "operator": "ana"},
            id=NODE,
            task_queue=REMEDIATION_QUEUE,
            result_type=Result,
        )
        assert (await handle.result()).outcome is Outcome.RETURNED
        assert world.acts == RESET


@pytest.mark.parametrize(
    ("raw", "workflow_id", "named"),
    [
        ({"reason": "x", "operator": "ana"}, NODE, "'node'"),
        ({"node": "n1", "operator": "ana"}, NODE, "'reason'"),
        ({"node": "n1", "reason": "x", "operator": ""}, NODE, "'operator'"),
        ({"node": "n1", "reason": "x", "operator": "ana", "laddder": "reboot"}, NODE, "'laddder'"),
        ({"node": 7, "reason": "x", "operator": "ana"}, NODE, "'node'"),
        ("n1", NODE, "must be one JSON object"),
        (None, NODE, "must be one JSON object"),
        ({"report": {"fault": {}}}, NODE, "'report.fault"),
        ({"node": "n1", "reason": "x", "operator": "ana"}, "my-runbook", "node/<cluster>/n1"),
        ({"node": "n1", "reason": "x", "operator": "ana"}, "node/test/n2", "node/test/n1"),
        ({"node": "n1", "reason": "x", "operator": "ana"}, "node/other/n1", "node/test/n1"),
        ({"node": "n9", "reason": "x", "operator": "ana"}, "node/test/n9", "no node is named n9"),
    ],
)
async def test_bad_input_fails_at_once_and_names_what_is_wrong(skipping, workers, raw, workflow_id, named):
    world = World()
    async with workers(skipping.client, world):
        handle = await skipping.client.start_workflow(
            "NodeRemediation", raw, id=workflow_id, task_queue=REMEDIATION_QUEUE
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        cause = failed.value.cause
        while cause.__cause__ is not None:
            cause = cause.__cause__
        assert named in str(cause)
        assert world.acts == []


async def test_a_node_that_another_incident_blocked_is_waited_for(skipping, workers):
    world = World()
    world.marker = BlockMarker(
        incident="node/test/old", run_id="r", reasons=("x",), since=T0, was_unschedulable=False
    )
    left = []

    def on_call(call: str) -> None:
        left.append(call)
        if call == "block" and left.count("block") == 3:
            world.marker = None

    world.on_call = on_call
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert world.acts == ["block", "block", *RESET]
