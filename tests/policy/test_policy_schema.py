"""The JSON Schema for editors: current, of one mind with the reader, and telling of every field."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from policy.factories import SMALLEST

from gpu_runbooks.workflows.policy.file import PolicyError, load_policy
from gpu_runbooks.workflows.policy.schema import policy_schema
from gpu_runbooks.workflows.policy.yaml_lines import read_yaml

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "deploy" / "policy.schema.json"
EXAMPLE = ROOT / "deploy" / "manifests" / "policy.yaml"
DOCUMENTED = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "policy.md").read_text(), re.DOTALL)[-1]


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    return Draft202012Validator(policy_schema())


def errors(schema: Draft202012Validator, text: str) -> list[str]:
    return [error.json_path for error in schema.iter_errors(read_yaml(text).content)]


def test_published_one_is_current():
    assert json.loads(PUBLISHED.read_text()) == policy_schema(), (
        f"write it anew: gpu-runbooks policy schema > {PUBLISHED.relative_to(ROOT)}"
    )


def test_it_is_a_schema_that_needs_nothing_fetched():
    schema = policy_schema()
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == "urn:gpu-runbooks:policy"
    assert set(re.findall(r"https?://[^\"]+", json.dumps(schema))) == {schema["$schema"]}


def test_editors_of_the_example_find_it():
    (name,) = re.findall(r"# yaml-language-server: \$schema=(\S+)", EXAMPLE.read_text())
    assert (EXAMPLE.parent / name).resolve() == PUBLISHED


@pytest.mark.parametrize(
    "text",
    [
        SMALLEST,
        EXAMPLE.read_text(),
        (ROOT / "deploy" / "testbed" / "policy.yaml").read_text(),
        (ROOT / "deploy" / "testbed" / "bench_policy.yaml").read_text(),
        DOCUMENTED,
    ],
    ids=["smallest", "example", "testbed", "benchmark", "documented"],
)
def test_policies_that_can_be_used_are_valid(schema, text):
    assert load_policy(text)
    assert errors(schema, text) == []


@pytest.mark.parametrize(
    ("broken", "path"),
    [
        ("mode: enforced", "$.mode"),
        ("operator: {reminder: 20}", "$.operator.reminder"),
        ("probation: 1.5h", "$.probation"),
        ("operator_remindr: 4h", "$"),
        ("intake: {max_age: 6}", "$.intake.max_age"),
        ("intake: {job_nodes: 1}", "$.intake.job_nodes"),
        ("ladders: {mine: [{rung: rebot}]}", "$.ladders.mine[0].rung"),
        ("ladders: {mine: [{rung: reboot, approval: yes}]}", "$.ladders.mine[0].approval"),
        ("ladders: {mine: [{rung: reboot, mode: enforce}]}", "$.ladders.mine[0].mode"),
        ("ladders: {Mine: [{rung: block}]}", "$.ladders"),
        ("faults: [{name: a, match: {source: xid}, ladder: reset}]", "$.faults[0].match"),
        (
            "faults: [{name: a, match: {source: xid, code: 79, codes: [79]}, ladder: reset}]",
            "$.faults[0].match",
        ),
        ("faults: [{name: a, match: {source: xid, code: 79}}]", "$.faults[0]"),
        ("faults: [{name: A, match: {source: xid, code: 79}, ladder: reset}]", "$.faults[0].name"),
        (
            "faults: [{name: a, match: {source: condition, code: A, status: Bad}, ladder: reset}]",
            "$.faults[0].match.status",
        ),
        ("hardware: {p5.48xlarge: {gpus: 0}}", "$.hardware['p5.48xlarge'].gpus"),
        ("hardware: {P5: {gpus: 8}}", "$.hardware"),
        ("repair: {repeats: {resets: 0}}", "$.repair.repeats.resets"),
        ("drain: {protecting: {a/b: []}}", "$.drain.protecting['a/b']"),
        ("drain: {bare_pods: keep}", "$.drain.bare_pods"),
    ],
)
def test_what_a_single_field_shows_is_seen_by_both(schema, broken, path):
    text = (
        SMALLEST.replace("mode: enforce\n", "") + broken if broken.startswith("mode") else SMALLEST + broken
    )
    assert errors(schema, text) == [path]
    with pytest.raises(PolicyError):
        load_policy(text)


@pytest.mark.parametrize(
    "window", ["begins: 24:00, lasts: 1h", "begins: 1:00", "begins: 1:00, lasts: 1h, days: [mo]"]
)
def test_windows_are_seen_by_both(schema, window):
    text = SMALLEST.replace("validation:", f"  windows: [{{{window}}}]\nvalidation:")
    (path,) = errors(schema, text)
    assert path.startswith("$.pools[0].windows[0]")
    with pytest.raises(PolicyError):
        load_policy(text)


def sections(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        "Policy": schema,
        **{name: each for name, each in schema["$defs"].items() if "properties" in each},
    }


def test_every_field_is_described_and_none_is_free():
    for name, section in sections(policy_schema()).items():
        assert section["additionalProperties"] is False, name
        assert [field for field, each in section["properties"].items() if "description" not in each] == [], (
            name
        )


def test_defaults_are_as_a_person_writes_them():
    schema = policy_schema()
    assert schema["$defs"]["Operator"]["properties"]["reminder"]["default"] == "4h"
    assert schema["$defs"]["Recurrence"]["properties"]["within"]["default"] == "1d"
    assert schema["$defs"]["Intake"]["properties"]["settle"]["default"] == "3s"


def test_every_field_is_explained_in_the_text():
    text = (ROOT / "docs" / "policy.md").read_text()
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", text))))
    written = {field for section in sections(policy_schema()).values() for field in section["properties"]}
    assert written - words == set()


def test_the_example_in_the_text_has_every_field():
    def fields(content: Any) -> set[str]:
        if isinstance(content, list):
            return set().union(*map(fields, content))
        if isinstance(content, dict):
            return set(content).union(*map(fields, content.values()))
        return set()

    written = {field for section in sections(policy_schema()).values() for field in section["properties"]}
    assert written - fields(read_yaml(DOCUMENTED).content) == set()
