"""Launch before terminate: the group grows once, and ends at the size that it had."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from cloud.conftest import GROUP, Wire, capacity, members, replacement_of, soon
from cloud.scaling import (
    change_group,
    change_instance,
    failed,
    set_lifecycle,
    show_activities,
    show_reservation,
)
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws import auto_scaling_group
from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.aws.launch_first import launch_successor
from gpu_runbooks.activities.aws.launch_mark import MARK, Mark, mark_on
from gpu_runbooks.activities.cloud import Cloud
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import LaunchSuccessor, SuccessorLaunched

SET = "SetDesiredCapacity"
TERMINATE = "TerminateInstanceInAutoScalingGroup"
RESERVATION = "cr-0123456789abcdef0"


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_scaling_group, "POLL_SECONDS", 0.05)


@pytest.fixture
def node(aws: Aws, wire: Wire, fleet: list[NodeIdentity]) -> NodeIdentity:
    """Of a group that may grow by two."""
    aws.autoscaling_once.update_auto_scaling_group(AutoScalingGroupName=GROUP, MaxSize=6)
    wire.sent.clear()
    return fleet[0]


def launch_for(node: NodeIdentity, seconds: float = 30) -> LaunchSuccessor:
    return LaunchSuccessor(identity=node, incident="node/test/gpu-a1", deadline=soon(seconds))


def mark(aws: Aws) -> Mark | None:
    found = aws.autoscaling_once.describe_auto_scaling_groups(AutoScalingGroupNames=[GROUP])
    return mark_on(auto_scaling_group.group_from(found["AutoScalingGroups"][0]))


def put_mark(aws: Aws, value: object) -> None:
    aws.autoscaling_once.create_or_update_tags(
        Tags=[
            {
                "ResourceId": GROUP,
                "ResourceType": "auto-scaling-group",
                "Key": MARK,
                "Value": str(value),
                "PropagateAtLaunch": False,
            }
        ]
    )


def shrink_to_fit(aws: Aws, wire: Wire, count: int) -> None:
    """The group has this many instances, and gets no more."""

    def change(group: dict[str, Any]) -> None:
        group["Instances"] = group["Instances"][:count]

    change_group(aws, wire, change)


async def test_the_group_grows_by_one_and_shrinks_by_the_old_instance(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    before = set(members(aws))

    launched = await launch_successor(aws, launch_for(node))

    assert launched.launched
    assert (launched.group, launched.desired_capacity) == (GROUP, 4)
    assert {launched.instance_id} == set(members(aws)) - before
    assert capacity(aws) == 5
    assert wire.sent[SET] == 1

    request = replacement_of(node).model_copy(update={"launched": launched})
    replaced = await Cloud(aws).replace_instance(request)

    assert (replaced.desired_capacity, replaced.state) == (4, "terminated")
    assert wire.parameters[TERMINATE]["ShouldDecrementDesiredCapacity"] is True
    assert capacity(aws) == 4
    assert set(members(aws)) == before - {node.instance_id} | {launched.instance_id}
    assert mark(aws) is None


async def test_a_second_run_raises_nothing_more(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    await launch_successor(aws, launch_for(node))
    again = await launch_successor(aws, launch_for(node))

    assert (again.launched, again.desired_capacity) == (True, 4)
    assert wire.sent[SET] == 1
    assert capacity(aws) == 5


async def test_after_a_lost_answer_the_next_run_reads_first(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    wire.lose_answer(aws.autoscaling_once, SET)

    with pytest.raises(ApplicationError) as raised:
        await launch_successor(aws, launch_for(node))
    again = await launch_successor(aws, launch_for(node))

    assert (raised.value.type, raised.value.non_retryable) == (errors.AWS, False)
    assert (again.launched, again.desired_capacity) == (True, 4)
    assert wire.sent[SET] == 1
    assert capacity(aws) == 5


async def test_a_raise_that_never_left_is_made_by_the_next_run(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    wire.refuse(aws.autoscaling_once, SET, "Throttling")

    with pytest.raises(ApplicationError):
        await launch_successor(aws, launch_for(node))
    assert capacity(aws) == 4

    assert (await launch_successor(aws, launch_for(node))).launched
    assert capacity(aws) == 5


async def test_without_capacity_the_group_gets_its_size_back(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    shrink_to_fit(aws, wire, 4)
    asked: list[int] = []

    def fail_after_the_raise(parsed: dict[str, Any]) -> None:
        asked.append(1)
        parsed["Activities"] = [failed(StartTime=datetime.now(UTC))] if len(asked) > 1 else []

    wire.change(aws.autoscaling, "DescribeScalingActivities", fail_after_the_raise)

    answer = await launch_successor(aws, launch_for(node, 600))

    assert not answer.launched
    assert "do not have sufficient p5.48xlarge capacity" in answer.message
    assert "desired capacity is 4 again" in answer.message
    assert capacity(aws) == 4
    assert mark(aws) is None
    assert wire.sent[TERMINATE] == 0


async def test_at_the_deadline_the_group_gets_its_size_back(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    shrink_to_fit(aws, wire, 4)

    answer = await launch_successor(aws, launch_for(node, 1))

    assert not answer.launched
    assert "in time" in answer.message
    assert (capacity(aws), mark(aws)) == (4, None)


async def test_with_an_instance_on_its_way_the_group_is_not_let_choose_which_to_end(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    known = set(members(aws))

    def pending(group: dict[str, Any]) -> None:
        for each in group["Instances"]:
            if each["InstanceId"] not in known:
                each["LifecycleState"] = "Pending:Wait"

    change_group(aws, wire, pending)

    answer = await launch_successor(aws, launch_for(node, 2))

    assert not answer.launched
    assert "stays at 5" in answer.message
    assert capacity(aws) == 5
    assert known < set(members(aws))
    standing = mark(aws)
    assert standing is not None
    assert (standing.instance_id, standing.before) == (node.instance_id, 4)


async def refusal(aws: Aws, wire: Wire, node: NodeIdentity) -> SuccessorLaunched:
    """The answer of a launch that changes nothing."""
    wire.sent.clear()
    answer = await launch_successor(aws, launch_for(node))
    assert not answer.launched
    assert wire.sent[SET] == 0
    assert answer.desired_capacity == capacity(aws)
    return answer


async def test_a_group_at_its_maximum_does_not_grow(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    aws.autoscaling_once.update_auto_scaling_group(AutoScalingGroupName=GROUP, MaxSize=4)

    assert "raise its maximum size" in (await refusal(aws, wire, node)).message
    assert mark(aws) is None


@pytest.mark.parametrize("suspended", [False, True])
async def test_a_group_that_rebalances_zones_might_end_another_instance(
    aws: Aws, wire: Wire, node: NodeIdentity, suspended: bool
) -> None:
    def change(group: dict[str, Any]) -> None:
        group["AvailabilityZones"] = ["us-west-2a", "us-west-2b"]

    change_group(aws, wire, change)
    if suspended:
        aws.autoscaling_once.suspend_processes(AutoScalingGroupName=GROUP, ScalingProcesses=["AZRebalance"])
        assert (await launch_successor(aws, launch_for(node))).launched
    else:
        assert "suspend AZRebalance" in (await refusal(aws, wire, node)).message


async def test_a_group_that_could_not_launch_lately_is_not_asked_to(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    show_activities(aws, wire, failed())

    assert "InsufficientInstanceCapacity" in (await refusal(aws, wire, node)).message


async def test_a_full_reservation_has_no_slot_for_two(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    change_instance(aws, wire, node.instance_id, CapacityReservationId=RESERVATION)
    only = {"CapacityReservationPreference": "capacity-reservations-only"}
    change_group(aws, wire, lambda group: group.update(CapacityReservationSpecification=only))
    show_reservation(aws, RESERVATION)

    assert "has no free slot" in (await refusal(aws, wire, node)).message


async def test_one_successor_is_launched_at_a_time(aws: Aws, wire: Wire, fleet: list[NodeIdentity]) -> None:
    aws.autoscaling_once.update_auto_scaling_group(AutoScalingGroupName=GROUP, MaxSize=6)
    await launch_successor(aws, launch_for(fleet[0]))

    assert f"successor of {fleet[0].instance_id}" in (await refusal(aws, wire, fleet[1])).message
    assert capacity(aws) == 5


async def test_past_the_deadline_nothing_is_raised(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    answer = await launch_successor(aws, launch_for(node, -1))

    assert not answer.launched
    assert wire.sent[SET] == 0
    assert mark(aws) is None


async def test_what_protects_the_old_instance_keeps_the_group_from_growing(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    set_lifecycle(aws, wire, node.instance_id, "Standby")

    with pytest.raises(ApplicationError) as raised:
        await launch_successor(aws, launch_for(node))

    assert raised.value.type == errors.PROTECTED
    assert wire.sent[SET] == 0


async def test_an_old_instance_that_is_going_gets_its_successor_without_us(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    set_lifecycle(aws, wire, node.instance_id, "Terminating:Wait")

    answer = await refusal(aws, wire, node)

    assert answer.going
    assert "going already" in answer.message


async def test_somebody_elses_new_size_is_left_as_it_is(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    put_mark(aws, Mark(node.instance_id, 4, datetime.now(UTC)))
    aws.autoscaling_once.set_desired_capacity(AutoScalingGroupName=GROUP, DesiredCapacity=6)

    assert "somebody set the desired capacity" in (await refusal(aws, wire, node)).message
    assert (capacity(aws), mark(aws)) == (6, None)


async def test_a_mark_that_cannot_be_read_is_for_a_person(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    put_mark(aws, "four")

    with pytest.raises(ApplicationError, match="cannot be read: 'four'") as raised:
        await launch_successor(aws, launch_for(node))

    assert raised.value.type == errors.PROTECTED
    assert wire.sent[SET] == 0


class TestShrink:
    @pytest.fixture
    async def launched(self, aws: Aws, node: NodeIdentity) -> SuccessorLaunched:
        return await launch_successor(aws, launch_for(node))

    async def test_a_size_that_somebody_changed_meanwhile_is_not_shrunk(
        self, aws: Aws, wire: Wire, node: NodeIdentity, launched: SuccessorLaunched
    ) -> None:
        aws.autoscaling_once.set_desired_capacity(AutoScalingGroupName=GROUP, DesiredCapacity=6)

        with pytest.raises(ApplicationError, match="now it is 6") as raised:
            await Cloud(aws).replace_instance(replacement_of(node).model_copy(update={"launched": launched}))

        assert raised.value.type == errors.PROTECTED
        assert wire.sent[TERMINATE] == 0

    async def test_the_old_instance_stays_while_its_successor_is_not_in_service(
        self, aws: Aws, wire: Wire, node: NodeIdentity, launched: SuccessorLaunched
    ) -> None:
        set_lifecycle(aws, wire, launched.instance_id, "Terminating")

        with pytest.raises(ApplicationError, match="not in service any more") as raised:
            await Cloud(aws).replace_instance(replacement_of(node).model_copy(update={"launched": launched}))

        assert raised.value.type == errors.NO_CAPACITY
        assert wire.sent[TERMINATE] == 0

    async def test_after_a_lost_answer_the_group_shrinks_once(
        self, aws: Aws, wire: Wire, node: NodeIdentity, launched: SuccessorLaunched
    ) -> None:
        wire.lose_answer(aws.autoscaling_once, TERMINATE)
        request = replacement_of(node).model_copy(update={"launched": launched})
        change_instance(
            aws,
            wire,
            node.instance_id,
            Tags=[
                {"Key": "aws:autoscaling:groupName", "Value": GROUP},
                {"Key": "kubernetes.io/cluster/test", "Value": "owned"},
            ],
        )

        with pytest.raises(ApplicationError):
            await Cloud(aws).replace_instance(request)
        again = await Cloud(aws).replace_instance(request)

        assert (again.desired_capacity, again.state) == (4, "terminated")
        assert wire.sent[TERMINATE] == 1
        assert (capacity(aws), len(members(aws)), mark(aws)) == (4, 4, None)

    async def test_an_old_instance_that_went_by_itself_leaves_the_group_at_its_size_of_before(
        self, aws: Aws, wire: Wire, node: NodeIdentity, launched: SuccessorLaunched
    ) -> None:
        set_lifecycle(aws, wire, node.instance_id, "Terminating")

        await Cloud(aws).replace_instance(replacement_of(node).model_copy(update={"launched": launched}))

        assert wire.sent[TERMINATE] == 0
        assert wire.parameters[SET]["DesiredCapacity"] == 4
        assert (capacity(aws), mark(aws)) == (4, None)


async def test_two_incidents_at_the_same_time_raise_the_group_once(
    aws: Aws, wire: Wire, fleet: list[NodeIdentity]
) -> None:
    aws.autoscaling_once.update_auto_scaling_group(AutoScalingGroupName=GROUP, MaxSize=6)

    answers = await asyncio.gather(
        *(launch_successor(aws, launch_for(each)) for each in fleet[:2]), return_exceptions=True
    )

    assert capacity(aws) == 5
    standing = mark(aws)
    assert standing is not None
    launched = [each for each in answers if isinstance(each, SuccessorLaunched) and each.launched]
    assert launched
    for each in fleet[:2]:
        if each.instance_id != standing.instance_id:
            request = replacement_of(each).model_copy(update={"launched": launched[0]})
            with pytest.raises(ApplicationError) as raised:
                await Cloud(aws).replace_instance(request)
            assert raised.value.type == errors.PROTECTED
    assert len(members(aws)) == 5
