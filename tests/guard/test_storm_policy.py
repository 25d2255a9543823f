"""The section `storm` of the policy, and what a plan gets of it and of the node."""

from datetime import timedelta

import pytest
from policy.factories import SMALLEST, fault, node

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.fleet import StormRule
from gpu_runbooks.workflows.policy.file import PolicyError, load_policy
from gpu_runbooks.workflows.policy.planning import plan
from gpu_runbooks.workflows.traits import fault_traits, signature

XID = fault(FaultSource.XID, "79")


def planned(section: str = "", **labels: str):
    text = SMALLEST + (f"storm: {section}\n" if section else "")
    return plan(load_policy(text), XID, node(), {"gpu-runbooks.dev/pool": "p5", **labels}, "ns")


def test_a_file_without_the_section_gets_what_is_built_in():
    assert planned().storm == StormRule(group_wait=timedelta(seconds=15))


def test_what_is_written_stands_over_it_field_by_field():
    assert planned("{nodes: 4, within: 5m, pace: 30s}").storm == StormRule(
        nodes=4, within=timedelta(minutes=5), pace=timedelta(seconds=30), group_wait=timedelta(seconds=15)
    )


@pytest.mark.parametrize(
    ("section", "word"),
    [
        ("{nodes: 1}", "storm.nodes"),
        ("{nodes: 1000}", "storm.nodes"),
        ("{nodes: yes}", "storm.nodes"),
        ("{within: 10}", "storm.within"),
        ("{within: 30d}", "storm.within"),
        ("{unhealthy_percent: 0}", "storm.unhealthy_percent"),
        ("{unhealthy_percent: 101}", "storm.unhealthy_percent"),
        ("{unhealthy_nodes: 1}", "storm.unhealthy_nodes"),
        ("{cool_down: 1s}", "storm.cool_down"),
        ("{pace: 2h}", "storm.pace"),
        ("{cooldown: 10m}", "did you mean cool_down"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(section, word):
    with pytest.raises(PolicyError) as error:
        load_policy(f"{SMALLEST}storm: {section}\n")
    (problem,) = error.value.problems
    assert word in str(problem)
    assert "line " in str(problem)


@pytest.mark.parametrize(
    ("labels", "traits"),
    [
        ({}, {}),
        ({"nvidia.com/cuda.driver-version.full": "570.86.15"}, {"driver": "570.86.15"}),
        (
            {
                f"nvidia.com/cuda.driver.{part}": value
                for part, value in zip(("major", "minor", "rev"), "123", strict=True)
            },
            {"driver": "1.2.3"},
        ),
        (
            {f"topology.k8s.aws/network-node-layer-{layer}": f"nn-{layer}" for layer in (1, 2, 3)},
            {"rack": "nn-3", "network spine": "nn-2"},
        ),
        (
            {"karpenter.sh/nodepool": "gpu", "karpenter.k8s.aws/instance-ami-id": "ami-1"},
            {"node pool": "gpu", "image": "ami-1"},
        ),
        ({"eks.amazonaws.com/nodegroup": "ng", "karpenter.sh/nodepool": "gpu"}, {"node pool": "gpu"}),
    ],
)
def test_what_a_node_may_share_with_others_is_read_from_its_labels(labels, traits):
    found = planned(**labels).traits
    assert {name: value for name, value in found.items() if name not in {"zone", "instance type"}} == traits
    assert found["instance type"] == "p5.48xlarge"


@pytest.mark.parametrize(
    ("pod", "job"),
    [
        ("blue/train-0", "blue/train"),
        ("blue/train-worker-12", "blue/train-worker"),
        ("blue/train-3-x7k2p", "blue/train"),
        ("blue/trainer", "blue/trainer"),
        ("", None),
    ],
)
def test_pods_of_one_job_share_it(pod, job):
    assert fault_traits(XID.model_copy(update={"pod": pod})).get("job") == job


def test_a_signature_is_source_code_and_reason_and_no_longer_than_can_be_kept():
    condition = XID.model_copy(
        update={"source": FaultSource.CONDITION, "code": "Ready", "reason": "NoKubelet"}
    )
    assert (signature(XID), signature(condition)) == ("xid 79", "condition Ready NoKubelet")
    assert len(signature(XID.model_copy(update={"reason": "x" * 1000}))) == 200
