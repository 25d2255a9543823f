"""The demo and the policy that it runs under: what it breaks at once is no storm by that policy."""

import inspect
from collections import Counter

from budget.slots import ask, pool, round_of, waiting

from gpu_runbooks.activities.model.fleet import StormRule
from gpu_runbooks.workflows.policy.file import load_policy
from testbed.product import POLICY
from testbed.scenarios import SCENARIOS
from testbed.testbed import Testbed

NODES = inspect.signature(Testbed.start).parameters["nodes"].default


def granted(rule: StormRule, most: int) -> int:
    """How many of the demo's nodes get a slot while all of them are faulty."""
    faulty = [ask(f"n{number}", storm=rule, max_unavailable=most) for number in range(len(SCENARIOS))]
    return len(round_of(waiting(*faulty), pool(NODES)))


def test_what_the_demo_breaks_at_once_is_no_storm():
    policy = load_policy(POLICY.read_text())
    rule, most = policy.storm.wire(), policy.pools[0].budget.max_unavailable
    assert max(Counter(scenario.xid for scenario in SCENARIOS).values()) < rule.nodes
    assert granted(rule, most) == min(most, len(SCENARIOS))
    assert granted(StormRule(), most) == 0  # by the built-in rule it would be one
