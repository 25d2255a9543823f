"""What a site writes of approvals and change freezes."""

from datetime import UTC, datetime, timedelta

import pytest
from incident.plans import fault, identity
from policy.factories import SMALLEST

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.names import OPT_OUT_LABEL
from gpu_runbooks.workflows.policy.file import PolicyError, load_policy
from gpu_runbooks.workflows.policy.planning import plan

LADDER = """
ladders:
  reset:
  - rung: block
  - {rung: drain, approval: APPROVAL}
  - {rung: reset_gpu}
  - rung: validate
  - rung: return
"""
POOL = {"karpenter.sh/nodepool": "p5"}


def drain_of(approval: str):
    policy = load_policy((SMALLEST + LADDER.replace("APPROVAL", approval)).encode())
    labels = dict(policy.pools[0].selector)
    made = plan(policy, fault(), identity(), labels, "tests", "reset")
    return next(rung for rung in made.treatment.rungs if rung.name is RungName.DRAIN)


@pytest.mark.parametrize(
    ("written", "asked", "lasts", "by_other"),
    [
        ("false", False, timedelta(hours=1), False),
        ("true", True, timedelta(hours=1), False),
        ("{lasts: 10m}", True, timedelta(minutes=10), False),
        ("{by_other: true}", True, timedelta(hours=1), True),
    ],
)
def test_an_approval_says_how_long_it_lasts_and_who_may_give_it(written, asked, lasts, by_other):
    rung = drain_of(written)
    assert (rung.approval, rung.approval_lasts, rung.approval_by_other) == (asked, lasts, by_other)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("2h", "write true, false"),
        ("{lasts: 0s}", "lasts"),
        ("{by_other: maybe}", "by_other"),
        ("{expires: 1h}", "expires"),
    ],
)
def test_an_approval_that_says_nothing_sensible_is_refused(written, words):
    with pytest.raises(PolicyError, match=words):
        drain_of(written)


FREEZE = '{begins: 2026-12-20T00:00:00Z, ends: 2027-01-02T00:00:00+01:00, why: "end of the year"}'


def test_freezes_of_the_file_and_of_the_pool_go_into_the_plan():
    text = SMALLEST.replace("validation:", f"  freezes: [{FREEZE}]\nvalidation:") + f"freezes: [{FREEZE}]\n"
    policy = load_policy(text.encode())
    made = plan(policy, fault(), identity(), {**policy.pools[0].selector, OPT_OUT_LABEL: "true"}, "tests")
    assert [freeze.why for freeze in made.freezes] == ["end of the year"] * 2
    assert made.freezes[0].ends == datetime(2027, 1, 1, 23, tzinfo=UTC)
    assert made.opted_out


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("{begins: 2026-12-20, ends: 2027-01-02T00:00:00Z, why: x}", "with its time zone"),
        ("{begins: soon, ends: 2027-01-02T00:00:00Z, why: x}", "with its time zone"),
        ("{begins: 2027-01-02T00:00:00Z, ends: 2026-12-20T00:00:00Z, why: x}", "ends before it begins"),
        ("{begins: 2026-12-20T00:00:00Z, ends: 2027-01-02T00:00:00Z}", "why"),
    ],
)
def test_a_freeze_that_is_none_is_refused_by_its_field(written, words):
    with pytest.raises(PolicyError, match=words):
        load_policy(f"{SMALLEST}freezes: [{written}]\n".encode())
