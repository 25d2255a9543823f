"""The pages say what the code does: links, the example policy, the table of Xids, phases and outcomes."""

import re
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from policy.factories import SMALLEST

from gpu_runbooks.activities import names
from gpu_runbooks.activities.model.drain import BlockerReason, OverrideMethod
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.phases import Outcome, Phase
from gpu_runbooks.workflows.policy.drain import Drain, DrainRule
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.ladders import BUILT_IN_LADDERS, RESTART
from gpu_runbooks.workflows.policy.repair import Repair, Repeats

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
POLICY = (ROOT / "docs" / "policy.md").read_text()
OPERATING = (ROOT / "docs" / "operating.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_policies_in_the_text_are_valid():
    *parts, example = re.findall(r"```yaml\n(.*?)```", POLICY, re.DOTALL)
    assert load_policy(example).mode == "enforce"
    restart, protecting = (load_policy(SMALLEST + part) for part in parts)
    assert restart.faults[0].ladder == RESTART
    assert protecting.drain == load_policy(SMALLEST).drain  # it spells the default out


def test_every_field_of_a_drain_is_explained():
    named = set(re.findall(r"^\| `(?:drain|rules\[\])\.(\w+)", POLICY, re.MULTILINE))
    assert named >= {*Drain.model_fields, *DrainRule.model_fields}


def test_every_field_of_a_repair_is_explained():
    named = re.findall(r"^\| (`(?:repair|repeats)\.[^|]*) \|", POLICY, re.MULTILINE)
    words = set(re.findall(r"\w+", " ".join(named)))
    assert words >= {*Repair.model_fields, *Repeats.model_fields}


def test_every_built_in_ladder_and_rung_is_named():
    assert {f"`{name}`" for name in (*BUILT_IN_LADDERS, *RungName)} <= set(re.findall(r"`\w+`", POLICY))


def test_every_phase_and_outcome_is_explained():
    rows = "".join(re.findall(r"^\|([^|]+)\|", OPERATING, re.MULTILINE))
    named = set(re.findall(r"`([\w-]+)`", rows))
    assert named >= {*Phase, *Outcome} - {Phase.OPEN}  # nothing but the plan has been made in it


def test_every_reason_and_order_of_a_drain_is_explained():
    page = (ROOT / "docs" / "draining.md").read_text()
    rows = "".join(re.findall(r"^\|([^|]+)\|", page, re.MULTILINE))
    assert set(re.findall(r"`([\w-]+)`", rows)) == {*BlockerReason, *OverrideMethod}
    assert all(
        name in page for name in (names.CHECKPOINT_REQUESTED_ANNOTATION, names.CHECKPOINTED_ANNOTATION)
    )


def test_the_receiver_for_alertmanager_is_yaml():
    snippets = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "installing.md").read_text(), re.DOTALL)
    (receiver,) = yaml.safe_load(dedent(snippets[0]))["receivers"]
    assert receiver["webhook_configs"][0]["url"].endswith("/alertmanager")
