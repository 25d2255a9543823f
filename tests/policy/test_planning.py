"""What policy makes of a fault on a node."""

from datetime import timedelta

import pytest
from policy.factories import P5, SMALLEST, fault, node

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.model.slot import PoolBudget
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.planning import PlanRefused, plan, treatment_of

POLICY = load_policy(SMALLEST)
DISRUPTIVE = {RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE}


@pytest.mark.parametrize(
    ("source", "code", "rule", "ladder"),
    [
        (FaultSource.XID, "79", "xid-79", "replace"),
        (FaultSource.XID, " 79", "xid-79", "replace"),
        (FaultSource.XID, "79.0", "xid-79", "replace"),
        (FaultSource.XID, "119", "xid-119", "reset"),
        (FaultSource.XID, "151", "xid-151", "reboot"),
        (FaultSource.XID, "94", "xid-94", "block"),
        (FaultSource.XID, "999", "xid-999", "block"),
        (FaultSource.XID, "79,94", "xid-unreadable", "block"),
        (FaultSource.XID, "0", "xid-0", "none"),
        (FaultSource.MANUAL, "manual", "manual", "reset"),
        (FaultSource.ALERT, "SomethingNew", "alert-unknown", "block"),
        (FaultSource.SXID, "20034", "sxid-20034", "reboot"),
    ],
)
def test_built_in_answers(source, code, rule, ladder):
    treatment = treatment_of(POLICY, fault(source, code))
    assert (treatment.rule, treatment.ladder) == (rule, ladder)
    assert not treatment.application


@pytest.mark.parametrize("code", ["13", "31", "43", "45", "68", "137"])
def test_fault_of_the_application_touches_nothing(code):
    treatment = treatment_of(POLICY, fault(FaultSource.XID, code))
    assert treatment.application
    assert [rung.name for rung in treatment.rungs] == [RungName.NOTIFY_OWNER]


@pytest.mark.parametrize("source", [each for each in FaultSource if each is not FaultSource.MANUAL])
def test_unknown_faults_get_nothing_destructive(source):
    treatment = treatment_of(POLICY, fault(source, "999"))
    assert [rung.name for rung in treatment.rungs] == [RungName.BLOCK, RungName.VALIDATE, RungName.RETURN]


def test_every_xid_has_a_ladder_that_exists():
    ladders = {treatment_of(POLICY, fault(FaultSource.XID, str(code))).ladder for code in range(1, 177)}
    assert ladders == {"none", "notify", "block", "reset", "reboot", "replace"}


def test_site_overrides_one_entry_and_leaves_the_others():
    policy = load_policy(
        SMALLEST
        + """\
ladders:
  gentle:
  - {rung: block}
  - {rung: drain, timeout: 2h}
  - {rung: reboot, wait: 5m, attempts: 2}
  - {rung: validate}
  - {rung: return}
faults:
- {name: fell-off, match: {source: xid, codes: [79]}, ladder: gentle, toleration: 30s}
- {name: ours, match: {source: xid, code: 119}, application: true}
"""
    )
    treatment = treatment_of(policy, fault(FaultSource.XID, "79.0"))
    assert (treatment.rule, treatment.ladder, treatment.toleration) == (
        "fell-off",
        "gentle",
        timedelta(seconds=30),
    )
    reboot = next(rung for rung in treatment.rungs if rung.name is RungName.REBOOT)
    assert (reboot.wait, reboot.attempts, reboot.timeout) == (timedelta(minutes=5), 2, timedelta(minutes=20))
    assert treatment_of(policy, fault(FaultSource.XID, "119")).application
    assert treatment_of(policy, fault(FaultSource.XID, "48")).ladder == "reset"


def test_person_names_a_ladder():
    treatment = treatment_of(POLICY, fault(FaultSource.XID, "13"), ladder="reboot")
    assert (treatment.rule, treatment.ladder, treatment.application) == ("xid-13", "reboot", False)
    assert RungName.REBOOT in {rung.name for rung in treatment.rungs}


@pytest.mark.parametrize("application", [True, False])
def test_rule_restarts_the_workload_and_leaves_the_node(application):
    policy = load_policy(
        f"""{SMALLEST}faults:
- {{name: hung, match: {{source: xid, codes: [13, 109]}}, application: {application}, ladder: restart}}
"""
    )
    for code in ("13", "109"):
        treatment = treatment_of(policy, fault(FaultSource.XID, code))
        assert (treatment.rule, treatment.ladder, treatment.application) == ("hung", "restart", application)
        assert [(rung.name, rung.timeout) for rung in treatment.rungs] == [
            (RungName.RESTART_WORKLOAD, timedelta(minutes=15))
        ]


@pytest.mark.parametrize("ladder", ["restart", "none"])
def test_person_leaves_the_node_of_an_application_at_fault(ladder):
    assert treatment_of(POLICY, fault(FaultSource.XID, "13"), ladder).application
    assert not treatment_of(POLICY, fault(FaultSource.XID, "48"), ladder).application


def test_plan_has_all_that_an_incident_needs():
    result = plan(POLICY, fault(FaultSource.XID, "79"), node(), {**P5, "other": "x"}, "gpu-tests")
    assert result.identity == node()
    assert (result.pool, result.pool_selector) == ("p5", P5)
    assert result.budget == PoolBudget(max_unavailable=3)
    assert result.expected.efa_interfaces == 32
    assert result.test_pod.namespace == "gpu-tests"
    assert result.test_pod.command == ("gpu-test", "--all")
    assert result.enforce
    assert result.policy_digest == POLICY.digest


def test_mode_observe_is_not_enforced():
    policy = load_policy(SMALLEST.replace("enforce", "observe"))
    assert not plan(policy, fault(FaultSource.XID, "79"), node(), P5, "ns").enforce


TWO_POOLS = load_policy(
    SMALLEST.replace(
        "validation:",
        "- {name: search, selector: {team: search}, budget: {max_unavailable: 1}}\nvalidation:",
    )
)


@pytest.mark.parametrize(
    ("labels", "instance_type", "ladder", "reason"),
    [
        ({}, "p5.48xlarge", None, "node gpu-a1 is in no pool of the policy.*the pools are p5, search"),
        ({"gpu-runbooks.dev/pool": "p4"}, "p5.48xlarge", None, "in no pool"),
        ({**P5, "team": "search"}, "p5.48xlarge", None, r"in several pools \(p5, search\)"),
        (P5, "p9.unknown", None, "hardware of instance type p9.unknown is not known"),
        (P5, "", None, r"instance type \(no label\) is not known"),
        (
            P5,
            "p5.48xlarge",
            "rest",
            "no ladder is named rest: there are block, drain, none, notify",
        ),
    ],
)
def test_refusals(labels, instance_type, ladder, reason):
    with pytest.raises(PlanRefused, match=reason):
        plan(TWO_POOLS, fault(FaultSource.XID, "79"), node(instance_type), labels, "ns", ladder)


def test_largest_plan_stays_small():
    """Payloads stay under 16 KiB each; a plan travels with every report."""
    result = plan(POLICY, fault(FaultSource.XID, "119"), node(), P5, "gpu-runbooks")
    assert len(result.model_dump_json()) < 4096
    assert {rung.name for rung in result.treatment.rungs} >= DISRUPTIVE
