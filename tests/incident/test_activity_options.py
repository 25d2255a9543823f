"""Whether the server would notice the death of a worker: only a heartbeat tells, for what takes its time."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_runbooks import workflows
from gpu_runbooks.workflows import options

LONG = timedelta(seconds=60)
"""What takes longer has a heartbeat."""

MODULES = sorted(
    each.name
    for each in pkgutil.walk_packages(workflows.__path__, "gpu_runbooks.workflows.")
    if not each.ispkg
)


def option_sets() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in MODULES:
        for key, value in vars(importlib.import_module(name)).items():
            if isinstance(value, dict) and "start_to_close_timeout" in value:
                yield f"{name}.{key}", value


CALLS = ("execute_activity", "start_activity", "execute_local_activity")


def calls(name: str) -> Iterator[ast.Call]:
    """Each call of an activity in this module."""
    tree = ast.parse(Path(str(importlib.import_module(name).__file__)).read_text())
    for node in ast.walk(tree):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if is_call and node.func.attr.startswith(CALLS):
            yield node


def test_all_options_with_a_long_attempt_have_a_heartbeat():
    found = dict(option_sets())
    assert {
        f"{options.__name__}.{each}" for each in ("CLUSTER", "COMMAND_ONCE", "MANY_ANSWERS")
    } <= found.keys()
    without = [
        name
        for name, each in found.items()
        if each["start_to_close_timeout"] > LONG and not each.get("heartbeat_timeout")
    ]
    assert without == []


@pytest.mark.parametrize("minutes", [-5, 0, 1, 60])
def test_what_watches_until_a_deadline_has_a_heartbeat(minutes):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert options.until(now + timedelta(minutes=minutes), now)["heartbeat_timeout"] == options.HEARTBEAT


def test_every_call_of_an_activity_goes_by_such_options_or_is_short():
    seen, bad = 0, []
    for name in MODULES:
        known = vars(importlib.import_module(name))
        for call in calls(name):
            seen += 1
            given = {each.arg: each.value for each in call.keywords}
            if None in given:
                continue  # a set of options, all of which are looked at above
            limit = given.get("start_to_close_timeout")
            short = limit is not None and eval(ast.unparse(limit), dict(known)) <= LONG
            if not short and "heartbeat_timeout" not in given:
                bad.append(f"{name}:{call.lineno}")
    assert seen > 30
    assert bad == []
