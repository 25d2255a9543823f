"""What workflows may not touch: clients of the outside, and whatever a replay answers otherwise."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

OUTSIDE = {
    "kubernetes",
    "boto3",
    "botocore",
    "requests",
    "urllib3",
    "httpx",
    "aiohttp",
    "structlog",
    "loguru",
}

IMPORT_ALL = """
import importlib, json, pkgutil, sys
from gpu_runbooks import workflows
for each in pkgutil.walk_packages(workflows.__path__, "gpu_runbooks.workflows."):
    importlib.import_module(each.name)
print(json.dumps({name: getattr(each, "__file__", None) for name, each in sys.modules.items()}))
"""

NEVER = OUTSIDE | {
    *("random", "secrets", "uuid", "time"),
    *("os", "io", "pathlib", "socket", "subprocess", "threading"),
}
"""Modules that no workflow imports: chance and the environment. No sandbox looks for them."""

TABLES = {"gpu_runbooks.workflows.policy.rows", "gpu_runbooks.workflows.policy.tables"}
"""Read the facts that are part of the package, as it is imported."""

NEVER_CALLED = {"open", "input", "id", "hash", "exec", "eval", "__import__"}
"""Built-in functions that read the outside, or what differs from process to process."""

READS_CLOCK = {"now", "utcnow", "today"}
"""Methods, under whatever name their class was imported; `workflow.now` is the time of the history."""

CLOCKS = {f"time.{each}" for each in ("time", "time_ns", "monotonic", "perf_counter", "sleep")}


@pytest.fixture(scope="module")
def loaded() -> dict[str, str | None]:
    """What a fresh interpreter has loaded with all modules of workflows, by name: the file."""
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def offences(source: str, never: set[str]) -> list[str]:
    """Clocks that are read and modules that are imported, with their lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        match node:
            case ast.Import():
                names = [each.name for each in node.names]
            case ast.ImportFrom(module=str(module), level=0):
                names = [module]
            case ast.Name(id=name, ctx=ast.Load()) if name in NEVER_CALLED:
                found.append(f"line {node.lineno}: {name}")
            case ast.Attribute(value=ast.Name(id="workflow")):
                pass
            case ast.Attribute(attr=attr) if attr in READS_CLOCK or ast.unparse(node) in CLOCKS:
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
        found += [f"line {node.lineno}: {each}" for each in names if each.partition(".")[0] in never]
    return found


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import datetime\nx = datetime.now(UTC)",
        "import datetime\nx = datetime.datetime.utcnow()",
        "from datetime import datetime as dt\nx = dt.now()",
        "from datetime import date\nx = date.today()",
        "from time import time",
        "from pathlib import Path",
        "from random import random",
        "import os.path",
        "text = open('policy.yaml').read()",
        "order = sorted(names, key=hash)",
        "def inside():\n    import uuid",
        "def inside():\n    import boto3",
    ],
)
def test_the_scan_sees(source):
    assert len(offences(source, NEVER)) == 1


def test_workflows_load_no_client_of_the_outside(loaded):
    assert {name.partition(".")[0] for name in loaded} & OUTSIDE == set()
    assert "gpu_runbooks.workflows.node_remediation" in loaded


def test_workflows_read_no_clock_no_chance_and_no_environment(loaded):
    ours = {name: file for name, file in loaded.items() if name.startswith("gpu_runbooks.workflows") and file}
    found = {
        name: offences(Path(file).read_text(), NEVER - {"pathlib"} if name in TABLES else NEVER)
        for name, file in ours.items()
    }
    assert len(ours) > 50
    assert {name: each for name, each in found.items() if each} == {}


def test_what_workflows_share_with_activities_reads_none_either(loaded):
    """The models and words."""
    shared = {
        name: file for name, file in loaded.items() if name.startswith("gpu_runbooks.activities") and file
    }
    found = {
        name: offences(Path(file).read_text(), {"random", "secrets", "os"}) for name, file in shared.items()
    }
    assert {name: each for name, each in found.items() if each} == {}
