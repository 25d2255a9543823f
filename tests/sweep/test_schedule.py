"""The Schedule of the sweep on the real server: made once, brought up to date, and a person's pause kept."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import ScheduleOverlapPolicy
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.activities.names import REMEDIATION_QUEUE, sweep_id
from gpu_runbooks.workers import sweep_schedule
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workers.sweep_schedule import CATCHUP, ensure_schedule


@pytest.fixture
async def schedule(in_temporal):
    handle = in_temporal.client.get_schedule_handle(sweep_id(in_temporal.cluster))
    yield handle
    await handle.delete()


async def test_it_is_made_once_and_brought_up_to_date(in_temporal, schedule):
    await ensure_schedule(in_temporal.client, Settings(cluster=in_temporal.cluster))
    made = (await schedule.describe()).schedule
    assert made.policy.overlap is ScheduleOverlapPolicy.SKIP
    assert made.policy.catchup_window == CATCHUP
    assert not made.policy.pause_on_failure
    assert made.spec.intervals[0].every == timedelta(minutes=10)
    assert (made.action.workflow, made.action.task_queue) == ("FleetSweep", REMEDIATION_QUEUE)
    assert not made.state.paused
    await ensure_schedule(
        in_temporal.client, Settings(cluster=in_temporal.cluster, sweep_interval=timedelta(hours=1))
    )
    changed = (await schedule.describe()).schedule
    assert changed.spec.intervals[0].every == timedelta(hours=1)


async def test_what_a_person_paused_stays_paused_with_their_note(in_temporal, schedule):
    settings = Settings(cluster=in_temporal.cluster)
    await ensure_schedule(in_temporal.client, settings)
    await schedule.pause(note="ana: the API server is being moved")
    await ensure_schedule(in_temporal.client, settings)
    state = (await schedule.describe()).schedule.state
    assert (state.paused, state.note) == (True, "ana: the API server is being moved")


@pytest.mark.parametrize(
    "broken",
    [RPCError("away", RPCStatusCode.UNAVAILABLE, b""), RuntimeError("cannot connect"), None],
    ids=["Temporal is away", "it cannot be reached", "a person deletes it"],
)
async def test_it_is_made_once_temporal_is_there_and_again_when_it_is_gone(
    in_temporal, schedule, broken, monkeypatch
):
    """Pauses are short, and the first call fails, or the Schedule is deleted: what follows is real."""
    monkeypatch.setattr(sweep_schedule, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(sweep_schedule, "LOOK_SECONDS", 0.05)
    client, failures = in_temporal.client, [broken] if broken else []
    create = client.create_schedule

    async def created(*given):
        if failures:
            raise failures.pop()
        return await create(*given)

    monkeypatch.setattr(client, "create_schedule", created)
    stop = asyncio.Event()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(sweep_schedule.keep_schedule(client, Settings(cluster=in_temporal.cluster), stop))
        await _there(schedule)
        if broken is None:
            await schedule.delete()
            await _there(schedule)
        stop.set()


async def _there(schedule):
    while True:
        try:
            return await schedule.describe()
        except RPCError:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("written", "interval"), [("10m", timedelta(minutes=10)), ("1h", timedelta(hours=1))]
)
def test_the_interval_is_written_as_in_the_policy(monkeypatch, written, interval):
    monkeypatch.setenv("GPU_RUNBOOKS_SWEEP_INTERVAL", written)
    assert Settings().sweep_interval == interval


@pytest.mark.parametrize("written", ["10s", "often", "10"])
def test_an_interval_that_is_none_is_refused(monkeypatch, written):
    monkeypatch.setenv("GPU_RUNBOOKS_SWEEP_INTERVAL", written)
    with pytest.raises(ValueError, match="sweep_interval"):
        Settings()
