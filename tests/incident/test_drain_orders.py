"""A drain that something stands in the way of: what people see, order, and end."""

import asyncio
from datetime import UTC, timedelta

import pytest
from incident.conftest import running_workers, until
from incident.fakes import World
from incident.opened import NODE, a_person_is_asked, start, status
from incident.plans import T0
from temporalio.client import WorkflowUpdateFailedError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.model.drain import (
    LONGEST_GRACE,
    BlockerReason,
    OverrideMethod,
    PodBlocker,
    Workload,
)
from gpu_runbooks.workflows.options import HEARTBEAT

WORD = {"operator": "ana", "reason": "owner agreed"}


def blocker(name: str, reason: BlockerReason = BlockerReason.BUDGET, **changes) -> PodBlocker:
    fields = {
        "namespace": "team-blue",
        "name": name,
        "uid": f"uid-{name}",
        "workload": Workload.INFERENCE,
        "reason": reason,
        "names": ("web-budget",),
        "message": "the budget needs 2 healthy pods and has 2: add a replica",
        "attempts": 4,
        "since": T0,
    }
    return PodBlocker(**(fields | changes))


async def shown(handle, *names: str) -> None:
    """Wait until the status shows just these pods in the way."""
    seen = set()
    while seen != set(names):
        seen = {pod.name for pod in (await status(handle)).blockers}


async def order(handle, method="evict", pods=("team-blue/web-1",)) -> str:
    return await handle.execute_update("override_drain", {**WORD, "method": method, "pods": list(pods)})


async def test_the_status_shows_the_pods_in_the_way_while_the_drain_runs(skipping, workers):
    world = World(drains=["waits"], blockers=[blocker("web-1"), blocker("web-2")])
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        await shown(handle, "web-1", "web-2")
        seen = await status(handle)
        assert (seen.phase, seen.blockers[0].names, seen.blockers[0].attempts) == (
            "draining",
            ("web-budget",),
            4,
        )
        await handle.execute_update("abort", WORD)
        await handle.result()


async def test_a_drain_has_time_for_the_grace_periods_that_run_at_its_deadline(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        await handle.result()
    (request,) = world.drain_requests
    (scheduled,) = [
        event
        async for event in handle.fetch_history_events()
        if event.activity_task_scheduled_event_attributes.activity_type.name == "drain_pods"
    ]
    attributes, asked = scheduled.activity_task_scheduled_event_attributes, scheduled.event_time
    for limit in (attributes.start_to_close_timeout, attributes.schedule_to_close_timeout):
        assert asked.ToDatetime(UTC) + limit.ToTimedelta() > request.deadline + LONGEST_GRACE
    # the death of the worker is noticed all the same
    assert attributes.heartbeat_timeout.ToTimedelta() == HEARTBEAT


async def test_an_abort_ends_a_drain_at_once(skipping, workers):
    world = World(drains=["waits"], blockers=[blocker("web-1")])
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        await shown(handle, "web-1")
        await handle.execute_update("abort", WORD)
        assert (await handle.result()).outcome == "aborted"
    assert world.acts == ["block", "drain"]
    assert world.marker is not None


@pytest.mark.parametrize("method", list(OverrideMethod))
async def test_an_order_reaches_the_drain_that_runs(skipping, workers, method):
    world = World(drains=["waits"], blockers=[blocker("web-1"), blocker("web-2")])
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        await shown(handle, "web-1", "web-2")
        assert f"{method} team-blue/web-1" in await order(handle, method)
        assert (await handle.result()).outcome == "returned"
    before, after = world.drain_requests
    assert after.started == before.started  # what a pod waited for is not waited for again
    assert before.overrides == ()
    (given,) = after.overrides
    assert (given.uid, given.method, given.operator, given.reason) == (
        "uid-web-1",
        method,
        "ana",
        "owner agreed",
    )


async def test_an_order_answers_the_question_of_a_drain_that_gave_up(skipping, workers):
    world = World(drains=["blocked"], blockers=[blocker("web-1"), blocker("web-2")])
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        await a_person_is_asked(handle)
        await order(handle, "delete", ["all"])
        assert (await handle.result()).outcome == "returned"
    assert {given.uid for given in world.drain_requests[-1].overrides} == {"uid-web-1", "uid-web-2"}


async def test_the_latest_order_for_a_pod_counts(skipping):
    world = World(drains=["blocked", "blocked"], blockers=[blocker("web-1")])
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client)
        await a_person_is_asked(handle)
        await order(handle, "evict", ["uid-web-1"])
        await until(lambda: len(world.drain_requests) == 2)
        await a_person_is_asked(handle)
        await order(handle, "abandon")
        await handle.result()
    assert [given.method for given in world.drain_requests[-1].overrides] == ["abandon"]


async def test_orders_are_in_the_audit(skipping):
    world = World(drains=["blocked"], blockers=[blocker("web-1")])
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client)
        await a_person_is_asked(handle)
        await order(handle, "delete")
        await handle.result()
        seen = await status(handle)
        assert [(given.operator, given.reason) for given in seen.overrides] == [("ana", "owner agreed")]
        described = await skipping.client.get_workflow_handle(NODE).query("__temporal_workflow_metadata")
    assert "delete of team-blue/web-1 ordered by ana: owner agreed" in described.current_details


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ({**WORD, "method": "evict", "pods": ["team-blue/other"]}, "team-blue/web-1"),
        ({**WORD, "method": "force", "pods": ["all"]}, "method"),
        ({**WORD, "method": "evict", "pods": []}, "pods"),
        ({"method": "evict", "pods": ["all"]}, "operator"),
        ({**WORD, "pods": ["all"]}, "method"),
    ],
)
async def test_an_order_that_fits_nothing_is_refused_and_changes_nothing(skipping, argument, complaint):
    world = World(drains=["blocked"], blockers=[blocker("web-1")])
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client)
        await a_person_is_asked(handle)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update("override_drain", argument)
        assert complaint in str(refused.value.cause)
        assert (await status(handle)).overrides == []
        await handle.execute_update("abort", WORD)
        await handle.result()
    assert len(world.drain_requests) == 1


async def test_no_order_is_taken_where_no_drain_waits(skipping):
    world = World(replacements=["refused"])
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client, "replace")
        await a_person_is_asked(handle)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await order(handle)
        assert refused.value.cause.type == "NotNow"
        await handle.execute_update("abort", WORD)
        await handle.result()


async def test_a_cancellation_waits_for_the_drain_to_stop(skipping, workers):
    world = World(drains=["waits"], blockers=[blocker("web-1")])
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        await shown(handle, "web-1")
        await handle.cancel()
        await until(lambda: world.stopped_drains == 1)
        seen = await status(handle)
        assert seen.outcome in {None, "cancelled"}
    assert world.acts == ["block", "drain"]
    assert world.marker is not None


async def test_the_drain_keeps_its_deadline_and_evidence(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client)
        await handle.result()
        acts = (await status(handle)).acts
    (request,) = world.drain_requests
    assert request.run_id
    assert request.deadline > request.started
    (drained,) = (act for act in acts if act.rung == "drain")
    assert "sha256:abc" in drained.evidence
    assert "3 evicted" in drained.proof


async def test_an_abort_while_the_node_is_looked_at_stops_the_act(skipping, workers):
    world = World()
    world.pause["observe"] = asyncio.Event()
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        await until(lambda: "observe" in world.calls)
        await handle.execute_update("abort", WORD)
        world.pause["observe"].set()
        assert (await handle.result()).outcome == "aborted"
    assert world.acts == ["block"]
    assert world.marker is not None


async def test_a_retry_after_a_failure_begins_the_waits_anew(skipping):
    world = World()
    fails = ["drain"]

    def refuse(call: str) -> None:
        if call in fails:
            fails.remove(call)
            raise errors.refusal(errors.FORBIDDEN, "no")

    world.on_call = refuse
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client)
        await a_person_is_asked(handle)
        await skipping.sleep(timedelta(minutes=90))
        await handle.execute_update("retry", WORD)
        await handle.result()
    first, second = world.drain_requests
    assert second.started - first.started >= timedelta(minutes=90)
