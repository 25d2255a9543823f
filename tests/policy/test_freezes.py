"""Moments of change freezes, as a person may write them."""

from datetime import UTC, datetime, timedelta

import pytest
from policy.factories import SMALLEST, problems

from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.windows import next_permitted

WINDOW = "  windows: [{days: [mon], begins: '02:00', lasts: 4h, timezone: Pacific/Kiritimati}]\nvalidation:"


def policy(begins: str, ends: str) -> str:
    text = SMALLEST.replace("validation:", WINDOW)
    return f"{text}freezes: [{{begins: '{begins}', ends: '{ends}', why: a launch}}]\n"


@pytest.mark.parametrize(
    ("begins", "ends", "wrong"),
    [
        ("2026-12-20T00:00:00Z", "9999-12-31T00:00:00Z", "ends"),
        ("2026-12-20T00:00:00Z", "2100-01-01T00:00:00Z", "ends"),
        ("0001-01-01T00:00:00+14:00", "2026-12-20T00:00:00Z", "begins"),
        ("1999-12-31T00:00:00Z", "2026-12-20T00:00:00Z", "begins"),
    ],
)
def test_a_moment_that_nobody_means_is_refused_with_words(begins, ends, wrong):
    (problem,) = problems(policy(begins, ends))
    assert f"freezes[0].{wrong}: write a moment of the years 2000 to 2099; not '" in problem


@pytest.mark.parametrize("ends", ["2099-12-31T23:59:59Z", "2099-12-31T23:59:59-12:00"])
def test_behind_the_last_moment_a_window_is_found(ends):
    read = load_policy(policy("2000-01-01T00:00:00Z", ends).encode())
    (pool,) = read.pools
    windows, freezes = [each.wire() for each in pool.windows], [each.wire() for each in read.freezes]
    opens = next_permitted(windows, freezes, datetime(2026, 3, 1, tzinfo=UTC))
    assert timedelta(0) <= opens - freezes[0].ends <= timedelta(days=8)


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("2027-01-02T00:00:00+01:00", "2027-01-01 23:00"),
        ("2027-01-01T15:00:00-08:00", "2027-01-01 23:00"),
        ("2027-01-01T23:00:00Z", "2027-01-01 23:00"),
    ],
)
def test_a_moment_of_another_zone_is_told_in_utc(written, moment):
    (freeze,) = load_policy(policy("2026-12-20T00:00:00Z", written).encode()).freezes
    assert f"{freeze.wire().ends:%Y-%m-%d %H:%M}" == moment
