"""The commands on the pages are such as the code takes: starts, answers, searches, settings."""

import json
import re
import shlex
from pathlib import Path

import pytest

from gpu_runbooks.activities.names import REMEDIATION_QUEUE, incident_id
from gpu_runbooks.workers.command_line import main
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workflows.budget_orders import HaltOrder, LimitOrder, StormOrder
from gpu_runbooks.workflows.opening import LADDERS, read_cluster, read_start
from gpu_runbooks.workflows.operator import Abort, DrainOrder, Escalation, Pause, RungWord, Signed, Word
from gpu_runbooks.workflows.people import PeopleMessages
from gpu_runbooks.workflows.phases import Phase, Runbook
from gpu_runbooks.workflows.search_attributes import SEARCH_ATTRIBUTES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
TEXT = "\n".join(page.read_text() for page in PAGES)

WORDS = {
    "node": {
        "retry": Word,
        "resume": Word,
        "return_anyway": Word,
        "abort": Abort,
        "approve": RungWord,
        "reject": RungWord,
        "skip_rung": RungWord,
        "escalate_to": Escalation,
        "pause": Pause,
        "override_drain": DrainOrder,
    },
    "budget": {"halt": HaltOrder, "resume": Signed, "set_limit": LimitOrder},
    "fleet": {"halt": HaltOrder, "resume": Signed, "end_storm": StormOrder},
}
"""What a person may say, by the kind of workflow."""


def commands(beginning):
    """Each command in a block of a page that begins so, as the shell splits it."""
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", TEXT, re.DOTALL | re.MULTILINE)
    joined = re.sub(r"\\\n\s*", " ", "\n".join(block for language, block in blocks if not language))
    lines = [line.strip() for line in joined.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(beginning)]


def options(words):
    return {
        word.removeprefix("--"): value
        for word, value in zip(words, [*words[1:], ""], strict=True)
        if word.startswith("--")
    }


STARTS = commands("temporal workflow start")
UPDATES = commands("temporal workflow update execute")


@pytest.mark.parametrize("words", STARTS, ids=lambda words: words[words.index("--type") + 1])
def test_a_start_is_taken(words):
    given = options(words)
    start = read_start(json.loads(given["input"]), Runbook(given["type"]))
    assert given["workflow-id"] == incident_id("CLUSTER", start.node)
    assert read_cluster(given["workflow-id"], start.node) == "CLUSTER"
    assert given["task-queue"] == REMEDIATION_QUEUE
    assert "--fail-existing" in words


def test_each_runbook_has_a_command_and_a_row():
    page = (ROOT / "docs" / "manual-runbooks.md").read_text()
    assert {options(words)["type"] for words in STARTS} == {*Runbook}
    assert set(re.findall(r"^\| `(\w+)` \| ", page, re.MULTILINE)) >= {*Runbook}
    for ladder, _ in LADDERS.values():
        assert f"`{ladder}`" in page


def said(words):
    """Kind of workflow, name and input of an update."""
    given = options(words)
    return given["workflow-id"].partition("/")[0], given["name"], given["input"]


@pytest.mark.parametrize("words", UPDATES, ids=lambda words: " ".join(said(words)[:2]))
def test_what_is_said_is_taken(words):
    kind, name, given = said(words)
    assert WORDS[kind][name].model_validate_json(given).operator


def test_each_word_to_an_incident_has_a_row():
    handlers = {name for name in vars(PeopleMessages) if not name.startswith("_")}
    page = (ROOT / "docs" / "operating.md").read_text()
    assert handlers == {*WORDS["node"]}
    assert set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) >= handlers


def test_each_word_about_a_pool_or_the_fleet_has_a_command():
    named = {said(words)[:2] for words in UPDATES}
    assert named >= {(kind, name) for kind in ("budget", "fleet") for name in WORDS[kind]}


def test_searches_use_attributes_and_phases_that_exist():
    queries = re.findall(r"--query '([^']+)'", TEXT)
    assert queries
    named = set(re.findall(r"\bRunbook[A-Z]\w+", " ".join(queries)))
    assert named <= {attribute.name for attribute in SEARCH_ATTRIBUTES}
    assert set(re.findall(r'RunbookPhase = "([^"]+)"', TEXT)) <= {*Phase}


def test_settings_on_the_pages_exist():
    named = {name.removeprefix("GPU_RUNBOOKS_").lower() for name in re.findall(r"GPU_RUNBOOKS_[A-Z_]+", TEXT)}
    assert named
    assert named <= {*Settings.model_fields}


def test_the_command_has_the_subcommands_that_are_named(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    offered = capsys.readouterr().out
    blocks = re.findall(r"gpu-runbooks (policy|lemons)\b", TEXT)
    assert {*blocks} == {"policy", "lemons"}
    assert all(name in offered for name in blocks)
