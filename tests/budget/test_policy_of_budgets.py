"""The budget of a pool in the policy file: one limit, what it says when it errs, and what it comes to."""

import pytest
from policy.factories import P5, SMALLEST, fault, node, problems

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.slot import PoolBudget
from gpu_runbooks.workers.policy.check import check
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.planning import plan


def written(budget: str) -> str:
    return SMALLEST.replace("{max_unavailable: 3}", budget)


@pytest.mark.parametrize(
    ("budget", "planned", "words"),
    [
        ("{max_unavailable: 3}", PoolBudget(max_unavailable=3), "at most 3 at once,"),
        ("{percent: 10}", PoolBudget(percent=10), "at most 10 % of its nodes at once,"),
        (
            "{percent: 10, block_waiting: true}",
            PoolBudget(percent=10, block_waiting=True),
            "at most 10 % of its nodes at once, blocked while they wait,",
        ),
    ],
)
def test_a_budget_is_a_count_or_a_share(budget, planned, words, tmp_path):
    policy = load_policy(written(budget))
    assert plan(policy, fault(FaultSource.XID, "79"), node(), P5, "gpu-tests").budget == planned
    file = tmp_path / "policy.yaml"
    file.write_text(written(budget))
    assert words in check(file)


@pytest.mark.parametrize(
    ("budget", "wrong"),
    [
        ("{}", "line 5: pools[0].budget: write max_unavailable, such as {max_unavailable: 1}, or percent"),
        ("{block_waiting: true}", "line 5: pools[0].budget: write max_unavailable"),
        (
            "{max_unavailable: 3, percent: 10}",
            "line 5: pools[0].budget: write one of max_unavailable and percent, not both",
        ),
        ("{percent: 0}", "line 5: pools[0].budget.percent: it should be greater than or equal to 1"),
        ("{percent: 101}", "line 5: pools[0].budget.percent: it should be less than or equal to 100"),
        ("{percent: 10%}", "line 5: pools[0].budget.percent: it should be a valid integer"),
        ("{percent: 2.5}", "line 5: pools[0].budget.percent"),
        ("{percent: 10, block_waiting: 1}", "line 5: pools[0].budget.block_waiting"),
        ("{percent: 10, block_waitin: true}", "line 5: pools[0].budget.block_waitin: unknown field"),
    ],
)
def test_a_slip_is_named_with_line_and_field(budget, wrong):
    found = problems(written(budget))
    assert len(found) == 1
    assert found[0].startswith(wrong)
