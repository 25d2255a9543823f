"""A budget and real incidents: never more nodes than it permits, however they end, stop and wait."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from budget.fleet import Fleet
from budget.incidents import Ending, names, order, start, state, until_state
from incident.conftest import running_workers, until
from incident.plans import fault
from temporalio.client import WithStartWorkflowOperation, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import Worker

from gpu_runbooks.activities.model.slot import FindHolders, PoolBudget
from gpu_runbooks.activities.names import budget_id
from gpu_runbooks.activities.temporal import Temporal
from gpu_runbooks.workflows.audit import Status

WHO = {"operator": "ana", "reason": "network work"}


@pytest.mark.parametrize("most", [3, 7])
async def test_many_faults_at_once_disrupt_as_many_nodes_as_permitted_at_any_moment_and_all_end(server, most):
    """Work ends only when all that may begin has begun, and the budget knows of all that wait."""
    nodes = [f"{most}-of-many-{number}" for number in range(10)]
    pool, fleet = f"many-{most}", Fleet(*nodes)
    for world in fleet.worlds.values():
        world.pause = {"restart": asyncio.Event()}
    async with running_workers(server, fleet):
        started = await asyncio.gather(
            *(
                start(server, node, "restart", pool=pool, budget=PoolBudget(max_unavailable=most))
                for node in nodes
            )
        )
        handles = dict(zip(nodes, started, strict=True))
        await until(lambda: fleet.looks > 0)
        while handles:
            begun = min(most, len(handles))
            seen = await until_state(server, pool, partial(knows, len(handles), begun))
            assert len(seen["holders"]) == begun
            await until(lambda begun=begun: len(fleet.busy) >= begun)
            assert fleet.busiest == most
            at_work = set(fleet.busy)
            for node in at_work:
                fleet.worlds[node].pause["restart"].set()
            ended = await asyncio.gather(*(handles.pop(node).result() for node in at_work))
            assert {result.outcome for result in ended} == {"restarted"}
        seen = await until_state(server, pool, lambda seen: not seen["holders"])
    assert fleet.busiest == most
    assert all(world.acts == ["restart"] for world in fleet.worlds.values())
    assert seen["waiters"] == []


def knows(incidents: int, holders: int, seen: dict[str, Any]) -> bool:
    return len(seen["holders"]) + len(seen["waiters"]) == incidents and len(seen["holders"]) >= holders


async def test_sixty_requests_at_once_are_served_in_few_rounds(server):
    """Of incidents that do not exist: each grant comes back at once."""
    fleet = Fleet("none")
    async with running_workers(server, fleet):
        handle = await server.start_workflow(
            "DisruptionBudget",
            {"cluster": "test", "pool": "sixty"},
            id=budget_id("test", "sixty"),
            task_queue="remediation",
        )
        rules = {"budget": {"max_unavailable": 60}, "selector": {"pool": "p5"}}
        await asyncio.gather(
            *(
                handle.signal(
                    "request_slot",
                    {"incident": f"node/test/h{n}", "run_id": "r", "node": f"h{n}", "rules": rules},
                )
                for n in range(60)
            )
        )
        await until_state(
            server, "sixty", lambda seen: seen["nodes"] and not seen["holders"] and not seen["waiters"]
        )
    assert fleet.looks < 24


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled", "terminated", "timed out"])
async def test_a_run_that_ends_any_way_leaves_no_slot(skipping, how):
    client = skipping.client
    fleet = Fleet("next")
    async with (
        running_workers(client, fleet),
        Worker(client, task_queue="ending", workflows=[Ending]),
    ):
        timeout = timedelta(minutes=5) if how == "timed out" else None
        with skipping.auto_time_skipping_disabled():
            handle = await holder(client, "ends", timeout)
            await start(client, "next", pool="p", of=fault())
            await until_state(client, "p", lambda seen: names(seen["waiters"]) == ["next"])
            match how:
                case "cancelled":
                    await handle.cancel()
                case "terminated":
                    await handle.terminate()
                case "timed out":
                    pass
                case _:
                    await handle.signal("end", how)
        await skipping.sleep(timedelta(minutes=7))
        await until_state(client, "p", lambda seen: names(seen["holders"]) != ["ends"])
        assert "drain" in fleet.worlds["next"].calls


async def test_a_run_that_continues_as_new_keeps_its_slot_and_takes_no_second_one(skipping):
    client = skipping.client
    async with (
        running_workers(client, Fleet("none")),
        Worker(client, task_queue="ending", workflows=[Ending]),
    ):
        handle = await holder(client, "continues")
        await handle.signal("end", "continued")
        request = (await state(client, "p"))["holders"][0]
        await order(client, "p").signal("request_slot", request)
        await skipping.sleep(timedelta(minutes=3))
        seen = await state(client, "p")
        assert (names(seen["holders"]), seen["waiters"]) == (["continues"], [])
        await handle.terminate()


async def holder(client, node: str, timeout: timedelta | None = None):
    """An incident with the one slot of pool p."""
    handle = await client.start_workflow(
        Ending.run, id=f"node/test/{node}", task_queue="ending", execution_timeout=timeout
    )
    await client.start_workflow(
        "DisruptionBudget",
        {"cluster": "test", "pool": "p"},
        id=budget_id("test", "p"),
        task_queue="remediation",
        start_signal="request_slot",
        start_signal_args=[
            {
                "incident": handle.id,
                "run_id": handle.first_execution_run_id,
                "node": node,
                "rules": {"budget": {"max_unavailable": 1}, "selector": {"pool": "p"}},
            }
        ],
    )
    async with asyncio.timeout(60):
        while not await handle.query("granted"):
            await asyncio.sleep(0.05)
    return handle


async def test_a_cordon_of_somebody_else_between_the_looks_puts_the_asker_back(skipping):
    fleet = Fleet("a")
    fleet.foreign = [set(), {"other"}, {"other"}, set()]
    async with running_workers(skipping.client, fleet):
        handle = await start(skipping.client, "a", pool="p")
        assert (await handle.result()).outcome == "returned"
    # None, the cordon, the cordon again a minute later, and two without one: the third round has the slot.
    assert fleet.looks == 5


async def test_an_api_server_that_is_away_gives_nothing_and_costs_nobody_the_place(skipping):
    fleet = Fleet("a", "b")
    fleet.away = 9
    async with running_workers(skipping.client, fleet):
        first = await start(skipping.client, "a", pool="p")
        second = await start(skipping.client, "b", pool="p")
        results = [await first.result(), await second.result()]
        seen = await state(skipping.client, "p")
    assert [result.outcome for result in results] == ["returned", "returned"]
    assert fleet.busiest == 1
    assert seen["holders"] == seen["waiters"] == []


async def test_a_halt_stops_who_has_a_slot_and_who_waits_and_ends_by_itself(skipping):
    client = skipping.client
    fleet = Fleet("a", "b", pause={"drain": asyncio.Event()})
    async with running_workers(client, fleet):
        with skipping.auto_time_skipping_disabled():
            first = await start(client, "a", pool="p", budget=PoolBudget(max_unavailable=2))
            await until(lambda: "drain" in fleet.worlds["a"].calls)
            answer = await order(client, "p").execute_update("halt", {**WHO, "for": "2h"})
            assert "no disruption until" in answer
            await start(client, "b", pool="p", budget=PoolBudget(max_unavailable=2))
            for world in fleet.worlds.values():
                world.pause["drain"].set()
            await until_phase(first, "stopped")
            await until_state(client, "p", lambda seen: names(seen["waiters"]) == ["b"])
        await skipping.sleep(timedelta(minutes=90))
        assert [world.acts for world in fleet.worlds.values()] == [["block", "drain"], []]
        details = (await order(client, "p").query("__temporal_workflow_metadata")).current_details
        assert "halted by ana" in details
        await skipping.sleep(timedelta(minutes=40))
        assert (await first.result()).outcome == "returned"
        assert (await client.get_workflow_handle("node/test/b").result())["outcome"] == "returned"
        assert any("halt by ana: network work" in note for note in (await state(client, "p"))["notes"])


async def until_phase(handle, phase: str) -> None:
    async with asyncio.timeout(60):
        while (await handle.query("status", result_type=Status)).phase != phase:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("workflow", "workflow_id", "given", "words"),
    [
        ("DisruptionBudget", "budget/test/p6", {"cluster": "test", "pool": "p5"}, "the same names in both"),
        ("DisruptionBudget", "budget/test/p6", {}, "the same names in both"),
        ("FleetGuard", "fleet/other", {"cluster": "prod"}, "--workflow-id fleet/prod"),
    ],
)
async def test_order_for_a_pool_that_id_and_input_name_differently_is_refused(
    server, workflow, workflow_id, given, words
):
    async with running_workers(server, Fleet("a")):
        begin = WithStartWorkflowOperation(
            workflow,
            given,
            id=workflow_id,
            task_queue="remediation",
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await server.execute_update_with_start_workflow(
                "halt", {**WHO, "for": "2h"}, start_workflow_operation=begin
            )
    assert words in refused.value.cause.message


async def test_people_change_a_pool_with_words_and_are_refused_with_words(server):
    fleet = Fleet("a")
    async with running_workers(server, fleet):
        pool = await server.start_workflow(
            "DisruptionBudget",
            {"cluster": "test", "pool": "orders"},
            id=budget_id("test", "orders"),
            task_queue="remediation",
        )

        async def refused(update: str, word: dict) -> str:
            with pytest.raises(WorkflowUpdateFailedError) as error:
                await pool.execute_update(update, word)
            return error.value.cause.message

        assert "no halt to end" in await refused("resume", WHO)
        assert "field 'for'" in await refused("halt", WHO)
        assert "exactly one of" in await refused("set_limit", {**WHO, "for": "1h"})
        assert "is the name right?" in await pool.execute_update("halt", {**WHO, "for": "2h"})
        assert (await state(server, "orders"))["halts"][0]["operator"] == "ana"
        assert "goes on" in await pool.execute_update("resume", WHO)
        assert (await state(server, "orders"))["halts"] == []
        await pool.execute_update("set_limit", {**WHO, "percent": 5, "for": "1h"})
        assert (await state(server, "orders"))["override"]["budget"]["percent"] == 5
        me = f"ana (identity {server.identity})"
        seen = await until_state(server, "orders", lambda seen: all(me in note for note in seen["notes"]))
        assert [note.partition(" UTC ")[2] for note in seen["notes"]] == [
            f"halt by {me}: network work",
            f"halt ended by {me}: network work",
            f"limit 5 % by {me}: network work",
        ]
        assert seen["override"]["identity"] == server.identity
        await pool.terminate()


async def test_a_budget_with_another_id_or_a_slip_in_its_input_says_what_is_right(server):
    async with running_workers(server, Fleet("a")):
        for raw in ({"cluster": "test", "pool": "other"}, {"cluster": 3}, None, "x"):
            handle = await server.start_workflow(
                "DisruptionBudget", raw, id=budget_id("test", "slip"), task_queue="remediation"
            )
            with pytest.raises(WorkflowFailureError) as failed:
                await handle.result()
            assert "budget/CLUSTER/POOL" in failed.value.cause.message


async def test_who_is_paused_while_it_waits_withdraws_and_asks_again_when_it_goes_on(server):
    fleet = Fleet("held", "waits", pause={"drain": asyncio.Event()})
    async with running_workers(server, fleet):
        first = await start(server, "held", pool="paused")
        await until(lambda: "drain" in fleet.worlds["held"].calls)
        second = await start(server, "waits", pool="paused")
        await until_state(server, "paused", lambda seen: names(seen["waiters"]) == ["waits"])
        await second.execute_update("pause", {**WHO, "for": "1h"})
        await until_state(server, "paused", lambda seen: not seen["waiters"])
        await second.execute_update("resume", WHO)
        await until_state(server, "paused", lambda seen: names(seen["waiters"]) == ["waits"])
        fleet.worlds["held"].pause["drain"].set()
        assert (await first.result()).outcome == (await second.result()).outcome == "returned"
        seen = await state(server, "paused")
    assert seen["holders"] == seen["waiters"] == []
    assert fleet.busiest == 1


async def test_a_grant_for_who_wants_no_slot_any_more_is_given_back(server):
    """As a request does that its activity sends once more, after it was withdrawn."""
    tolerated = fault(at=datetime.now(UTC))
    async with running_workers(server, Fleet("late")):
        handle = await start(server, "late", pool="late", of=tolerated, toleration=timedelta(hours=1))
        await until_phase(handle, "tolerating")
        pool = await server.start_workflow(
            "DisruptionBudget",
            {"cluster": "test", "pool": "late"},
            id=budget_id("test", "late"),
            task_queue="remediation",
        )
        request = {"incident": handle.id, "run_id": handle.first_execution_run_id, "node": "late"}
        rules = {"budget": {"max_unavailable": 1}, "selector": {"pool": "p5"}}
        await pool.signal("request_slot", {**request, "rules": rules})
        await until_state(server, "late", lambda seen: seen["nodes"] and not seen["holders"])
        assert not (await handle.query("status", result_type=Status)).slot_held
        await handle.terminate()
        await pool.terminate()


async def test_a_node_that_waits_is_blocked_at_once_and_drained_with_its_slot_only(server):
    one = PoolBudget(max_unavailable=1, block_waiting=True)
    fleet = Fleet("slot", "blocked", pause={"drain": asyncio.Event()})
    async with running_workers(server, fleet):
        first = await start(server, "slot", pool="blocking", budget=one)
        await until(lambda: "drain" in fleet.worlds["slot"].calls)
        second = await start(server, "blocked", pool="blocking", budget=one)
        await until(lambda: fleet.worlds["blocked"].marker is not None)
        await until_phase(second, "waiting-for-slot")
        assert fleet.worlds["blocked"].acts == ["block"]
        # A budget that begins anew takes the holder over, and not the one that is blocked and waits.
        await order(server, "blocking").terminate()
        found = await Temporal(server).find_holders(FindHolders(cluster="test", pool="blocking"))
        assert [each.node for each in found.holders] == ["slot"]
        fleet.worlds["slot"].pause["drain"].set()
        await first.result()
        await second.terminate()
