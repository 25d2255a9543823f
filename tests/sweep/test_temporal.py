"""What a sweep asks Temporal, on the real server: every way to end, and a workflow paused through it."""

import asyncio

import pytest
from temporalio.api.workflowservice.v1 import PauseWorkflowExecutionRequest
from temporalio.testing import ActivityEnvironment

from gpu_runbooks.activities.model.slot import SlotRequest
from gpu_runbooks.activities.model.sweep import (
    FindBudgets,
    FindRuns,
    IncidentsNextPage,
    LookAgain,
    Run,
    SweepBudget,
)
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, budget_id
from gpu_runbooks.activities.sweep import temporal
from gpu_runbooks.activities.sweep.temporal import TemporalSweep


@pytest.fixture
def ask(in_temporal):
    """Calls an activity, as its worker does."""
    activities = TemporalSweep(in_temporal.client)

    async def call(name, request):
        return await ActivityEnvironment().run(getattr(activities, name), request)

    return call


async def paused(in_temporal, node):
    run = await in_temporal.opened(node)
    request = PauseWorkflowExecutionRequest(
        namespace=in_temporal.client.namespace,
        workflow_id=f"node/{in_temporal.cluster}/{node}",
        run_id=run,
        identity="a person",
        reason="a test",
        request_id=f"pause-{node}",
    )
    await in_temporal.client.workflow_service.pause_workflow_execution(request)
    return run


async def standing(ask, in_temporal, node, run_id=""):
    run = Run(id=f"node/{in_temporal.cluster}/{node}", run_id=run_id)
    found = await ask("find_runs", FindRuns(runs=(run,)))
    return found.standings[0].state, found.standings[0].how


async def open_incidents(ask, in_temporal, count):
    """The open incidents once the list shows so many: it lags by moments."""
    while True:
        found, token = [], ""
        while True:
            request = IncidentsNextPage(cluster=in_temporal.cluster, token=token)
            page = await ask("list_open_incidents", request)
            found += page.incidents
            if not (token := page.more):
                break
        if len(found) == count:
            return {incident.id.rpartition("/")[2]: incident for incident in found}
        await asyncio.sleep(0.05)


async def test_a_run_is_over_however_it_ended_and_open_where_it_is_paused(in_temporal, ask):
    async with in_temporal.working():
        done = await in_temporal.ended("done", "aborted")
        first = await in_temporal.ended("again", "failed")
        second = await in_temporal.opened("again")
        terminated = await in_temporal.opened("terminated")
        handle = in_temporal.client.get_workflow_handle(f"node/{in_temporal.cluster}/terminated")
        await handle.terminate("a test")
        stopped = await paused(in_temporal, "stopped")
        assert await standing(ask, in_temporal, "done", done) == ("closed", "aborted")
        assert await standing(ask, in_temporal, "done") == ("closed", "aborted")
        assert await standing(ask, in_temporal, "terminated", terminated) == ("closed", "terminated")
        assert await standing(ask, in_temporal, "again", first) == ("open-later", "running")
        assert await standing(ask, in_temporal, "again", second) == ("open", "running")
        assert await standing(ask, in_temporal, "stopped", stopped) == ("open", "paused")
        assert await standing(ask, in_temporal, "never") == ("forgotten", "")
        assert await standing(ask, in_temporal, "done", "no run id") == ("closed", "")


async def test_open_incidents_are_listed_page_by_page_and_paused_ones_too(in_temporal, ask, monkeypatch):
    monkeypatch.setattr(temporal, "AT_A_TIME", 2)
    async with in_temporal.working():
        await in_temporal.ended("over", "returned")
        for name in ("n1", "n2", "n3", "n4"):
            await in_temporal.opened(name)
        await paused(in_temporal, "n5")
        found = await open_incidents(ask, in_temporal, 5)
    assert set(found) == {"n1", "n2", "n3", "n4", "n5"}
    assert [name for name, incident in found.items() if incident.paused] == ["n5"]


async def test_a_budget_takes_back_what_nobody_holds_any_more(in_temporal, ask):
    async with in_temporal.working():
        runs = {
            "over": await in_temporal.ended("over", "failed"),
            "at-work": await in_temporal.opened("at-work"),
            "paused": await paused(in_temporal, "paused"),
            "never": "a-run-that-is-forgotten",
            "gave-up": await in_temporal.ended("gave-up", "returned"),
        }
        known = {
            name: SlotRequest(incident=f"node/{in_temporal.cluster}/{name}", run_id=run, node=name)
            for name, run in runs.items()
        }
        gave_up = known.pop("gave-up")
        budget = await in_temporal.client.start_workflow(
            "DisruptionBudget",
            {"holders": list(known.values()), "waiters": [gave_up]},
            id=budget_id(in_temporal.cluster, "p5"),
            task_queue=REMEDIATION_QUEUE,
        )
        for _ in range(2):  # a second sweep, or one at the same time, changes nothing
            swept = await ask("sweep_budget", SweepBudget(cluster=in_temporal.cluster, pool="p5"))
            assert swept.problem == ""
        state = await budget.query("state")
        assert [each["node"] for each in state["holders"]] == ["at-work", "paused"]
        assert state["waiters"] == []
        assert swept.holders == 2
        while (await ask("find_budgets", FindBudgets(cluster=in_temporal.cluster))).pools != ("p5",):
            await asyncio.sleep(0.05)


async def test_nobody_knows_the_slots_of_a_budget_that_does_not_answer(in_temporal, ask):
    swept = await ask("sweep_budget", SweepBudget(cluster=in_temporal.cluster, pool="none"))
    assert swept.problem
    assert swept.returned == ()


async def test_an_incident_that_is_paused_or_over_is_not_told_to_look(in_temporal, ask):
    async with in_temporal.working():
        runs = {
            "paused": await paused(in_temporal, "paused"),
            "over": await in_temporal.ended("over", "failed"),
        }
        for name, run in runs.items():
            incident = f"node/{in_temporal.cluster}/{name}"
            looked = await ask("look_again", LookAgain(incident=incident, run_id=run, node=name))
            assert not looked.told
            assert looked.why
