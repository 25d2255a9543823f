"""What policy puts before a rung: a person's approval, mode observe, the pool's maintenance windows."""

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from incident.fakes import World
from incident.opened import a_person_is_asked, client_time, start, status
from incident.plans import T0, fault, plan, report
from incident.test_ladder import acted
from temporalio.client import WorkflowUpdateFailedError

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.plan import MaintenanceWindow, RungName
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder import next_step
from gpu_runbooks.workflows.ladder_steps import (
    AskOperator,
    Block,
    Close,
    Drain,
    Tolerate,
)
from gpu_runbooks.workflows.phases import Outcome
from gpu_runbooks.workflows.windows import next_open

WORD = {"operator": "ana", "reason": "a test"}
NIGHTS = MaintenanceWindow(days=(0, 1, 2, 3, 4), begins=time(22), lasts=timedelta(hours=8))
"""T0 is a Thursday, at midnight."""


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "opens"),
    [
        ("2026-01-01T00:00", "2026-01-01T00:00"),  # of Wednesday night
        ("2026-01-01T05:59", "2026-01-01T05:59"),
        ("2026-01-01T06:00", "2026-01-01T22:00"),
        ("2026-01-03T05:59", "2026-01-03T05:59"),  # Saturday, of Friday night
        ("2026-01-03T06:00", "2026-01-05T22:00"),
    ],
)
def test_a_window_lasts_over_midnight_and_opens_on_its_days(now, opens):
    assert next_open([NIGHTS], at(now)) == at(opens)


def test_the_first_of_several_windows_counts():
    noon = MaintenanceWindow(days=(5,), begins=time(12), lasts=timedelta(hours=1))
    assert next_open([NIGHTS, noon], at("2026-01-03T08:00")) == at("2026-01-03T12:00")
    assert next_open([], at("2026-01-03T08:00")) == at("2026-01-03T08:00")


@pytest.mark.parametrize(
    ("now", "opens"),
    [
        ("2026-03-28T02:00", "2026-03-28T21:00"),  # winter time: 22:00 is 21:00 UTC
        ("2026-03-29T12:00", "2026-03-29T20:00"),  # put forward that night
        ("2026-10-25T12:00", "2026-10-25T21:00"),  # put back
    ],
)
def test_a_window_begins_by_the_clock_of_its_zone(now, opens):
    berlin = MaintenanceWindow(
        days=tuple(range(7)), begins=time(22), lasts=timedelta(hours=1), timezone="Europe/Berlin"
    )
    assert next_open([berlin], at(now)) == at(opens)


def gated(ladder: str = "reset", *done: tuple[str, bool], rung: str = "", **changes) -> Incident:
    """An incident whose ladder has one rung with these gates."""
    subject = acted(ladder, *done)
    treatment = subject.plan.treatment
    rungs = tuple(each.model_copy(update=changes) if each.name == rung else each for each in treatment.rungs)
    subject.plan = subject.plan.model_copy(
        update={"treatment": treatment.model_copy(update={"rungs": rungs})}
    )
    return subject


NOON = T0 + timedelta(hours=12)


@pytest.mark.parametrize("gate", ["approval", "observe"])
@pytest.mark.parametrize(
    ("rung", "done"),
    [
        ("drain", [("block", True)]),
        ("reset_gpu", [("block", True)]),
        ("reboot", [("block", True), ("drain", True), ("reset_gpu", False)]),
        ("replace", [("block", True), ("drain", True), ("reset_gpu", False), ("reboot", False)]),
    ],
)
def test_a_gate_asks_before_its_rung_and_each_further_attempt(gate, rung, done):
    incident = gated("reset", *done, rung=rung, **{gate: True})
    if rung == "drain":
        incident.examined = acted("reset", ("block", True), ("drain", True)).examined
    step = next_step(incident, NOON)
    assert isinstance(step, AskOperator)
    assert step.approves == rung
    incident.approved = {RungName(rung): incident.attempts(RungName(rung)) + 1}
    assert not isinstance(next_step(incident, NOON), AskOperator)


def test_rungs_without_a_gate_ask_nobody():
    incident = gated("reset", ("block", True), rung="replace", approval=True)
    assert not isinstance(next_step(incident, NOON), AskOperator)


def windowed(*done: tuple[str, bool], of=None) -> Incident:
    opened = report(of=of, windows=(NIGHTS,))
    subject = Incident.open("test", "node/test/n1", "run", opened, T0)
    subject.slot_held = True
    before = acted("reset", *done)
    return before.model_copy(update={"plan": subject.plan, "faults": subject.faults})


def test_outside_its_window_a_node_is_blocked_and_nobody_has_to_leave():
    fresh = windowed()
    fresh.blocked = False
    assert isinstance(next_step(fresh, NOON), Block)
    blocked = windowed(("block", True))
    blocked.examined = acted("reset", ("drain", True)).examined
    assert next_step(blocked, NOON) == Tolerate(T0 + timedelta(hours=22))
    assert isinstance(next_step(blocked, T0 + timedelta(hours=23)), Drain)


def test_who_is_drained_is_repaired_also_after_the_window():
    drained = windowed(("block", True), ("drain", True))
    assert not isinstance(next_step(drained, NOON), Tolerate)


def test_a_person_waits_for_no_window():
    by_hand = fault().model_copy(update={"source": FaultSource.MANUAL})
    incident = windowed(("block", True), of=by_hand)
    incident.examined = acted("reset", ("drain", True)).examined
    assert isinstance(next_step(incident, NOON), Drain)


def test_a_pool_that_is_only_observed_says_what_would_be_done_when():
    opened = report("reset", enforce=False, toleration=timedelta(minutes=10))
    incident = Incident.open("test", "node/test/n1", "run", opened, T0)
    assert next_step(incident, T0) == Tolerate(T0 + timedelta(minutes=10))
    step = next_step(incident, T0 + timedelta(minutes=10))
    assert isinstance(step, Close)
    assert step.outcome is Outcome.OBSERVED
    assert "block → drain → reset_gpu → reboot → replace" in step.reason


async def test_an_approval_lets_one_attempt_be_done(skipping, workers):
    world = World()
    treatment = plan("reboot").treatment
    rungs = tuple(rung.model_copy(update={"approval": rung.name == "reboot"}) for rung in treatment.rungs)
    gates = treatment.model_copy(update={"rungs": rungs})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "reboot", treatment=gates)
            await a_person_is_asked(handle)
            assert "reboot" not in world.acts
            assert "approve it, or abort" in ((await status(handle)).question or "")
            for rung in ("replace", "drain", "dance"):
                with pytest.raises(WorkflowUpdateFailedError):
                    await handle.execute_update("approve", {**WORD, "rung": rung})
            await handle.execute_update("approve", {**WORD, "rung": "reboot"})
            result = await handle.result()
    assert result.outcome == "returned"
    assert world.acts.count("reboot") == 1


async def test_a_window_of_a_time_zone_is_waited_for(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        now = await client_time(skipping.client)
        there = (now + timedelta(minutes=45)).astimezone(ZoneInfo("Asia/Kolkata"))
        begins = there.time().replace(second=0, microsecond=0)
        window = MaintenanceWindow(
            days=tuple(range(7)), begins=begins, lasts=timedelta(hours=1), timezone="Asia/Kolkata"
        )
        opens = next_open([window], now)
        assert now < opens <= now + timedelta(minutes=45)
        handle = await start(skipping.client, windows=(window,))
        result = await handle.result()
        ended = await client_time(skipping.client)
    assert result.outcome == "returned"
    assert opens <= ended
