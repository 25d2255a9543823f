"""The IAM policy of the cloud worker: what it calls is permitted, and nothing else is."""

import json
import re
from pathlib import Path

import pytest
from cloud.conftest import POLICY, permitted_actions

TAG = "kubernetes.io/cluster/CLUSTER"


def test_each_permitted_action_is_called(request: pytest.FixtureRequest, called_actions: set[str]) -> None:
    """Runs after all others of this folder. That nothing else is called, each test asserts on its way out."""
    here = Path(__file__).parent
    missing = set(here.glob("test_*.py")) - {item.path for item in request.session.items}
    if missing:
        pytest.skip(f"says something only after the whole folder: {len(missing)} of its files did not run")

    assert permitted_actions() == called_actions


def test_what_changes_the_world_is_bound_to_the_cluster() -> None:
    for statement in json.loads(POLICY.read_text())["Statement"]:
        assert statement["Effect"] == "Allow"
        given = statement["Action"]
        actions = [given] if isinstance(given, str) else given
        if all(re.fullmatch(r"\w+:Describe\w+", action) for action in actions):
            continue
        assert statement["Resource"] != "*", actions
        assert TAG in json.dumps(statement["Condition"]), actions
