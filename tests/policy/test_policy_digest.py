"""What the digest of a policy covers, and how large a plan of a large policy is."""

import pytest
from policy.factories import P5, SMALLEST, fault, node, problems

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workflows.policy import tables
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.planning import plan

LADDER = "[{rung: block}, {rung: drain%s}, {rung: reboot}, {rung: validate}, {rung: return}]"


@pytest.mark.parametrize(
    "section",
    [
        "intake: {max_age: 1h}",
        "intake: {job_nodes: 3}",
        "hardware: {p5.48xlarge: {efa_interfaces: 16}}",
        f"ladders: {{reboot: {LADDER % ', approval: true'}}}",
        "faults: [{name: a, match: {source: xid, code: 13}, application: true, repeats: {ladder: reset}}]",
        "faults: [{name: a, match: {source: condition, code: Ready, reasons: [A]}, ladder: reset}]",
    ],
)
def test_it_follows_every_section(section):
    assert load_policy(SMALLEST + section).digest != load_policy(SMALLEST).digest


def test_it_follows_the_built_in_tables(tmp_path, monkeypatch):
    before = load_policy(SMALLEST).digest
    tables.built_in_tables.cache_clear()
    monkeypatch.setattr(tables, "BESIDE", tmp_path)
    (tmp_path / "xids.csv").write_text("code\n79\n")
    try:
        after = load_policy(SMALLEST).digest
        assert {*tables.built_in_tables()} == {"xids.csv", "instance_types.csv", "repair_policies.csv"}
    finally:
        tables.built_in_tables.cache_clear()
    assert after != before


def test_tables_of_this_folder_all_count():
    assert {*tables.built_in_tables()} >= {path.name for path in tables.BESIDE.glob("*.csv")} != set()


def test_largest_plan_stays_well_under_the_limit():
    windows = ", ".join(
        f"{{days: [mon, tue, wed, thu, fri], begins: {hour}:00, lasts: 1h, "
        "timezone: America/Argentina/ComodRivadavia}"
        for hour in range(14)
    )
    rungs = ("block", "drain", "reset_gpu", "reboot", "replace", "validate", "return")
    ladder = ", ".join(f"{{rung: {rung}, timeout: 1h30m}}" for rung in rungs)
    rules = ", ".join(
        f"{{name: rule-{'x' * 50}-{number}, namespaces: [{'n' * 50}-{number}], method: evict}}"
        for number in range(10, 30)
    )
    text = (
        SMALLEST.replace("validation:", f"  owners: {'o' * 200}\n  windows: [{windows}]\nvalidation:")
        .replace('"registry.example/gpu-test:1"', "r" * 500)
        .replace("[gpu-test, --all]", f"[{', '.join(['c' * 100] * 10)}]")
    )
    text += f"ladders: {{reset: [{ladder}]}}\ndrain: {{rules: [{rules}]}}\n"
    (problem,) = problems(text.replace("c" * 100, "c" * 450))
    assert problem.startswith(
        "line 1: the file: selector, owners, windows and freezes of pool p5, drain and validation"
    )
    assert problem.endswith("travel with every fault: at most 12288; shorten the longest of them")
    made = plan(load_policy(text), fault(FaultSource.XID, "119"), node(), P5, "gpu-runbooks")
    assert len(made.windows) == 14
    assert len(made.model_dump_json()) < 12 * 1024
