"""The benchmark of a burst on a small scale: complete figures of a real one. Nothing is timed here."""

from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from testbed.bench_burst.actions import Cost, cost_of
from testbed.bench_burst.burst import BurstFigures, measure_burst
from testbed.bench_burst.cluster import ROLES, BurstCluster
from testbed.bench_burst.plan import Plan, onset
from testbed.bench_burst.report import LIMITS, Figures, missed, percentile, show
from testbed.bench_burst.slots import SlotWait, grants_per_second, slot_wait
from testbed.progress import Progress

SMALL = Plan(nodes=30, pools=2, faults=6, budget=2, within=0.2, duplicates=12)
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


async def test_every_fault_of_a_burst_is_known_and_the_permitted_nodes_are_blocked(tmp_path):
    async with BurstCluster.start(tmp_path, SMALL, Progress()) as cluster:
        figures = await measure_burst(cluster, SMALL, Progress(), duplicates=True)

    assert (figures.lost, figures.not_blocked, figures.over_budget) == (0, 0, 0)
    assert len(figures.block_seconds) == SMALL.permitted == 4
    assert sum(wait.granted is None for wait in figures.slots) == 2
    assert figures.answers["started"] == 6
    assert figures.answers["duplicate"] == 12
    assert set(figures.memory) == set(ROLES)
    assert min(figures.memory.values()) > 0
    assert len(figures.costs) == 6
    assert all(cost.events > cost.actions > 0 for cost in figures.costs)


def test_the_burst_is_of_mixed_kinds_and_has_room_for_a_hundred_nodes():
    plan = Plan()
    alerts = [plan.alert(number, onset()) for number in range(plan.faults)]
    assert len({alert["labels"]["node"] for alert in alerts}) == 200
    assert len({(alert["labels"]["alertname"], alert["labels"].get("xid")) for alert in alerts}) == 10
    assert plan.permitted >= 100
    assert len(plan.policy()["pools"]) == plan.pools == 5


def test_no_pool_is_permitted_more_than_it_has_faults():
    assert Plan(pools=3, faults=4, budget=5).permitted == 4
    assert Plan(pools=3, faults=10, budget=3).permitted == 9


def signal(name, seconds, *, sent=False):
    event = HistoryEvent(
        event_type=(
            EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED
            if sent
            else EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
        )
    )
    event.event_time.FromDatetime(BEGIN + timedelta(seconds=seconds))
    attributes = (
        event.signal_external_workflow_execution_initiated_event_attributes
        if sent
        else event.workflow_execution_signaled_event_attributes
    )
    attributes.signal_name = name
    return event


def test_a_wait_is_from_the_first_request_to_the_grant():
    asked, again = signal("request_slot", 1, sent=True), signal("request_slot", 301, sent=True)
    granted = signal("slot_granted", 303)
    assert slot_wait([asked, again, granted]).seconds == 302
    assert slot_wait([asked, signal("repeated", 2)]).seconds is None
    assert slot_wait([granted]) is None


@pytest.mark.parametrize(("phase", "seconds"), [(b'"waiting-for-slot"', 3), (b'"open"', 2), (None, 2)])
def test_a_wait_is_from_the_start_where_the_intake_asks(phase, seconds):
    started = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED)
    started.event_time.FromDatetime(BEGIN)
    if phase:
        shown = started.workflow_execution_started_event_attributes.search_attributes.indexed_fields
        shown["RunbookPhase"].data = phase
    events = [started, signal("request_slot", 1, sent=True), signal("slot_granted", 3)]
    assert slot_wait(events).seconds == seconds


def test_grants_are_counted_from_the_first_request_on():
    waits = [SlotWait(BEGIN, BEGIN + timedelta(seconds=second)) for second in (1, 2, 4)]
    assert grants_per_second([*waits, SlotWait(BEGIN, None)]) == 0.75
    assert grants_per_second([SlotWait(BEGIN, None)]) == 0


def event(kind, **attributes):
    return HistoryEvent(event_type=kind, **attributes)


def test_what_is_billed_is_counted_once_and_each_retry_once_more():
    retried = event(EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED)
    retried.activity_task_started_event_attributes.attempt = 3
    history = [
        event(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED),
        event(EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED),
        event(EventType.EVENT_TYPE_TIMER_STARTED),
        event(EventType.EVENT_TYPE_TIMER_CANCELED),
        event(EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED),
        retried,
        event(EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED),
        signal("request_slot", 1, sent=True),
    ]
    assert cost_of(history) == Cost(events=8, actions=6)


@pytest.mark.parametrize(
    ("values", "share", "found"), [([3, 1, 2], 50, 2), (range(1, 101), 99, 99), ([7], 99, 7), ([], 99, 0)]
)
def test_percentiles(values, share, found):
    assert percentile(list(values), share) == found


def figures_of(seconds=(1.0, 2.0), permitted=2, lost=0, peak=100.0, events=200):
    one = BurstFigures(
        permitted=permitted,
        block_seconds=tuple(seconds),
        slots=(SlotWait(BEGIN, BEGIN + timedelta(seconds=1)),),
        costs=(Cost(30, 10),),
        lost=lost,
        memory={"controller": peak},
        answers={"started": 2},
    )
    return Figures(one, one, Cost(events, 80), load_before=0.5)


def test_all_figures_that_are_asked_for_are_there_and_kept(capsys):
    figures = figures_of()
    assert {
        "block_p50_seconds",
        "block_p99_seconds",
        "lost",
        "max_worker_rss_mib",
        "events_full_ladder",
        "actions_full_ladder",
        "grants_per_second",
    } <= set(figures.as_json())
    assert missed(figures.as_json()) == []
    show(figures, Console())
    out = capsys.readouterr().out
    assert "block_p99_seconds" in out
    assert "MISSED" not in out


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"seconds": (1.0, 10.5)}, "block_p99_seconds"),
        ({"permitted": 3}, "lost"),
        ({"lost": 1}, "lost"),
        ({"peak": 300.5}, "max_worker_rss_mib"),
        ({"events": 251}, "events_full_ladder"),
    ],
)
def test_a_limit_that_is_missed_is_told(changed, name, capsys):
    figures = figures_of(**changed)
    assert name in missed(figures.as_json())
    assert name in LIMITS
    show(figures, Console())
    assert "MISSED" in capsys.readouterr().out
