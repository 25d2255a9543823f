"""What a long wait costs: events in the histories of the incident and of its pool's budget."""

import asyncio
from datetime import timedelta

import pytest
from budget.fleet import Fleet
from budget.incidents import order, start
from incident.conftest import running_workers, until
from temporalio.client import WorkflowHandle

from gpu_runbooks.workflows.audit import Status

TWO_HOURS = timedelta(hours=2)

MOST_OF_INCIDENT, MOST_OF_BUDGET = 600, 1000
"""Events of two hours. The first ten minutes cost a budget most: then it looks ever more seldom."""


async def length(handle: WorkflowHandle) -> int:
    return (await handle.describe()).history_length


async def until_phase(handle: WorkflowHandle, phase: str) -> None:
    async with asyncio.timeout(60):
        while (await handle.query("status", result_type=Status)).phase != phase:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("phase", ["waiting-for-slot", "stopped", "needs-operator"])
async def test_two_hours_of_waiting_stay_under_a_thousand_events(skipping, phase):
    client, fleet = skipping.client, Fleet("a")
    if phase == "waiting-for-slot":
        fleet.foreign = [{"cordoned-by-others"}]
    if phase == "needs-operator":
        fleet.worlds["a"].drains = ["blocked"]
    if phase == "stopped":
        fleet.worlds["a"].pause["drain"] = asyncio.Event()
    async with running_workers(client, fleet):
        with skipping.auto_time_skipping_disabled():
            incident = await start(client, "a", pool="p")
            if phase == "stopped":
                await until(lambda: "drain" in fleet.worlds["a"].calls)
                word = {"operator": "ana", "reason": "network work", "for": "3h"}
                await order(client, "p").execute_update("halt", word)
                fleet.worlds["a"].pause["drain"].set()
            await until_phase(incident, phase)
            await until(lambda: fleet.looks > 0)
        budget = order(client, "p")
        before = await length(incident), await length(budget)
        await skipping.sleep(TWO_HOURS)
        after = await length(incident), await length(budget)
        assert (await incident.query("status", result_type=Status)).phase == phase
    assert after[0] - before[0] < MOST_OF_INCIDENT
    assert after[1] - before[1] < MOST_OF_BUDGET
