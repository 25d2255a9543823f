"""The section `drain` of the policy file: what a drain is told for a fault."""

from datetime import timedelta

import pytest
from policy.factories import DRAINED_FAULTS, P5, SMALLEST, fault, node

from gpu_runbooks.activities.model.drain import (
    PROTECTING,
    TEMPORAL,
    DrainMethod,
    DrainPolicy,
    PodRule,
    PodSelector,
    Workload,
    WorkloadSelector,
)
from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workflows.policy.drain import longest_wait
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.planning import plan

FULL = """\
drain:
  rules:
  - name: training-checkpoints
    workloads: [training]
    namespaces: [team-*, search]
    faults: [fell-off-the-bus, xid-48]
    method: checkpoint_then_evict
    deadline: 20m
    checkpoint: {port: 8080, path: /save}
  - name: by-annotation
    workloads: [training]
    faults: [manual]
    method: checkpoint_then_evict
    deadline: 10m
  - name: notebooks
    namespaces: [notebooks]
    method: wait_for_completion
    deadline: 1h30m
  - {name: replicas, workloads: [inference], method: evict}
  workloads:
  - workload: training
    labels: {team: research, gang: true}
    owners: [SlurmJob]
  - workload: infrastructure
    namespaces: [kube-*]
  protecting:
    karpenter.sh/do-not-disrupt: true
    example.com/keep: ["TRUE", yes]
  essential:
  - namespaces: [temporal-db]
  - labels: {app.kubernetes.io/name: postgres}
  bare_pods: block
  empty_dir: block
  finalizers: accept_when_stopped
  silent_node: 5m
"""


def drain_for(text, source=FaultSource.XID, code="48") -> DrainPolicy:
    return plan(load_policy(text), fault(source, code), node(), P5, "gpu-runbooks").drain


@pytest.mark.parametrize("section", ["", "drain: {}", "drain: {rules: []}"])
def test_without_a_section_pods_are_evicted(section):
    assert drain_for(SMALLEST + section) == DrainPolicy()


def test_everything_written_reaches_the_drain():
    drain = drain_for(SMALLEST + DRAINED_FAULTS + FULL)
    assert drain.rules == (
        PodRule(
            name="training-checkpoints",
            namespaces=("team-*", "search"),
            workloads=(Workload.TRAINING,),
            method=DrainMethod.CHECKPOINT_THEN_EVICT,
            deadline=timedelta(minutes=20),
            checkpoint_port=8080,
            checkpoint_path="/save",
        ),
        PodRule(
            name="notebooks",
            namespaces=("notebooks",),
            method=DrainMethod.WAIT_FOR_COMPLETION,
            deadline=timedelta(minutes=90),
        ),
        PodRule(name="replicas", workloads=(Workload.INFERENCE,), method=DrainMethod.EVICT),
    )
    assert drain.workloads == (
        WorkloadSelector(
            workload=Workload.TRAINING, labels={"team": "research", "gang": "true"}, owners=("SlurmJob",)
        ),
        WorkloadSelector(workload=Workload.INFRASTRUCTURE, namespaces=("kube-*",)),
    )
    assert drain.protecting == {
        "karpenter.sh/do-not-disrupt": ("true",),
        "example.com/keep": ("true", "yes"),
    }
    assert drain.essential == (
        *TEMPORAL,
        PodSelector(namespaces=("temporal-db",)),
        PodSelector(labels={"app.kubernetes.io/name": "postgres"}),
    )
    assert (drain.bare_pods, drain.empty_dir, drain.finalizers) == ("block", "block", "accept_when_stopped")
    assert drain.silent_node == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("source", "code", "rules"),
    [
        (FaultSource.XID, "79", ["training-checkpoints", "notebooks", "replicas"]),
        (FaultSource.XID, "48", ["training-checkpoints", "notebooks", "replicas"]),
        (FaultSource.XID, "95", ["notebooks", "replicas"]),
        (FaultSource.ALERT, "LinksMissing", ["notebooks", "replicas"]),
        (FaultSource.MANUAL, "manual", ["by-annotation", "notebooks", "replicas"]),
    ],
)
def test_rules_count_for_the_faults_that_they_name(source, code, rules):
    drain = drain_for(SMALLEST + DRAINED_FAULTS + FULL, source, code)
    assert [rule.name for rule in drain.rules] == rules


def test_a_ladder_that_a_person_names_changes_no_pods_rights():
    policy = load_policy(SMALLEST + DRAINED_FAULTS + FULL)
    made = plan(policy, fault(FaultSource.XID, "48"), node(), P5, "gpu-runbooks", "reboot")
    assert made.drain.rules[0].name == "training-checkpoints"


def test_longest_wait_is_that_of_the_most_patient_rule():
    assert longest_wait(drain_for(SMALLEST + DRAINED_FAULTS + FULL)) == timedelta(minutes=90)
    assert longest_wait(DrainPolicy()) == timedelta(0)


@pytest.mark.parametrize(
    "name",
    ["xid-48", "xid-999", "xid-unreadable", "manual", "alert-unknown", "sxid-unknown", "fell-off-the-bus"],
)
def test_names_of_faults(name):
    rule = f"drain: {{rules: [{{name: a, faults: [{name}], method: evict}}]}}"
    assert load_policy(SMALLEST + DRAINED_FAULTS + rule).drain.rules[0].faults == (name,)


def test_a_site_may_name_its_rule_as_the_built_in_one():
    load_policy(
        f"""{SMALLEST}faults: [{{name: xid-79, match: {{source: xid, code: 79}}, ladder: reset}}]
drain: {{rules: [{{name: a, faults: [xid-79], method: evict}}]}}"""
    )


@pytest.mark.parametrize(
    ("written", "other"),
    [
        ("deadline: 20m", "deadline: 21m"),
        ("faults: [manual]", "faults: [xid-48]"),
        ("bare_pods: block", "bare_pods: report"),
        ("example.com/keep:", "example.com/kept:"),
        ("namespaces: [temporal-db]", "namespaces: [temporal]"),
        ("silent_node: 5m", "silent_node: 6m"),
    ],
)
def test_digest_covers_the_section(written, other):
    text = SMALLEST + DRAINED_FAULTS + FULL
    assert written in text
    assert load_policy(text.replace(written, other)).digest != load_policy(text).digest


def test_digest_of_what_is_left_out_is_that_of_the_default():
    default = load_policy(SMALLEST)
    spelt = "\n".join(f"    {key}: {list(values)}" for key, values in PROTECTING.items())
    written = load_policy(f"{SMALLEST}drain:\n  silent_node: 120s\n  protecting:\n{spelt}\n")
    assert written.digest == default.digest
