"""The guard at work: with real budgets and incidents, and a person at the command line."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from guard.fleet_world import CONDITION, FleetWorld, bad_node, open_incident
from incident.conftest import dev_server, running_workers
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from gpu_runbooks.activities.model.fleet import (
    AlertsTruncated,
    Brake,
    BudgetOpened,
    FaultSeen,
    FaultsSeen,
    PoolUnhealthy,
    StormRule,
)
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, budget_id, fleet_id
from gpu_runbooks.workers.intake.telling_guard import GuardNews
from gpu_runbooks.workflows.slots import Slots
from gpu_runbooks.workflows.storms import Fleet

WHO = {"operator": "ada", "reason": "driver rollout"}


async def start_guard(client: Client) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(
        "FleetGuard", {"cluster": "test"}, id=fleet_id("test"), task_queue=REMEDIATION_QUEUE
    )


async def state(client: Client) -> Fleet:
    return await client.get_workflow_handle(fleet_id("test")).query("state", result_type=Fleet)


async def budget_state(client: Client, pool: str = "p5") -> Slots:
    return await client.get_workflow_handle(budget_id("test", pool)).query("state", result_type=Slots)


async def eventually(condition) -> None:
    """Await a condition of workflows that may not have begun yet."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(RPCError):
                if await condition():
                    return
            await asyncio.sleep(0.05)


def seen(*nodes: int, signature: str = "xid 79") -> FaultsSeen:
    return FaultsSeen(
        faults=tuple(FaultSeen(node=f"n{node}", pool="p5", signature=signature) for node in nodes)
    )


@pytest.fixture
async def fleet(skipping) -> AsyncIterator[tuple[Any, FleetWorld]]:
    world = FleetWorld(conditions={CONDITION: "False"})
    async with running_workers(skipping.client, world):
        yield skipping, world


async def test_a_storm_of_twelve_nodes_touches_at_most_the_budget_and_what_healed_is_not_replayed(fleet):
    environment, world = fleet
    client, now = environment.client, await environment.get_current_time()
    names = [f"n{number}" for number in range(12)]
    news = GuardNews(client, "test")  # as the intake tells them, before it opens the incidents
    await asyncio.gather(*(news.tell(bad_node(name, now), "") for name in names))
    handles = [await open_incident(client, name, now) for name in names]

    async def braked() -> bool:
        guard, budget = await state(client), await budget_state(client)
        return len(guard.storms) == 1 and guard.storms[0].nodes == 12 and budget.brake.mode == "stop"

    await eventually(braked)
    (storm,) = (await state(client)).storms
    assert "driver 570.1 (12 of 12)" in storm.cause
    assert "detector a-detector (12 of 12)" in storm.cause
    world.conditions = {CONDITION: "True"}  # the detector is mended
    before = set(world.disturbed)
    results = [await handle.result() for handle in handles]  # the test server skips time for one at a time
    assert len(before) <= 3
    assert world.disturbed == before
    waited = [result for name, result in zip(names, results, strict=True) if name not in before]
    assert {result.outcome for result in waited} == {"cleared"}
    assert not {"drain", "reboot", "replace"} & set(world.calls)

    async def over() -> bool:
        return not (await state(client)).storms and any(page.over for page in world.pages)

    await eventually(over)
    assert (await environment.get_current_time()) - now >= StormRule().cool_down
    assert len({frozenset(page.labels.items()) for page in world.pages}) == 1
    assert [page.over for page in world.pages] == [False, True]


async def test_a_halt_everywhere_holds_all_pools_until_it_is_over(fleet):
    environment, world = fleet
    client, now = environment.client, await environment.get_current_time()
    guard = await start_guard(client)
    said = await guard.execute_update("halt", {**WHO, "for": "2h"})
    assert "halted everywhere until" in said
    handle = await open_incident(client, "n1", now)

    async def held() -> bool:
        return "p5" in (await state(client)).budgets and (await budget_state(client)).brake.mode == "stop"

    await eventually(held)
    assert not world.disturbed
    await guard.execute_update("resume", WHO)
    assert (await handle.result()).outcome == "returned"
    assert world.disturbed == {"n1"}
    assert not world.pages


async def test_a_halt_ends_by_itself(fleet):
    environment, _ = fleet
    guard = await start_guard(environment.client)
    await guard.execute_update("halt", {**WHO, "for": "2h"})
    await environment.sleep(timedelta(hours=2, seconds=1))

    async def over() -> bool:
        return not (await state(environment.client)).halts

    await eventually(over)


async def test_a_person_is_refused_in_words_and_ends_halts_and_storms(fleet):
    environment, _ = fleet
    client = environment.client
    guard = await start_guard(client)

    async def refused(update: str, argument: Any) -> str:
        with pytest.raises(WorkflowUpdateFailedError) as error:
            await guard.execute_update(update, argument)
        assert isinstance(error.value.cause, ApplicationError)
        return error.value.cause.message

    assert "field 'reason'" in await refused("halt", {"operator": "ada", "for": "2h"})
    assert "field 'for'" in await refused("halt", WHO)
    assert "from 1m to 30d" in await refused("halt", {**WHO, "for": "0s"})
    assert "no halt everywhere stands" in await refused("resume", WHO)
    assert "none stands" in await refused("end_storm", {**WHO, "storm": "x"})
    assert "bad argument" in await refused("end_storm", None)
    await guard.execute_update("halt", {**WHO, "for": "2h"})
    await guard.execute_update("resume", WHO)
    await guard.signal("faults_seen", seen(*range(10)))
    (storm,) = (await state(client)).storms
    assert storm.id in await refused("end_storm", {**WHO, "storm": "x"})
    await guard.execute_update("end_storm", {**WHO, "storm": storm.id})
    left = await state(client)
    assert (left.halts, left.storms) == ([], [])
    assert len(left.notes) == 3
    assert all("ada" in note and "driver rollout" in note for note in left.notes)


async def test_signals_that_are_none_and_budgets_that_are_gone_stop_nothing(fleet):
    environment, world = fleet
    client = environment.client
    guard = await start_guard(client)
    for signal in ("faults_seen", "alerts_truncated", "pool_unhealthy", "budget_opened", "caught_up"):
        for raw in (None, 7, "x" * 10_000, {"pool": 3}, [1], {"signature": None}):
            await guard.signal(signal, raw)
        await guard.signal(signal)
    await guard.signal("budget_opened", BudgetOpened(pool="gone"))
    await guard.signal("pool_unhealthy", PoolUnhealthy(pool="gone", unhealthy=9, nodes=10))
    await guard.signal("alerts_truncated", AlertsTruncated(count=38, signature="alert X", delivery="d"))

    async def dropped() -> bool:
        guard = await state(client)
        return not guard.budgets and len(guard.storms) == 2 and len(world.pages) == 2

    await eventually(dropped)


@pytest.mark.parametrize(
    ("workflow_id", "argument", "word"),
    [("fleet/other", {"cluster": "test"}, "--workflow-id fleet/test"), ("fleet/test", {}, "cluster")],
)
async def test_a_wrong_start_says_what_would_be_right(fleet, workflow_id, argument, word):
    environment, _ = fleet
    handle = await environment.client.start_workflow(
        "FleetGuard", argument, id=workflow_id, task_queue=REMEDIATION_QUEUE
    )
    with pytest.raises(WorkflowFailureError) as error:
        await handle.result()
    assert word in str(error.value.cause)


async def test_a_guard_that_continues_as_new_keeps_halts_storms_and_budgets():
    async with dev_server("limit.historyCount.suggestContinueAsNew=30") as client:
        world = FleetWorld(conditions={CONDITION: "False"})
        async with running_workers(client, world, cached_workflows=0):
            guard = await start_guard(client)
            first = (await guard.describe()).run_id
            await guard.execute_update("halt", {**WHO, "for": "2h"})
            await guard.signal("faults_seen", seen(*range(12)))
            for number in range(40):
                await guard.signal("faults_seen", seen(number, signature=f"xid {number}"))

            async def continued() -> bool:
                return (await client.get_workflow_handle(guard.id).describe()).run_id != first

            await eventually(continued)
            kept = await state(client)
            assert [halt.who() for halt in kept.halts] == [f"ada (identity {client.identity})"]
            assert [(storm.nodes, storm.signature) for storm in kept.storms] == [(12, "xid 79")]
            assert kept.brake("p5") == Brake(mode="stop", why=kept.brake("p5").why)
            assert len(world.pages) == 1
