"""The page about node conditions says what is watched, and its rule is one."""

import re
from pathlib import Path

from policy.factories import SMALLEST

from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.node_conditions import watched_conditions

PAGE = (Path(__file__).parents[2] / "docs" / "node-conditions.md").read_text()


def test_the_table_names_what_is_watched_and_its_bad_statuses():
    rows = re.findall(r"^\| `([\w./-]+)` \| ((?:`\w+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    written = {kind: frozenset(re.findall(r"\w+", statuses)) for kind, statuses in rows}
    assert written == watched_conditions(load_policy(SMALLEST))


def test_the_rule_for_a_type_of_ones_own_is_valid():
    (rule,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert watched_conditions(load_policy(SMALLEST + rule))["example.com/FanFailed"] == {"True"}
