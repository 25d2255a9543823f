"""The sections `hardware` and `intake`: what counts of them, and what is wrong."""

from datetime import timedelta

import pytest
from policy.factories import P5, SMALLEST, fault, node, problems

from gpu_runbooks.activities.aws.instance_types import expected_hardware
from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.plan import ExpectedHardware
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.intake import Intake
from gpu_runbooks.workflows.policy.planning import PlanRefused, plan


def expected(text: str, instance_type: str) -> ExpectedHardware:
    return plan(load_policy(text), fault(FaultSource.XID, "79"), node(instance_type), P5, "ns").expected


def test_each_field_stands_over_the_built_in_table():
    text = f"{SMALLEST}hardware: {{p5.48xlarge: {{efa_interfaces: 16}}}}"
    assert expected(SMALLEST, "p5.48xlarge") == ExpectedHardware(
        instance_type="p5.48xlarge", gpus=8, efa_interfaces=32, nvlink=True
    )
    assert expected(text, "p5.48xlarge") == ExpectedHardware(
        instance_type="p5.48xlarge", gpus=8, efa_interfaces=16, nvlink=True
    )
    assert expected(text, "p4d.24xlarge") == expected(SMALLEST, "p4d.24xlarge")


def test_type_that_the_table_does_not_have():
    text = f"{SMALLEST}hardware: {{p9.48xlarge: {{gpus: 16, efa_interfaces: 0, nvlink: false}}}}"
    assert expected(text, "p9.48xlarge") == ExpectedHardware(
        instance_type="p9.48xlarge", gpus=16, efa_interfaces=0, nvlink=False
    )
    with pytest.raises(PlanRefused, match="write it into the section hardware of the policy"):
        expected(SMALLEST, "p9.48xlarge")


@pytest.mark.parametrize(
    ("hardware", "problem"),
    [
        (
            "{p5.48xlrge: {gpus: 8}}",
            "hardware.p5.48xlrge: the built-in table does not have the hardware of p5.48xlrge: did you mean",
        ),
        ("{p9.48xlarge: {gpus: 8, nvlink: true}}", "hardware.p9.48xlarge: the built-in table does not have"),
        ("{p5.48xlarge: {}}", "hardware.p5.48xlarge: it says nothing: write gpus, efa_interfaces or nvlink"),
        (
            "{p5.48xlarge: {gpus: 0}}",
            "hardware.p5.48xlarge.gpus: it should be greater than or equal to 1; not 0",
        ),
        (
            "{p5.48xlarge: {gpus: 65}}",
            "hardware.p5.48xlarge.gpus: it should be less than or equal to 64; not 65",
        ),
        ("{p5.48xlarge: {gpus: true}}", "hardware.p5.48xlarge.gpus: it should be a valid integer; not True"),
        ("{p5.48xlarge: {efa_interfaces: -1}}", "hardware.p5.48xlarge.efa_interfaces: it should be greater"),
        ("{p5.48xlarge: {nvlink: 1}}", "hardware.p5.48xlarge.nvlink: it should be a valid boolean; not 1"),
        ("{p5.48xlarge: {gpu: 8}}", "hardware.p5.48xlarge.gpu: unknown field: did you mean gpus?"),
        ("{P5: {gpus: 8}}", "hardware.P5: write an EC2 instance type, such as p5.48xlarge; not 'P5'"),
        ("[p5.48xlarge]", "hardware: write fields here, as in `key: value`"),
    ],
)
def test_hardware_that_is_wrong(hardware, problem):
    (found,) = problems(f"{SMALLEST}hardware: {hardware}")
    assert found.startswith(f"line 8: {problem}")


def test_type_that_stands_twice():
    text = f"{SMALLEST}hardware:\n  p5.48xlarge: {{gpus: 8}}\n  p5.48xlarge: {{gpus: 4}}\n"
    assert problems(text) == ["line 10: hardware.p5.48xlarge: written twice, first on line 9: keep one"]


def test_every_type_of_the_table_can_be_overridden_alone():
    entry = expected_hardware("g6e.48xlarge")
    assert entry is not None
    text = f"{SMALLEST}hardware: {{g6e.48xlarge: {{efa_interfaces: 1}}}}"
    assert expected(text, "g6e.48xlarge") == entry.model_copy(update={"efa_interfaces": 1})


def test_defaults_of_the_intake():
    assert load_policy(SMALLEST).intake == Intake(
        node_labels=("node", "kubernetes_node", "Hostname"),
        max_age=None,
        job_nodes=2,
        settle=timedelta(seconds=3),
    )


def test_intake_as_it_is_written():
    text = f"{SMALLEST}intake: {{node_labels: [host], max_age: 1m, job_nodes: 8, settle: 0s}}"
    assert load_policy(text).intake == Intake(
        node_labels=("host",), max_age=timedelta(minutes=1), job_nodes=8, settle=timedelta(0)
    )


@pytest.mark.parametrize(
    ("intake", "problem"),
    [
        ("{max_age: 59s}", "intake.max_age: write an age of at least 1m and at most 30d"),
        ("{max_age: 31d}", "intake.max_age: write an age of at least 1m and at most 30d"),
        ("{max_age: 6}", "intake.max_age: write a duration with units"),
        ("{job_nodes: 1}", "intake.job_nodes: it should be greater than or equal to 2; not 1"),
        ('{job_nodes: "2"}', "intake.job_nodes: it should be a valid integer; not '2'"),
        (
            "{settle: 11s}",
            "intake.settle: write at most 10s: who sends an alert waits for the answer as long",
        ),
        ("{node_labels: []}", "intake.node_labels: write at least one entry"),
        ("{node_labels: [node, node]}", "intake.node_labels: node stands twice: the first place counts"),
        ('{node_labels: [""]}', "intake.node_labels[0]: it should have at least 1 character"),
        ("{node_labels: node}", "intake.node_labels: write a list here"),
        ("{node_label: [node]}", "intake.node_label: unknown field: did you mean node_labels?"),
    ],
)
def test_intake_that_is_wrong(intake, problem):
    (found,) = problems(f"{SMALLEST}intake: {intake}")
    assert found.startswith(f"line 8: {problem}")
