"""Reading policy files: what is accepted, and how each error is told."""

from datetime import timedelta

import pytest
from policy.factories import SMALLEST, problems

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.policy.file import load_policy


def test_smallest_file():
    policy = load_policy(SMALLEST)
    assert policy.mode == "enforce"
    assert policy.operator.reminder == timedelta(hours=4)
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
        (
            "line 3: pools[0].budget: is missing. Budget of the pool, such as {max_unavailable: 1} or "
            "{percent: 10}."
        ),
        (
            "line 3: pools[0].name: write a name of at most 63 small letters, digits, '-', '_' and '.' "
            "(it becomes the value of a taint or a part of a workflow id); not 'P5'"
        ),
        (
            "line 4: pools[0].selector.gpu: write text, in quotes where YAML takes it for something "
            "else; not 8"
        ),
        (
            "line 5: pools[0].budgets: unknown field: did you mean budget? known here: budget, freezes, "
            "mode, name, owners, probation, repair, selector, windows"
        ),
        "line 8: ladders.quick[0].timeout: write a duration with units, such as 30s, 10m or 1h30m; not 60",
        (
            "line 9: ladders.quick[1].rung: it should be 'block', 'notify_owner', 'restart_workload', "
            "'drain', 'reset_gpu', 'reboot', 'replace', 'validate' or 'return'; not 'reset_gpus'"
        ),
        "line 11: faults[0].match: '79,94' is not an Xid: write one whole number, such as 79",
        (
            "line 12: faults[1].ladder: no ladder is named rebot, did you mean reboot? there are block, "
            "drain, none, notify, quick, reboot, replace, reset, restart"
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


def test_digest_follows_the_content_and_not_the_layout():
    digest = load_policy(SMALLEST).digest
    commented = "# reviewed\n" + SMALLEST.replace("{max_unavailable: 3}", "\n    max_unavailable: 3")
    assert load_policy(commented).digest == digest
    assert load_policy(SMALLEST + "operator: {reminder: 240m}").digest == digest
    assert load_policy(SMALLEST.replace("3}", "2}")).digest != digest
    assert len(digest) == 16


def test_field_of_an_earlier_version_says_where_it_went():
    (problem,) = problems(SMALLEST + "operator_reminder: 1h")
    assert problem == "line 8: operator_reminder: has moved: write it as `operator: {reminder: 4h}`"


def test_a_pool_may_have_a_probation_of_its_own():
    policy = load_policy(SMALLEST.replace("max_unavailable: 3}", "max_unavailable: 3}\n  probation: 5m"))
    assert policy.probation == timedelta(minutes=30)
    assert policy.probation_of(policy.pools[0]) == timedelta(minutes=5)
