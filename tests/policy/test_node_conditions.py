"""What the built-in rules make of a Node condition that stays bad."""

from datetime import timedelta

import pytest
from policy.factories import SMALLEST, fault

from gpu_runbooks.activities.karpenter.repair_policies import EKS, repaired_by
from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.node_conditions import LADDER_OF_CONDITION
from gpu_runbooks.workflows.policy.planning import treatment_of

POLICY = load_policy(SMALLEST)


@pytest.mark.parametrize(
    ("condition", "ladder", "minutes"),
    [
        ("AcceleratedHardwareReady", "reset", 10),
        ("Ready", "reboot", 30),
        ("StorageReady", "reboot", 30),
        ("NetworkingReady", "reboot", 30),
        ("KernelReady", "reboot", 30),
        ("ContainerRuntimeReady", "reboot", 30),
    ],
)
def test_conditions_that_others_repair(condition, ladder, minutes):
    treatment = treatment_of(POLICY, fault(FaultSource.CONDITION, condition))
    assert (treatment.rule, treatment.ladder) == (f"condition-{condition}", ladder)
    assert treatment.toleration == timedelta(minutes=minutes)
    assert RungName.REPLACE in {rung.name for rung in treatment.rungs}


@pytest.mark.parametrize(
    "condition", ["DiskPressure", "MemoryPressure", "KernelDeadlock", "KWOKUnhealthy", "ready", "Anything"]
)
def test_other_conditions_only_block(condition):
    treatment = treatment_of(POLICY, fault(FaultSource.CONDITION, condition))
    assert (treatment.rule, treatment.ladder) == ("condition-unknown", "block")


def test_every_condition_that_aws_and_eks_repair_has_a_ladder():
    repaired = {row.condition for provider in ("aws", EKS) for row in repaired_by(provider)}
    assert repaired == set(LADDER_OF_CONDITION)


def test_site_overrides_one_condition():
    policy = load_policy(
        SMALLEST
        + """\
faults:
- {name: ours, match: {source: condition, code: KernelReady}, ladder: replace, toleration: 1h}
"""
    )
    ours = treatment_of(policy, fault(FaultSource.CONDITION, "KernelReady"))
    assert (ours.rule, ours.ladder, ours.toleration) == ("ours", "replace", timedelta(hours=1))
    assert treatment_of(policy, fault(FaultSource.CONDITION, "Ready")).rule == "condition-Ready"


def test_rule_of_a_condition_can_be_named_in_the_section_drain():
    rule = "drain: {rules: [{name: a, method: evict, faults: [condition-Ready]}]}"
    assert load_policy(SMALLEST + rule).drain.rules[0].faults == ("condition-Ready",)


def test_rule_of_a_condition_that_the_site_has_a_rule_for_never_decides():
    from gpu_runbooks.workflows.policy.file import PolicyError

    text = (
        SMALLEST
        + """\
faults: [{name: ours, match: {source: condition, code: Ready}, ladder: replace}]
drain: {rules: [{name: a, method: evict, faults: [condition-Ready]}]}
"""
    )
    with pytest.raises(PolicyError, match="rule ours is for that fault: write ours"):
        load_policy(text)
