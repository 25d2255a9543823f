"""What forbids a termination: each refused by name, and nothing terminated."""

import pytest
from cloud.conftest import GROUP, Wire, members, replacement_of
from cloud.scaling import change_group, change_instance, set_lifecycle, show_reservation
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.auto_scaling_group import Group, Member
from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.aws.ec2 import Instance
from gpu_runbooks.activities.aws.instance_owner import NODE_GROUP_TAG, Ownership
from gpu_runbooks.activities.aws.termination_protection import protections
from gpu_runbooks.activities.cloud import Cloud
from gpu_runbooks.activities.model.node import NodeIdentity

TERMINATE = "TerminateInstanceInAutoScalingGroup"
RESERVATION = "cr-0123456789abcdef0"


@pytest.fixture
def node(fleet: list[NodeIdentity]) -> NodeIdentity:
    return fleet[0]


async def refused(aws: Aws, wire: Wire, node: NodeIdentity) -> str:
    before = members(aws)
    with pytest.raises(ApplicationError) as raised:
        await Cloud(aws).replace_instance(replacement_of(node))
    assert (raised.value.type, raised.value.non_retryable) == (errors.PROTECTED, True)
    assert node.instance_id in raised.value.message
    assert wire.sent[TERMINATE] == 0
    assert members(aws) == before
    return raised.value.message


def ownership(lifecycle: str, instance_type: str = "p5.48xlarge") -> Ownership:
    instance = Instance("i-1", "running", instance_type, "us-west-2a", {})
    return Ownership(instance, Group(GROUP, 1, 2, {"i-1": Member(lifecycle)}), lifecycle)


@pytest.mark.parametrize(
    ("lifecycle", "words"),
    [
        ("Standby", "a person took it out"),
        ("EnteringStandby", "a person takes it out"),
        ("Pending", "the group is launching it"),
        ("Pending:Wait", "finish its lifecycle hook"),
        ("Detaching", "it leaves the group"),
        ("Detached", "it leaves the group"),
        ("Warmed:Stopped", "warm pool"),
        ("Warmed:Pending:Wait", "warm pool"),
        ("Warmed:Terminating", "warm pool"),
        ("Terminating:Retained", "keeps it for a person"),
        ("ReplacingRootVolume:Wait", "instance refresh"),
        ("RootVolumeReplaced", "instance refresh"),
        ("Quarantined", "not InService"),
        ("SomethingNew", "not InService"),
        ("", "no known state"),
    ],
)
def test_only_an_instance_in_service_is_replaced(lifecycle: str, words: str) -> None:
    [reason] = protections(ownership(lifecycle), termination_protected=False, shrinks=False)

    assert words in reason


@pytest.mark.parametrize(
    ("instance_type", "is_part"),
    [
        ("p6e-gb200.36xlarge", True),
        ("p6e-gb300.36xlarge", True),
        ("trn2u.48xlarge", True),
        ("p6-b200.48xlarge", False),
        ("trn2.48xlarge", False),
        ("p5e.48xlarge", False),
    ],
)
def test_a_part_of_an_ultraserver_is_not_replaced(instance_type: str, is_part: bool) -> None:
    found = protections(ownership("InService", instance_type), termination_protected=False, shrinks=False)

    assert bool(found) is is_part
    assert all("NVLink domain" in reason for reason in found)


async def test_all_that_forbids_it_is_told_at_once(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    aws.ec2_once.modify_instance_attribute(InstanceId=node.instance_id, DisableApiTermination={"Value": True})
    aws.autoscaling_once.suspend_processes(
        AutoScalingGroupName=GROUP, ScalingProcesses=["Launch", "Terminate"]
    )

    message = await refused(aws, wire, node)

    for words in ("termination protection is on", "process Launch", "process Terminate"):
        assert words in message


@pytest.mark.parametrize("process", ["AZRebalance", "ReplaceUnhealthy", "HealthCheck", "ScheduledActions"])
async def test_a_suspended_process_that_replaces_nothing_is_no_hindrance(
    aws: Aws, node: NodeIdentity, process: str
) -> None:
    aws.autoscaling_once.suspend_processes(AutoScalingGroupName=GROUP, ScalingProcesses=[process])

    assert (await Cloud(aws).replace_instance(replacement_of(node))).state == "terminated"


async def test_scale_in_protection_of_one_instance_is_somebodys_wish(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    aws.autoscaling_once.set_instance_protection(
        AutoScalingGroupName=GROUP, InstanceIds=[node.instance_id], ProtectedFromScaleIn=True
    )

    assert "scale-in protection was set on this instance alone" in await refused(aws, wire, node)


async def test_scale_in_protection_that_a_group_gives_to_all_is_about_scaling_in(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    aws.autoscaling_once.set_instance_protection(
        AutoScalingGroupName=GROUP, InstanceIds=[node.instance_id], ProtectedFromScaleIn=True
    )
    change_group(aws, wire, lambda group: group.update(NewInstancesProtectedFromScaleIn=True))

    assert (await Cloud(aws).replace_instance(replacement_of(node))).state == "terminated"


@pytest.mark.parametrize("lifecycle", ["Standby", "Terminating:Retained", "Warmed:Running"])
async def test_an_instance_out_of_service_is_refused_by_its_state(
    aws: Aws, wire: Wire, node: NodeIdentity, lifecycle: str
) -> None:
    set_lifecycle(aws, wire, node.instance_id, lifecycle)

    assert f"it is {lifecycle} in its group" in await refused(aws, wire, node)


async def test_a_slot_of_an_ultraserver_is_not_given_up(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    change_instance(aws, wire, node.instance_id, CapacityReservationId=RESERVATION)
    show_reservation(aws, RESERVATION, launchStatus="launchable")

    assert "is an UltraServer" in await refused(aws, wire, node)


async def test_a_spot_instance_is_replaced_like_any_other(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    change_instance(aws, wire, node.instance_id, InstanceLifecycle="spot")

    assert (await Cloud(aws).replace_instance(replacement_of(node))).state == "terminated"
    assert wire.sent[TERMINATE] == 1


async def test_an_instance_of_a_managed_node_group_is_named_by_it(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    aws.ec2_once.create_tags(Resources=[node.instance_id], Tags=[{"Key": NODE_GROUP_TAG, "Value": "gpu-mng"}])
    set_lifecycle(aws, wire, node.instance_id, "Standby")

    assert f"managed node group gpu-mng (group {GROUP})" in await refused(aws, wire, node)
