"""Reading policy files: what is accepted, and how each error is told."""

from datetime import timedelta

import pytest
from policy.factories import SMALLEST

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.policy.file import PolicyError, load_policy


def problems(text: str) -> list[str]:
    with pytest.raises(PolicyError) as error:
        load_policy(text)
    return [str(problem) for problem in error.value.problems]


def test_smallest_file():
    policy = load_policy(SMALLEST)
    assert policy.mode == "enforce"
    assert policy.operator_reminder == timedelta(hours=4)
    assert policy.ladder_names() == (
        *("block", "drain", "none", "notify", "reboot", "replace", "reset", "restart"),
    )
    assert policy.ladder("none") == ()
    assert [step.rung for step in policy.ladder("block") or ()] == [
        RungName.BLOCK,
        RungName.VALIDATE,
        RungName.RETURN,
    ]
    assert {step.rung: step.timeout for step in policy.ladder("reset") or ()} == {
        RungName.BLOCK: timedelta(minutes=2),
        RungName.DRAIN: timedelta(minutes=30),
        RungName.RESET_GPU: timedelta(minutes=10),
        RungName.REBOOT: timedelta(minutes=20),
        RungName.REPLACE: timedelta(minutes=90),
        RungName.VALIDATE: timedelta(minutes=15),
        RungName.RETURN: timedelta(minutes=2),
    }


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("30s", timedelta(seconds=30)),
        ("10m", timedelta(minutes=10)),
        ("1h30m", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("0s", timedelta(0)),
    ],
)
def test_durations(written, meant):
    rule = f"faults: [{{name: a, match: {{source: alert, code: A}}, ladder: reset, toleration: {written}}}]"
    assert load_policy(SMALLEST + rule).faults[0].toleration == meant


@pytest.mark.parametrize("written", ["30", "1.5h", "-5m", "5 m", "m", '""', "90:00", "30m1h", "٣s"])
def test_unreadable_durations(written):
    rule = f"faults: [{{name: a, match: {{source: alert, code: A}}, ladder: reset, toleration: {written}}}]"
    (problem,) = problems(SMALLEST + rule)
    assert problem.startswith("line 8: faults[0].toleration: write a duration with units, such as 30s")


def test_all_errors_are_told_at_once_with_line_field_and_what_would_be_right():
    text = """\
mode: enforced
pools:
- name: P5
  selector: {gpu: 8}
  budgets: {max_unavailable: 3}
ladders:
  quick:
  - {rung: drain, timeout: 60}
  - {rung: reset_gpus}
faults:
- {name: fallen, match: {source: xid, codes: [79, "79,94"]}, ladder: reset}
- {name: slow, match: {source: alert, code: Slow}, ladder: rebot, tolerations: 5m}
mode: observe
validation: {test_pod: {image: x}}
"""
    assert problems(text) == [
        "line 1: mode: it should be 'observe' or 'enforce'; not 'enforced'",
        "line 3: pools[0].budget: is missing. Budget of the pool, such as {max_unavailable: 1}.",
        (
            "line 3: pools[0].name: write a name of at most 63 small letters, digits, '-', '_' and '.' "
            "(it becomes the value of a taint or a part of a workflow id); not 'P5'"
        ),
        (
            "line 4: pools[0].selector.gpu: write text, in quotes where YAML takes it for something "
            "else; not 8"
        ),
        (
            "line 5: pools[0].budgets: unknown field: did you mean budget? known here: budget, mode, "
            "name, owners, repair, selector, windows"
        ),
        "line 8: ladders.quick[0].timeout: write a duration with units, such as 30s, 10m or 1h30m; not 60",
        (
            "line 9: ladders.quick[1].rung: it should be 'block', 'notify_owner', 'restart_workload', "
            "'drain', 'reset_gpu', 'reboot', 'replace', 'validate' or 'return'; not 'reset_gpus'"
        ),
        "line 11: faults[0].match: '79,94' is not an Xid: write one whole number, such as 79",
        (
            "line 12: faults[1].ladder: no ladder is named rebot, did you mean reboot? there are block, drain, none, notify, "
            "quick, reboot, replace, reset, restart"
        ),
        (
            "line 12: faults[1].tolerations: unknown field: did you mean toleration? known here: "
            "application, ladder, match, name, repeats, toleration"
        ),
        "line 13: mode: written twice, first on line 1: keep one",
        (
            "line 14: validation.test_pod.command: is missing. Command of that pod; it ends with 0 only "
            "if every GPU did its work."
        ),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: the file: it is empty"),
        ("# only a comment\n", "line 1: the file: it is empty"),
        ("- mode", "line 1: the file: write fields here, as in `key: value`"),
        ("mode: [\n", "line 2: the file: not YAML: while parsing a flow node"),
        ("mode: &m enforce\nintake: *m\n", "line 2: the file: not YAML: aliases are not read here"),
        ("mode: enforce\n? [a]\n: b\n", "line 2: the file: not YAML: a key must be a word"),
        ("mode: enforce\n--- \nmode: observe\n", "line 2: the file: not YAML: expected a single document"),
        ("mode: \x00", "line 1: the file: not YAML"),
    ],
)
def test_what_is_no_policy_at_all(text, problem):
    assert problems(text)[0].startswith(problem)


@pytest.mark.parametrize(
    ("rungs", "expected"),
    [
        ("[block, reboot, validate, return]", "reboot needs drain in its ladder"),
        ("[block, drain, reboot, return]", "a ladder needs validate"),
        ("[block, drain, reboot, validate]", "a ladder needs return"),
        ("[drain, reboot, validate, return]", "a ladder needs block"),
        (
            "[block, drain, reboot, reset_gpu, validate, return]",
            "reset_gpu cannot follow reboot",
        ),
        ("[block, drain, validate, reboot, return]", "reboot cannot follow validate"),
        ("[block, drain, drain, validate, return]", "drain stands twice"),
        ("[block, return]", "a ladder needs validate"),
        ("[]", "a ladder without rungs: name none"),
    ],
)
def test_ladder_that_could_do_harm(rungs, expected):
    steps = ", ".join(f"{{rung: {rung}}}" for rung in rungs.strip("[]").split(", ") if rung)
    (problem,) = problems(f"{SMALLEST}ladders: {{mine: [{steps}]}}")
    assert problem.startswith("line 8: ladders.mine")
    assert expected in problem


def test_ladder_of_unknown_faults_repairs_nothing():
    rungs = "[{rung: block}, {rung: drain}, {rung: reboot}, {rung: validate}, {rung: return}]"
    (problem,) = problems(f"{SMALLEST}ladders: {{block: {rungs}}}")
    assert "ladder block is what unknown faults get and may not hold reboot" in problem


def test_ladder_of_unknown_faults_restarts_nothing():
    (problem,) = problems(f"{SMALLEST}ladders: {{block: [{{rung: restart_workload}}]}}")
    assert "may not hold restart_workload" in problem


@pytest.mark.parametrize(
    "rungs",
    [
        "[{rung: block}, {rung: restart_workload}]",
        "[{rung: restart_workload}, {rung: validate}, {rung: return}]",
        "[{rung: restart_workload}, {rung: notify_owner}, {rung: return}]",
    ],
)
def test_rungs_for_workloads_stand_beside_none_for_the_node(rungs):
    (problem,) = problems(f"{SMALLEST}ladders: {{mine: {rungs}}}")
    assert problem.startswith("line 8: ladders.mine[")
    assert "restart_workload is for workloads and leaves the node" in problem


@pytest.mark.parametrize(
    ("rungs", "wrong"),
    [
        ("[{rung: restart_workload}, {rung: restart_workload}]", "restart_workload stands twice"),
        ("[{rung: restart_workload}, {rung: notify_owner}]", "notify_owner cannot follow restart_workload"),
    ],
)
def test_rungs_for_workloads_have_an_order(rungs, wrong):
    (problem,) = problems(f"{SMALLEST}ladders: {{mine: {rungs}}}")
    assert problem.startswith(f"line 8: ladders.mine[1].rung: {wrong}")


def test_ladder_restart_leaves_the_node():
    rungs = "[{rung: block}, {rung: validate}, {rung: return}]"
    (problem,) = problems(f"{SMALLEST}ladders: {{restart: {rungs}}}")
    assert problem == (
        "line 8: ladders.restart: ladder restart leaves the node and holds restart_workload: use another name"
    )


def test_restart_has_its_own_time():
    assert [(step.rung, step.timeout) for step in load_policy(SMALLEST).ladder("restart") or ()] == [
        (RungName.RESTART_WORKLOAD, timedelta(minutes=15))
    ]
    longer = load_policy(SMALLEST + "ladders: {restart: [{rung: restart_workload, timeout: 1h}]}")
    assert [step.timeout for step in longer.ladder("restart") or ()] == [timedelta(hours=1)]


def test_ladder_none_touches_nothing():
    (problem,) = problems(f"{SMALLEST}ladders: {{none: [{{rung: block}}]}}")
    assert "ladder none touches nothing" in problem


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{source: xid, code: 79}", "{source: xid, codes: [48, 79]}"),
        ("{source: xid, code: 79}", '{source: xid, code: "79.0"}'),
        ('{source: alert, code: "Fell Off"}', '{source: alert, code: " Fell Off"}'),
    ],
)
def test_overlapping_rules_name_each_other(first, second):
    text = f"""{SMALLEST}faults:
- {{name: one, match: {first}, ladder: reset}}
- {{name: two, match: {second}, ladder: reboot}}
"""
    (problem,) = problems(text)
    assert problem.startswith("line 10: faults[1].match.code")
    assert "is matched by rule one already: keep it in one place (the other is on line 9)" in problem


def test_same_code_of_another_source_is_another_fault():
    text = f"""{SMALLEST}faults:
- {{name: one, match: {{source: xid, code: 79}}, ladder: reset}}
- {{name: two, match: {{source: alert, code: 79}}, ladder: reboot}}
"""
    assert [rule.name for rule in load_policy(text).faults] == ["one", "two"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            "match: {source: xid, code: 13}, application: true, ladder: reset",
            "faults[0].ladder: an application's fault touches no node: drop `ladder: reset`, or write",
        ),
        ("match: {source: xid, code: 13}", "write the ladder to climb"),
        ("match: {source: xid}, ladder: reset", "write either `code: 79` or `codes: [79, 95]`"),
        ("match: {source: xid, code: 1, codes: [2]}, ladder: reset", "write either `code: 79` or"),
        ("match: {source: xid, code: true}, ladder: reset", "write a code, such as 79"),
    ],
)
def test_contradictory_rule(rule, expected):
    (problem,) = problems(f"{SMALLEST}faults: [{{name: a, {rule}}}]")
    assert expected in problem


@pytest.mark.parametrize("application", ["true", "false"])
@pytest.mark.parametrize("ladder", ["restart", "patient"])
def test_rule_that_restarts_the_workload(ladder, application):
    (rule,) = load_policy(
        f"""{SMALLEST}ladders: {{patient: [{{rung: restart_workload, timeout: 1h}}]}}
faults:
- {{name: a, match: {{source: xid, code: 13}}, application: {application}, ladder: {ladder}}}
"""
    ).faults
    assert (rule.ladder, rule.application) == (ladder, application == "true")


def test_words_that_older_yaml_takes_for_booleans_stay_words():
    rule = "faults: [{name: a, match: {source: alert, code: off}, ladder: reset}]"
    assert load_policy(SMALLEST + rule).faults[0].match.written_codes() == ("off",)


def test_pools_that_share_nodes():
    text = SMALLEST.replace(
        "validation:",
        """\
- name: inference
  selector: {gpu-runbooks.dev/pool: p5, team: search}
  budget: {max_unavailable: 1}
validation:""",
    )
    (problem,) = problems(text)
    assert problem.startswith("line 7: pools[1].selector: every node of pool inference is in pool p5 too")


def test_digest_follows_the_content_and_not_the_layout():
    digest = load_policy(SMALLEST).digest
    commented = "# reviewed\n" + SMALLEST.replace("{max_unavailable: 3}", "\n    max_unavailable: 3")
    assert load_policy(commented).digest == digest
    assert load_policy(SMALLEST + "operator_reminder: 240m").digest == digest
    assert load_policy(SMALLEST.replace("3}", "2}")).digest != digest
    assert len(digest) == 16
