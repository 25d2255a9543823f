"""Karpenter's disruption budgets, read as Karpenter reads them."""

from datetime import UTC, datetime, timedelta

import pytest

from gpu_runbooks.activities.karpenter.budgets import (
    Usage,
    allowed,
    duration_of,
    is_active,
    is_readable,
    obstacle,
    usage_of,
)

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
"""A Wednesday."""


def pool(*budgets, **disruption):
    return {"metadata": {"name": "gpu"}, "spec": {"disruption": {"budgets": list(budgets)} | disruption}}


def used(nodes, disrupted=0):
    return Usage(nodes, tuple(f"n{number}" for number in range(disrupted)))


@pytest.mark.parametrize(
    ("nodes", "of", "permits"),
    [
        ("0", 10, 0),
        ("3", 10, 3),
        ("0%", 10, 0),
        ("10%", 10, 1),
        ("10%", 11, 2),  # rounded up
        ("5%", 10, 1),
        ("100%", 7, 7),
        ("10%", 0, 0),
        ("many", 10, None),
    ],
)
def test_how_many_a_budget_lets_go(nodes, of, permits):
    assert allowed({"nodes": nodes}, of, NOON) == permits


@pytest.mark.parametrize(
    ("schedule", "duration", "active"),
    [
        ("0 12 * * *", "1h", True),  # has hit this very moment
        ("0 11 * * *", "1h1m", True),
        ("0 11 * * *", "1h", False),  # the next hit after 11:00 is tomorrow's
        ("0 11 * * *", "59m", False),
        ("0 13 * * *", "8h", False),
        ("0 9 * * 1-5", "8h", True),
        ("0 9 * * mon-fri", "8h0m0s", True),
        ("0 9 * * sat,sun", "8h", False),
        ("0 0 1 * 3", "24h", True),  # day of month or day of week, as in any cron
        ("0 0 1 * ?", "24h", False),
        ("*/15 * * * *", "10m", True),
        ("@daily", "13h", True),
        ("@daily", "11h", False),
        ("@hourly", "1m", True),
        ("0 12 4 MAR *", "1m", True),
    ],
)
def test_when_a_budget_is_active(schedule, duration, active):
    assert is_active({"nodes": "0", "schedule": schedule, "duration": duration}, NOON) is active


def test_schedules_are_in_utc():
    elsewhere = NOON.astimezone(datetime.strptime("+0900", "%z").tzinfo)
    assert is_active({"schedule": "0 12 * * *", "duration": "5m"}, elsewhere)


@pytest.mark.parametrize(
    "schedule",
    [
        "0 0 * * 7",
        "0 22-6 * * *",
        "0 9 * * fri-mon",
        "0 9 * *",
        "0 0 9 * * *",
        "60 * * * *",
        "TZ=Asia/Tokyo 0 9 * * *",
        "0 9 L * *",
        "0 9 * * 1#2",
        "@reboot",
        "@every 1h",
        "words words words words words",
    ],
)
def test_schedules_that_karpenter_cannot_read(schedule):
    assert not is_readable(schedule)
    assert is_active({"schedule": schedule, "duration": "1h"}, NOON) is None


@pytest.mark.parametrize("schedule", ["0 0 * * */7", "0 0 7 * *", "5-10/2 1,3 ? jan-feb mon-wed", "@weekly"])
def test_schedules_that_karpenter_can_read(schedule):
    assert is_readable(schedule)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("8h", timedelta(hours=8)),
        ("90m", timedelta(minutes=90)),
        ("1h30m0s", timedelta(minutes=90)),
        (None, timedelta()),
    ],
)
def test_durations(text, duration):
    assert duration_of(text) == duration


@pytest.mark.parametrize(
    ("budgets", "usage", "permitted"),
    [
        ([{"nodes": "1"}], used(5), True),
        ([{"nodes": "1"}], used(5, disrupted=1), False),
        ([{"nodes": "2"}], used(5, disrupted=1), True),
        ([{"nodes": "0"}], used(5), False),
        ([], used(5, disrupted=4), True),  # an empty list limits nothing
        ([{"nodes": "5"}, {"nodes": "1"}], used(5, disrupted=1), False),  # the tightest counts
        ([{"nodes": "0", "reasons": ["Drifted", "Empty"]}], used(5), True),
        ([{"nodes": "0", "reasons": ["Unhealthy"]}], used(5), False),
        ([{"nodes": "0", "reasons": ["Empty"]}, {"nodes": "1"}], used(5, disrupted=1), False),
        ([{"nodes": "0", "schedule": "0 9 * * *", "duration": "8h"}], used(5), False),
        ([{"nodes": "0", "schedule": "0 9 * * *", "duration": "2h"}], used(5), True),
        ([{"nodes": "5", "reasons": ["Empty"], "schedule": "0 0 * * 7", "duration": "1h"}], used(5), False),
    ],
)
def test_whether_one_more_node_may_go(budgets, usage, permitted):
    assert (obstacle(pool(*budgets), usage, NOON) == "") is permitted


def test_a_pool_without_budgets_lets_a_tenth_go():
    bare = {"metadata": {"name": "gpu"}, "spec": {}}
    assert obstacle(bare, used(10), NOON) == ""
    assert "nodes 10%" in obstacle(bare, used(10, disrupted=1), NOON)


def test_the_obstacle_names_budget_and_nodes():
    budgets = ({"nodes": "9"}, {"nodes": "1", "schedule": "0 9 * * *", "duration": "8h"})
    told = obstacle(pool(*budgets), used(5, disrupted=4), NOON)
    assert "budget 2 of NodePool gpu (spec.disruption.budgets[1]: nodes 1, at '0 9 * * *' UTC for 8h)" in told
    assert "permits 1 of 5 nodes at once, and 4 are disrupted now: n0, n1, n2, ..." in told


def claim(uid, *, going=False, conditions=()):
    metadata = {"uid": uid, "name": uid} | ({"deletionTimestamp": "2026-03-04T11:59:00Z"} if going else {})
    standing = [{"type": kind, "status": "True"} for kind in conditions]
    return {"metadata": metadata, "status": {"providerID": f"aws:///z/{uid}", "conditions": standing}}


def node(uid, *, initialized=True, ready="True", taints=()):
    return {
        "metadata": {
            "name": f"node-{uid}",
            "labels": {"karpenter.sh/initialized": "true"} if initialized else {},
        },
        "spec": {"providerID": f"aws:///z/{uid}", "taints": [{"key": key} for key in taints]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("other", "its_node", "counted", "disrupted"),
    [
        (claim("b"), node("b"), 2, 0),
        (claim("b", going=True), node("b"), 2, 1),
        (claim("b"), node("b", taints=["karpenter.sh/disrupted"]), 2, 1),
        (claim("b", conditions=["Rebooting"]), node("b", initialized=False), 2, 1),
        (claim("b", going=True, conditions=["InstanceTerminating"]), node("b"), 1, 0),  # drained and gone
        (claim("b", going=True), node("b", initialized=False), 1, 0),
        (claim("b"), node("b", ready="False"), 2, 0),  # as for Karpenter's own repair
        (claim("b", going=True), node("c"), 1, 0),  # no Node yet
    ],
)
def test_which_nodes_count(other, its_node, counted, disrupted):
    usage = usage_of([claim("a"), other], [node("a"), its_node], "a")
    assert (usage.nodes, len(usage.disrupted)) == (counted, disrupted)


def test_the_node_in_question_takes_nothing_of_its_own_budget():
    chosen = node("a", taints=["karpenter.sh/disrupted"])
    assert usage_of([claim("a")], [chosen], "a") == Usage(1, ())
