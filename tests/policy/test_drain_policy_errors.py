"""How each error in the section `drain` of the policy file is told, and how large it may be."""

import pytest
from policy.factories import DRAINED_FAULTS, P5, SMALLEST, fault, node

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workflows.policy.file import PolicyError, load_policy
from gpu_runbooks.workflows.policy.planning import plan


def problems(drain: str) -> list[str]:
    with pytest.raises(PolicyError) as error:
        load_policy(f"{SMALLEST}{DRAINED_FAULTS}{drain}")
    return [str(problem) for problem in error.value.problems]


WAIT = "method: wait_for_completion, deadline: 1h"


ASK = "method: checkpoint_then_evict, deadline: 1h"


@pytest.mark.parametrize(
    ("rule", "place", "expected"),
    [
        ("{method: evict}", "", "is missing. Name of the rule"),
        ("{name: A, method: evict}", "name", "write a name of at most 63 small letters"),
        ("{name: a}", "method", "is missing. How the pods leave: evict, wait_for_completion or checkpoint"),
        (
            "{name: a, method: delete}",
            "method",
            "by the update override_drain of its incident; write evict, wait",
        ),
        (
            "{name: a, method: kill}",
            "method",
            "it should be 'evict', 'wait_for_completion' or 'checkpoint_th",
        ),
        (
            "{name: a, method: wait_for_completion}",
            "deadline",
            "wait_for_completion needs a deadline, such as 20m",
        ),
        ("{name: a, method: checkpoint_then_evict}", "deadline", "checkpoint_then_evict needs a deadline"),
        ("{name: a, method: evict, deadline: 20m}", "deadline", "evict does not wait: drop the deadline"),
        ("{name: a, method: wait_for_completion, deadline: 0s}", "deadline", "at least 1s and at most 14d"),
        ("{name: a, method: wait_for_completion, deadline: 15d}", "deadline", "at least 1s and at most 14d"),
        ("{name: a, method: wait_for_completion, deadline: 20}", "deadline", "write a duration with units"),
        (
            f"{{name: a, {WAIT}, checkpoint: {{port: 1}}}}",
            "checkpoint",
            "wait_for_completion asks for no checkp",
        ),
        (
            "{name: a, method: evict, checkpoint: {port: 1}}",
            "checkpoint",
            "evict asks for no checkpoint: drop it",
        ),
        (
            f"{{name: a, {ASK}, checkpoint: {{}}}}",
            "checkpoint.port",
            "is missing. Port of the pod, such as 8080.",
        ),
        (
            f"{{name: a, {ASK}, checkpoint: {{port: 0}}}}",
            "checkpoint.port",
            "greater than or equal to 1; not 0",
        ),
        (
            f"{{name: a, {ASK}, checkpoint: {{port: 65536}}}}",
            "checkpoint.port",
            "less than or equal to 65535",
        ),
        (
            f'{{name: a, {ASK}, checkpoint: {{port: "80"}}}}',
            "checkpoint.port",
            "it should be a valid integer",
        ),
        (f"{{name: a, {ASK}, checkpoint: {{port: 1, path: save}}}}", "checkpoint.path", "begins with /"),
        (f'{{name: a, {ASK}, checkpoint: {{port: 1, path: "/a b"}}}}', "checkpoint.path", "has no spaces"),
        (f"{{name: a, {ASK}, checkpoint: {{port: 1, url: /}}}}", "checkpoint.url", "known here: path, port"),
        (f"{{name: a, {ASK}, checkpoint: yes}}", "checkpoint", "write fields here"),
        (
            "{name: a, method: evict, workloads: [train]}",
            "workloads[0]",
            "it should be 'training', 'inference', ",
        ),
        ("{name: a, method: evict, workloads: training}", "workloads", "write a list here, as in `- item`"),
        ("{name: a, method: evict, workloads: []}", "workloads", "write at least one entry"),
        ("{name: a, method: evict, namespaces: [Team_A]}", "namespaces[0]", "no namespace has such a name"),
        ('{name: a, method: evict, namespaces: [""]}', "namespaces[0]", "no namespace has such a name"),
        ("{name: a, method: evict, namespace: [a]}", "namespace", "unknown field: did you mean namespaces?"),
        ("{name: a, method: evict, faults: []}", "faults", "write at least one entry"),
        (
            "{name: a, method: evict, faults: [fell-of]}",
            "faults[0]",
            "fell-off-the-bus, links-missing, and built in xid-<code>, sxid-<code>, dcgm-<code>",
        ),
        (
            "{name: a, method: evict, faults: [condition-DiskPressure]}",
            "faults[0]",
            "no rule for faults is named condition-DiskPressure",
        ),
        ("{name: a, method: evict, faults: [xid-048]}", "faults[0]", "no rule for faults is named xid-048"),
        (
            "{name: a, method: evict, faults: [manual-unknown]}",
            "faults[0]",
            "no rule for faults is named manual-",
        ),
        (
            "{name: a, method: evict, faults: [manual, xid-79]}",
            "faults[1]",
            "rule fell-off-the-bus is for that fault: write fell-off-the-bus (the other is on line 9)",
        ),
    ],
)
def test_errors_of_a_rule(rule, place, expected):
    (problem,) = problems(f"drain:\n  rules:\n  - {rule}\n")
    field = f"drain.rules[0].{place}" if place else "drain.rules[0].name"
    assert problem.startswith(f"line 13: {field}: ")
    assert expected in problem


@pytest.mark.parametrize(
    ("section", "place", "expected"),
    [
        (
            "workloads: [{workload: training}]",
            "workloads[0]",
            "it selects no pod: write namespaces, labels or",
        ),
        (
            "workloads: [{labels: {a: b}}]",
            "workloads[0].workload",
            "is missing. What they are: training, infer",
        ),
        ("workloads: [{workload: training, labels: {}}]", "workloads[0].labels", "write at least one entry"),
        (
            "workloads: [{workload: training, labels: {a b: c}}]",
            "workloads[0].labels.a b",
            "not the name of a label or annotation",
        ),
        (
            "workloads: [{workload: training, labels: {a: b c}}]",
            "workloads[0].labels.a",
            "no label has this value",
        ),
        (
            "workloads: [{workload: training, labels: {a: 1}}]",
            "workloads[0].labels.a",
            "write text, in quotes",
        ),
        (
            "workloads: [{workload: training, owners: [job]}]",
            "workloads[0].owners[0]",
            "write a kind as its man",
        ),
        (
            "workloads: [{workload: training, owners: [ReplicaSet]}]",
            "workloads[0].owners[0]",
            "a ReplicaSet counts as its Deployment: write Deployment",
        ),
        ("essential: [{}]", "essential[0]", "it selects no pod"),
        (
            "essential: [{workload: training, namespaces: [a]}]",
            "essential[0].workload",
            "known here: labels, namespaces, owners",
        ),
        (
            'essential: [{namespaces: [a, "*"]}]',
            "essential[0]",
            "every pod would be essential: no drain would end",
        ),
        ("protecting: {a/b/c: x}", "protecting.a/b/c", "not the name of a label or annotation"),
        ("protecting: {-a: x}", "protecting.-a", "not the name of a label or annotation"),
        ("protecting: {a: []}", "protecting.a", "write at least one entry"),
        ("protecting: {a: 1}", "protecting.a[0]", "write text, in quotes"),
        ("protecting: [a]", "protecting", "write fields here"),
        ("bare_pods: ignore", "bare_pods", "it should be 'report' or 'block'"),
        ("empty_dir: delete", "empty_dir", "it should be 'report' or 'block'"),
        ("finalizers: strip", "finalizers", "it should be 'wait' or 'accept_when_stopped'"),
        ("silent_node: 120", "silent_node", "write a duration with units"),
        ("rule: []", "rule", "unknown field: did you mean rules?"),
    ],
)
def test_errors_of_the_other_fields(section, place, expected):
    (problem,) = problems(f"drain:\n  {section}\n")
    assert problem.startswith(f"line 12: drain.{place}: ")
    assert expected in problem


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("method: evict", "method: evict"),
        ("method: evict", f"{WAIT}, workloads: [training], namespaces: [a], faults: [manual]"),
        (f"workloads: [training, other], {WAIT}", "workloads: [other], method: evict"),
        ("workloads: [training, inference, infrastructure, other], method: evict", "method: evict"),
        ("namespaces: [team-*], method: evict", "namespaces: [team-a, team-b-*], method: evict"),
        ("namespaces: [team-*], method: evict", "namespaces: ['team-?'], method: evict"),
        ("namespaces: ['*'], method: evict", "workloads: [training], method: evict"),
        ("namespaces: ['team-[ab]'], method: evict", "namespaces: [team-b], method: evict"),
        ("faults: [manual, xid-48], method: evict", "faults: [xid-48], method: evict"),
    ],
)
def test_rule_that_never_decides(first, second):
    (problem,) = problems(f"drain:\n  rules:\n  - {{name: a, {first}}}\n  - {{name: b, {second}}}\n")
    assert problem == (
        "line 14: drain.rules[1]: rule b never decides: rule a before it fits all its pods; put the narrower "
        "rule first (the other is on line 13)"
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("workloads: [training]", "workloads: [training, inference]"),
        ("namespaces: [team-a]", "namespaces: [team-*]"),
        ("namespaces: ['team-?']", "namespaces: [team-*]"),
        ("namespaces: ['*a*']", "namespaces: ['[ab]']"),
        ("namespaces: [team-*]", "namespaces: [team-a, search]"),
        ("faults: [manual]", "workloads: [training]"),
        ("workloads: [training], namespaces: [a]", "workloads: [training], namespaces: [b]"),
    ],
)
def test_rules_that_both_decide(first, second):
    text = f"drain: {{rules: [{{name: a, method: evict, {first}}}, {{name: b, method: evict, {second}}}]}}"
    assert len(load_policy(SMALLEST + text).drain.rules) == 2


def test_second_rule_of_a_name():
    (problem,) = problems(
        """\
drain:
  rules:
  - {name: a, workloads: [training], method: evict}
  - {name: a, workloads: [other], method: evict}
"""
    )
    assert problem == "line 14: drain.rules[1].name: a second rule named a (the other is on line 13)"


def test_workload_that_is_told_apart_twice():
    (problem,) = problems(
        """\
drain:
  workloads:
  - {workload: training, owners: [Job, SlurmJob]}
  - {workload: inference, owners: [Job], labels: {a: b}}
"""
    )
    assert problem == (
        "line 14: drain.workloads[1]: it never decides: an earlier entry takes all its pods for training "
        "(the other is on line 13)"
    )


def test_errors_in_other_parts_hide_none_here():
    with pytest.raises(PolicyError) as error:
        load_policy(
            f"""{SMALLEST}faults: [{{name: broken, match: {{source: xid}}, ladder: reset}}]
drain:
  rules:
  - {{name: a, faults: [broken, gone], method: evict}}
  - {{name: b, method: wait_for_completion}}
"""
        )
    assert [problem.field for problem in error.value.problems] == [
        "faults[0].match",
        "drain.rules[0].faults[1]",
        "drain.rules[1].deadline",
    ]


@pytest.mark.parametrize(
    ("section", "place"),
    [
        (
            "rules: [" + ", ".join(f"{{name: r{n}, namespaces: [n{n}], method: evict}}" for n in range(31)),
            "rules",
        ),
        (
            "workloads: [" + ", ".join(f"{{workload: other, namespaces: [n{n}]}}" for n in range(31)),
            "workloads",
        ),
        ("essential: [" + ", ".join(f"{{namespaces: [n{n}]}}" for n in range(31)), "essential"),
        ("rules: [{name: a, method: evict, faults: [" + ", ".join(["manual"] * 31) + "]}", "rules[0].faults"),
    ],
)
def test_too_many_entries(section, place):
    (problem,) = problems(f"drain:\n  {section}]\n")
    assert problem == f"line 12: drain.{place}: write at most 30; there are 31"


def test_section_that_no_plan_could_carry():
    names = ", ".join(f"{'n' * 55}-{n}" for n in range(30))
    (problem,) = problems(
        "drain:\n  workloads:\n"
        + "".join(f"  - {{workload: other, labels: {{l: v{n}}}, namespaces: [{names}]}}\n" for n in range(10))
    )
    assert problem.startswith("line 11: drain: it takes ")
    assert "travels with every fault: at most 8192; write patterns" in problem


def test_bytes_of_the_section_travel_and_no_characters():
    values = ", ".join(["é" * 200] * 10)
    section = "drain: {protecting: {example.com/a: [%s], example.com/b: [%s]}}\n"
    (problem,) = problems(section % (values, values))
    assert problem.startswith("line 11: drain: it takes 8")
    assert load_policy(SMALLEST + section.replace("%s", values.replace("é", "e")))


def test_largest_plan_stays_small():
    """A payload holds 16 KiB, and a plan travels with every report."""
    text = "drain:\n  rules:\n"
    for number in range(30):
        text += f"  - {{name: {'r' * 20}-{number}, namespaces: [team-{number}], {ASK}}}\n"
    text += "  workloads:\n"
    for number in range(30):
        text += f"  - {{workload: training, owners: [SlurmJob{number}]}}\n"
    assert (
        len(
            plan(
                load_policy(SMALLEST + text), fault(FaultSource.XID, "119"), node(), P5, "gpu-runbooks"
            ).model_dump_json()
        )
        < 12 * 1024
    )
