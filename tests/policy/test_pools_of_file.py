"""Pools: their mode, owners and windows, what a plan gets of them, and windows that make no sense."""

from datetime import time, timedelta

import pytest
from policy.factories import P5, SMALLEST, fault, node, problems

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.plan import MaintenanceWindow, Plan
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.planning import plan


def test_pools_that_share_nodes():
    text = SMALLEST.replace(
        "validation:",
        """\
- name: inference
  selector: {gpu-runbooks.dev/pool: p5, team: search}
  budget: {max_unavailable: 1}
validation:""",
    )
    (problem,) = problems(text)
    assert problem.startswith("line 7: pools[1].selector: every node of pool inference is in pool p5 too")


def with_pool(*lines: str, mode: str = "enforce") -> str:
    """The smallest policy, with fields of its pool from line 6 on."""
    fields = "".join(f"  {line}\n" for line in lines)
    return SMALLEST.replace("mode: enforce", f"mode: {mode}").replace("validation:", f"{fields}validation:")


def planned(text: str) -> Plan:
    return plan(load_policy(text), fault(FaultSource.XID, "79"), node(), P5, "ns")


@pytest.mark.parametrize(
    ("file", "pool", "enforced"),
    [
        ("enforce", None, True),
        ("observe", None, False),
        ("enforce", "observe", False),
        ("observe", "enforce", True),
    ],
)
def test_mode_of_the_pool_stands_over_that_of_the_file(file, pool, enforced):
    lines = [] if pool is None else [f"mode: {pool}"]
    assert planned(with_pool(*lines, mode=file)).enforce is enforced


def test_owners_and_windows_reach_the_plan():
    made = planned(
        with_pool(
            'owners: "team search, #gpu-oncall"',
            "windows:",
            "- {begins: 22:00, lasts: 8h}",
            '- {days: [sun, sat], begins: "6:30", lasts: 1h30m, timezone: Europe/Stockholm}',
        )
    )
    assert made.owners == "team search, #gpu-oncall"
    assert made.windows == (
        MaintenanceWindow(days=(0, 1, 2, 3, 4, 5, 6), begins=time(22), lasts=timedelta(hours=8)),
        MaintenanceWindow(
            days=(5, 6), begins=time(6, 30), lasts=timedelta(minutes=90), timezone="Europe/Stockholm"
        ),
    )


def test_pool_without_either_has_no_windows_and_no_owners():
    made = planned(SMALLEST)
    assert (made.owners, made.windows) == ("", ())


@pytest.mark.parametrize("line", ["mode: observe", "owners: us", "windows: [{begins: 1:00, lasts: 1h}]"])
def test_digest_follows_them(line):
    assert load_policy(with_pool(line)).digest != load_policy(SMALLEST).digest


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ("lasts: 8h", "windows[0].begins: is missing. Time at which it begins"),
        ('begins: "22:00"', "windows[0].lasts: is missing. How long it lasts, at most 24h"),
        (
            'begins: "24:00", lasts: 1h',
            'windows[0].begins: write a time from 00:00 to 23:59, such as "22:00"',
        ),
        ("begins: 24:00, lasts: 1h", "windows[0].begins: write a time from 00:00 to 23:59"),
        ("begins: 22, lasts: 1h", "windows[0].begins: write a time from 00:00 to 23:59"),
        ("begins: 22:60, lasts: 1h", "windows[0].begins: write a time from 00:00 to 23:59"),
        ("begins: 10pm, lasts: 1h", "windows[0].begins: write a time from 00:00 to 23:59"),
        ("begins: 22:00:30, lasts: 1h", "windows[0].begins: write a time from 00:00 to 23:59"),
        ("begins: 22:00, lasts: 0s", "windows[0].lasts: write a time of at least 1m and at most 24h"),
        ("begins: 22:00, lasts: 25h", "windows[0].lasts: write a time of at least 1m and at most 24h"),
        ("begins: 22:00, lasts: 8", "windows[0].lasts: write a duration with units, such as 30s, 10m or"),
        ("begins: 22:00, lasts: 1h, days: []", "windows[0].days: write at least one entry"),
        ("begins: 22:00, lasts: 1h, days: [mon, mon]", "windows[0].days: mon stands twice: keep one"),
        ("begins: 22:00, lasts: 1h, days: [Monday]", "windows[0].days[0]: it should be 'mon', 'tue'"),
        ("begins: 22:00, lasts: 1h, days: mon", "windows[0].days: write a list here, as in `- item`"),
        ("begins: 22:00, lasts: 1h, day: [mon]", "windows[0].day: unknown field: did you mean days?"),
        (
            "begins: 22:00, lasts: 1h, timezone: Europe/Stokholm",
            "windows[0].timezone: no time zone has this name: did you mean Europe/Stockholm?",
        ),
        (
            "begins: 22:00, lasts: 1h, timezone: utc",
            "windows[0].timezone: no time zone has this name: did you mean UTC?",
        ),
        (
            "begins: 22:00, lasts: 1h, timezone: New York",
            "windows[0].timezone: no time zone has this name: did you mean America/New_York?",
        ),
        (
            "begins: 22:00, lasts: 1h, timezone: /etc/passwd",
            "windows[0].timezone: no time zone has this name",
        ),
        ("begins: 22:00, lasts: 1h, timezone: localtime", "windows[0].timezone: no time zone has this name"),
        (
            "begins: 22:00, lasts: 1h, timezone: stockholm",
            "windows[0].timezone: no time zone has this name: did",
        ),
        ("begins: 22:00, lasts: 1h, timezone: ../UTC", "windows[0].timezone: no time zone has this name"),
        ("begins: 22:00, lasts: 1h, timezone: 1", "windows[0].timezone: write text, in quotes where YAML"),
    ],
)
def test_window_that_is_wrong(window, expected):
    (problem,) = problems(with_pool(f"windows: [{{{window}}}]"))
    assert problem.startswith(f"line 6: pools[0].{expected}")


NIGHTS = "- {begins: 22:00, lasts: 8h, timezone: Europe/Stockholm}"


@pytest.mark.parametrize(
    ("second", "overlaps"),
    [
        ("{begins: 05:59, lasts: 1h, timezone: Europe/Stockholm}", True),
        ("{begins: 06:00, lasts: 16h, timezone: Europe/Stockholm}", False),
        ("{begins: 06:00, lasts: 16h1m, timezone: Europe/Stockholm}", True),
        ("{days: [mon], begins: 03:00, lasts: 1m, timezone: Europe/Stockholm}", True),
        ("{days: [sat, sun], begins: 6:00, lasts: 16h, timezone: Europe/Stockholm}", False),
        ("{begins: 22:00, lasts: 8h, timezone: Europe/Stockholm}", True),
        ("{begins: 22:00, lasts: 8h}", False),  # of another time zone: it depends on the season
    ],
)
def test_windows_that_overlap(second, overlaps):
    text = with_pool("windows:", NIGHTS, f"- {second}")
    if not overlaps:
        assert len(load_policy(text).pools[0].windows) == 2
        return
    (problem,) = problems(text)
    assert problem.startswith("line 8: pools[0].windows[1]: it overlaps with window 1 of pool p5")
    assert problem.endswith("(the other is on line 7)")


def test_window_that_ends_in_the_next_week():
    text = with_pool(
        "windows:",
        "- {days: [sun], begins: 20:00, lasts: 8h}",
        "- {days: [mon], begins: 03:00, lasts: 1h}",
    )
    assert "it overlaps with window 1" in problems(text)[0]


def test_whole_days_follow_one_another():
    assert load_policy(with_pool("windows: [{begins: 00:00, lasts: 24h}]")).pools[0].windows


def test_bytes_travel_and_no_characters():
    command = ", ".join(["é" * 400] * 20)
    (problem,) = problems(SMALLEST.replace("gpu-test, --all", command))
    assert problem.startswith(
        "line 1: the file: selector, owners, windows and freezes of pool p5, drain and validation take 16"
    )
    assert load_policy(SMALLEST.replace("gpu-test, --all", command.replace("é", "e")))


def test_more_windows_than_travel():
    windows = ", ".join(f"{{begins: {hour}:00, lasts: 1h}}" for hour in range(15))
    (problem,) = problems(with_pool(f"windows: [{windows}]"))
    assert problem == "line 6: pools[0].windows: write at most 14; there are 15"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mode: enforced", "mode: it should be 'observe' or 'enforce'; not 'enforced'"),
        (
            "owners: [a, b]",
            "owners: write text, in quotes where YAML takes it for something else; not ['a', 'b']",
        ),
        ('owners: "a\\nb"', "owners: write one line of text"),
        ('owners: "  "', "owners: write one line of text"),
        (f"owners: {'x' * 201}", "owners: it should have at most 200 characters"),
    ],
)
def test_mode_and_owners_that_are_wrong(line, expected):
    (problem,) = problems(with_pool(line))
    assert problem.startswith(f"line 6: pools[0].{expected}")


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("{pool: p5!}", "selector.pool: no label has this value"),
        ("{-pool: p5}", "selector.-pool: not the name of a label or annotation"),
        ("{}", "selector: write at least one entry"),
    ],
)
def test_selector_that_no_node_can_have(selector, expected):
    text = SMALLEST.replace("{gpu-runbooks.dev/pool: p5}", selector)
    (problem,) = problems(text)
    assert problem.startswith(f"line 4: pools[0].{expected}")


def test_label_that_is_written_as_a_boolean():
    assert load_policy(SMALLEST.replace("pool: p5}", "pool: true}")).pools[0].selector == {
        "gpu-runbooks.dev/pool": "true"
    }
