"""Words of `policy check` and `policy diff` about durations, freezes, and fields without a value."""

from datetime import UTC, datetime

import pytest
from policy.factories import SMALLEST, problems

from gpu_runbooks.activities.model.plan import ChangeFreeze
from gpu_runbooks.workers.policy.plan_changes import _changed
from gpu_runbooks.workflows.policy.schema import policy_schema

LADDER = "ladders: {a: [{rung: drain, %s}, {rung: reboot, approval: %s}]}\n"


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("storm: {cool_down: 10s}", "storm.cool_down: write a duration of at least 1m; not 10s"),
        ("storm: {within: 30d}", "storm.within: write a duration of at most 1d; not 30d"),
        ("storm: {pace: 9s}", "storm.pace: write a duration of at least 10s; not 9s"),
        ("operator: {reminder: 59s}", "operator.reminder: write a duration of at least 1m; not 59s"),
        (LADDER % ("timeout: 0s", "true"), "ladders.a[0].timeout: write a duration of at least 1s; not 0s"),
        (
            LADDER % ("timeout: 1h", "{lasts: 1s}"),
            "ladders.a[1].approval.lasts: write a duration of at least 1m; not 1s",
        ),
    ],
)
def test_limits_of_a_duration_are_told_as_a_person_writes_one(section, problem):
    (said,) = problems(f"{SMALLEST}{section}\n")
    assert said.endswith(problem)


@pytest.mark.parametrize(
    ("file", "field"),
    [
        (SMALLEST + LADDER % ("timeout: 1h", "null"), "ladders.a[1].approval"),
        (SMALLEST.replace("unavailable: 3", "unavailable: 3, percent: null"), "pools[0].budget.percent"),
        (SMALLEST.replace("  budget:", "  probation:\n  budget:"), "pools[0].probation"),
    ],
)
def test_a_field_without_a_value_is_refused_as_the_schema_does(file, field):
    said = [each for each in problems(file) if each.partition(": ")[2].startswith(f"{field}: ")]
    assert [each.partition(f"{field}: ")[2] for each in said] == [
        "it is empty: write a value, or leave the field out"
    ]
    assert '"null"' not in str(policy_schema())


def test_a_freeze_that_is_another_is_told_with_its_moments():
    begins, ends = datetime(2026, 12, 20, tzinfo=UTC), datetime(2027, 1, 2, tzinfo=UTC)
    freeze = ChangeFreeze(begins=begins, ends=ends, why="a launch")
    assert list(_changed("freezes", (), (freeze,))) == [
        "freezes: nothing -> a launch (2026-12-20 00:00 to 2027-01-02 00:00 UTC)"
    ]
