"""Replacements: one termination, capacity kept, and confirmed only by what EC2 shows afterwards."""

import asyncio
import signal
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cloud.conftest import (
    CLUSTER,
    GROUP,
    Wire,
    capacity,
    launch_alone,
    members,
    replacement_of,
    set_state,
    soon,
)
from cloud.scaling import set_lifecycle, show_activities, terminating
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws import auto_scaling, auto_scaling_group, successor
from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.aws.instance_owner import GROUP_TAG, KARPENTER_TAGS
from gpu_runbooks.activities.cloud import Cloud
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import ConfirmReplacement

TERMINATE = "TerminateInstanceInAutoScalingGroup"

DIES_AFTER_THE_CALL = """
import asyncio, os, signal, sys
from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.cloud import Cloud
from gpu_runbooks.activities.model.repair import ReplaceInstance
aws = Aws.connect(sys.argv[1])
aws.autoscaling_once.meta.events.register(
    "after-call.*.TerminateInstanceInAutoScalingGroup", lambda **_: os.kill(os.getpid(), signal.SIGKILL)
)
asyncio.run(Cloud(aws).replace_instance(ReplaceInstance.model_validate_json(sys.argv[2])))
"""


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_scaling_group, "POLL_SECONDS", 0.05)


@pytest.fixture
def node(fleet: list[NodeIdentity]) -> NodeIdentity:
    return fleet[0]


async def replaced(aws: Aws, node: NodeIdentity) -> ConfirmReplacement:
    """The node is replaced by its group: the request that confirms it."""
    before = set(members(aws))
    requested = await Cloud(aws).replace_instance(replacement_of(node))
    [new] = set(members(aws)) - before
    return ConfirmReplacement(
        replaced=node.instance_id,
        replacement=new,
        group=requested.group,
        desired_capacity=requested.desired_capacity,
        deadline=soon(),
    )


class TestReplace:
    async def test_the_group_terminates_it_and_keeps_its_capacity(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        requested = await Cloud(aws).replace_instance(replacement_of(node))

        assert (requested.group, requested.desired_capacity) == (GROUP, 4)
        assert requested.state == "terminated"
        assert wire.sent[TERMINATE] == 1
        assert wire.parameters[TERMINATE] == {
            "InstanceId": node.instance_id,
            "ShouldDecrementDesiredCapacity": False,
        }
        assert capacity(aws) == 4
        assert len(members(aws)) == 4
        assert node.instance_id not in members(aws)

    async def test_a_second_run_terminates_nothing_more(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        await Cloud(aws).replace_instance(replacement_of(node))
        standing = members(aws)

        wire.change(aws.ec2, "DescribeInstances", add_tag(GROUP_TAG, GROUP))
        again = await Cloud(aws).replace_instance(replacement_of(node))

        assert (again.group, again.desired_capacity, again.state) == (GROUP, 4, "terminated")
        assert wire.sent[TERMINATE] == 1
        assert members(aws) == standing

    async def test_an_instance_that_is_shutting_down_is_success_without_a_call(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        wire.change(aws.ec2, "DescribeInstances", set_state(node.instance_id, "shutting-down"))

        requested = await Cloud(aws).replace_instance(replacement_of(node))

        assert requested.state == "shutting-down"
        assert wire.sent[TERMINATE] == 0

    async def test_an_instance_that_waits_for_a_hook_of_its_group_is_not_terminated_again(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        set_lifecycle(aws, wire, node.instance_id, "Terminating:Wait")

        requested = await Cloud(aws).replace_instance(replacement_of(node))

        assert requested.state == "running"
        assert wire.sent[TERMINATE] == 0

    async def test_after_a_lost_answer_the_next_run_reads_first(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        wire.lose_answer(aws.autoscaling_once, TERMINATE)

        with pytest.raises(ApplicationError) as raised:
            await Cloud(aws).replace_instance(replacement_of(node))
        wire.change(aws.ec2, "DescribeInstances", add_tag(GROUP_TAG, GROUP))
        requested = await Cloud(aws).replace_instance(replacement_of(node))

        assert (raised.value.type, raised.value.non_retryable) == (errors.AWS, False)
        assert requested.state == "terminated"
        assert wire.sent[TERMINATE] == 1
        assert len(members(aws)) == 4

    async def test_after_the_death_of_the_worker_the_next_one_terminates_nothing(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        request = replacement_of(node)
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", DIES_AFTER_THE_CALL, CLUSTER, request.model_dump_json()
        )
        assert await worker.wait() == -signal.SIGKILL
        standing = members(aws)
        assert node.instance_id not in standing
        wire.change(aws.ec2, "DescribeInstances", add_tag(GROUP_TAG, GROUP))
        wire.change(aws.ec2, "DescribeInstances", set_state(node.instance_id, "shutting-down"))

        requested = await Cloud(aws).replace_instance(request)

        assert (requested.state, requested.desired_capacity) == ("shutting-down", 4)
        assert wire.sent[TERMINATE] == 0
        assert (members(aws), capacity(aws)) == (standing, 4)

    async def test_a_termination_that_the_group_has_begun_is_not_asked_for_again(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        """EC2 and the group still show what was before the call of an attempt that died."""
        show_activities(aws, wire, terminating(node.instance_id))
        states = ["running", "shutting-down"]

        def stale_at_first(parsed: dict[str, Any]) -> None:
            set_state(node.instance_id, states.pop(0) if states[1:] else states[0])(parsed)

        wire.change(aws.ec2, "DescribeInstances", stale_at_first)

        requested = await Cloud(aws).replace_instance(replacement_of(node))

        assert requested.state == "shutting-down"
        assert wire.sent[TERMINATE] == 0

    async def test_a_termination_that_came_to_nothing_is_asked_for(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        show_activities(aws, wire, terminating(node.instance_id, StatusCode="Cancelled"))

        assert (await Cloud(aws).replace_instance(replacement_of(node))).state == "terminated"

    async def test_an_instance_that_left_its_group_just_now_is_looked_at_again(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        words = f"Instance Id not found - No managed instance found for instance ID: {node.instance_id}"
        wire.refuse(aws.autoscaling_once, TERMINATE, "ValidationError", message=words)

        with pytest.raises(ApplicationError, match="was in p5-nodes, and then") as raised:
            await Cloud(aws).replace_instance(replacement_of(node))

        assert (raised.value.type, raised.value.non_retryable) == (errors.NOT_SENT, False)
        assert node.instance_id in members(aws)

    async def test_a_retry_knows_the_group_from_the_heartbeat_of_the_attempt_before(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        first, second = ActivityEnvironment(), ActivityEnvironment()
        told = []
        first.on_heartbeat = lambda *details: told.append(details)
        first.info = replace(first.info, heartbeat_timeout=timedelta(seconds=30))
        await first.run(Cloud(aws).replace_instance, replacement_of(node))
        second.info = replace(second.info, heartbeat_details=told[-1], attempt=2)

        again = await second.run(Cloud(aws).replace_instance, replacement_of(node))

        assert (again.group, again.desired_capacity, again.state) == (GROUP, 4, "terminated")
        assert wire.sent[TERMINATE] == 1

    async def test_a_termination_that_does_not_show_is_not_success(
        self, aws: Aws, wire: Wire, node: NodeIdentity, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(auto_scaling, "READ_BACK_SECONDS", 0.2)
        wire.change(aws.ec2, "DescribeInstances", set_state(node.instance_id, "running"))

        with pytest.raises(ApplicationError, match="accepted the termination") as raised:
            await Cloud(aws).replace_instance(replacement_of(node))

        assert (raised.value.type, raised.value.non_retryable) == (errors.NOT_VERIFIED, False)
        assert wire.sent[TERMINATE] == 1

    @pytest.mark.parametrize(
        ("tags", "advice"),
        [
            ({}, "attach it to a group"),
            ({KARPENTER_TAGS[0]: "p5"}, "delete the node's NodeClaim"),
            ({KARPENTER_TAGS[1]: "p5-x1"}, "delete the node's NodeClaim"),
        ],
        ids=["nobody", "karpenter", "karpenter-alone"],
    )
    async def test_an_instance_of_no_group_is_refused(
        self, aws: Aws, wire: Wire, tags: dict[str, str], advice: str
    ) -> None:
        lone = launch_alone(aws, tags)

        with pytest.raises(ApplicationError, match=advice) as raised:
            await Cloud(aws).replace_instance(replacement_of(lone))

        assert (raised.value.type, raised.value.non_retryable) == (errors.NO_OWNER, True)
        assert lone.instance_id in raised.value.message
        assert wire.sent[TERMINATE] == 0
        state = aws.ec2.describe_instances(InstanceIds=[lone.instance_id])
        assert state["Reservations"][0]["Instances"][0]["State"]["Name"] == "running"

    async def test_a_tag_that_outlived_its_group_is_no_owner(self, aws: Aws, wire: Wire) -> None:
        lone = launch_alone(aws)

        wire.change(aws.ec2, "DescribeInstances", set_state(lone.instance_id, "terminated"))
        wire.change(aws.ec2, "DescribeInstances", add_tag(GROUP_TAG, "gone"))

        with pytest.raises(ApplicationError, match="group gone does not exist") as raised:
            await Cloud(aws).replace_instance(replacement_of(lone))

        assert raised.value.type == errors.NO_OWNER
        assert wire.sent[TERMINATE] == 0

    async def test_another_machine_than_the_nodes_is_not_terminated(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        with pytest.raises(ApplicationError, match="not the node's machine"):
            await Cloud(aws).replace_instance(
                replacement_of(node.model_copy(update={"instance_type": "m7i.large"}))
            )

        assert wire.sent[TERMINATE] == 0
        assert node.instance_id in members(aws)


class TestConfirm:
    async def test_terminated_and_in_service_is_confirmed(self, aws: Aws, node: NodeIdentity) -> None:
        confirmed = await Cloud(aws).confirm_replacement(await replaced(aws, node))

        assert confirmed.confirmed

    async def test_shutting_down_is_not_terminated(self, aws: Aws, wire: Wire, node: NodeIdentity) -> None:
        request = await replaced(aws, node)
        looked = asyncio.Event()
        loop = asyncio.get_running_loop()
        states = ["shutting-down"]

        def state(parsed: dict[str, Any]) -> None:
            set_state(node.instance_id, states[-1])(parsed)
            loop.call_soon_threadsafe(looked.set)

        wire.change(aws.ec2, "DescribeInstances", state)
        confirming = asyncio.create_task(Cloud(aws).confirm_replacement(request))
        for _ in range(3):
            looked.clear()
            await looked.wait()
        assert not confirming.done()
        states.append("terminated")

        assert (await confirming).confirmed

    async def test_an_id_that_ec2_forgets_after_it_was_shutting_down_is_gone(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        request = await replaced(aws, node)

        def shutting_down_and_then_unknown(parsed: dict[str, Any]) -> None:
            found = [
                each for reservation in parsed.get("Reservations", ()) for each in reservation["Instances"]
            ]
            if any(each["InstanceId"] == node.instance_id for each in found):
                set_state(node.instance_id, "shutting-down")(parsed)
                not_found = ["InvalidInstanceID.NotFound"] * 9
                wire.refuse(aws.ec2, "DescribeInstances", *not_found, about=node.instance_id)

        wire.change(aws.ec2, "DescribeInstances", shutting_down_and_then_unknown)

        assert (await Cloud(aws).confirm_replacement(request)).confirmed

    async def test_a_new_id_that_ec2_does_not_know_yet_is_waited_for(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        request = await replaced(aws, node)
        not_found = ["InvalidInstanceID.NotFound"] * 2
        wire.refuse(aws.ec2, "DescribeInstances", *not_found, about=request.replacement)
        wire.sent.clear()

        assert (await Cloud(aws).confirm_replacement(request)).confirmed
        assert wire.sent["DescribeInstances"] == 6, "two looks in vain, each at both instances"

    @pytest.mark.parametrize(("seen_going", "confirmed"), [(True, True), (False, False)])
    async def test_an_unknown_old_id_is_gone_only_if_it_was_seen_going(
        self, aws: Aws, node: NodeIdentity, seen_going: bool, confirmed: bool
    ) -> None:
        request = await replaced(aws, node)
        unknown = request.model_copy(update={"replaced": "i-0aaaaaaaaaaaaaaa1", "deadline": soon(-1)})

        answer = await successor.confirm_replacement(aws, unknown, lambda _: None, seen_going=seen_going)

        assert answer.confirmed is confirmed
        assert ("never seen shutting down" in answer.message) is not confirmed

    async def test_the_deadline_ends_it_with_all_that_is_missing(self, aws: Aws, node: NodeIdentity) -> None:
        lone = launch_alone(aws)

        answer = await Cloud(aws).confirm_replacement(
            ConfirmReplacement(
                replaced=node.instance_id,
                replacement=lone.instance_id,
                group=GROUP,
                desired_capacity=5,
                deadline=soon(-1),
            )
        )

        assert not answer.confirmed
        for missing in (
            f"old instance {node.instance_id} is running, not terminated",
            f"new instance {lone.instance_id} is not a member in group {GROUP}",
            f"desired capacity of {GROUP} is 4, before it was 5",
        ):
            assert missing in answer.message

    async def test_a_throttled_read_is_an_error_and_no_answer(
        self, aws: Aws, wire: Wire, node: NodeIdentity, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
        request = await replaced(aws, node)
        wire.refuse(aws.ec2, "DescribeInstances", *["RequestLimitExceeded"] * 9, status=503)

        with pytest.raises(ApplicationError, match="RequestLimitExceeded") as raised:
            await Cloud(aws).confirm_replacement(request)

        assert not raised.value.non_retryable


def add_tag(key: str, value: str) -> Any:
    """A tag on every instance of an answer: moto drops the group's tag at once, EC2 after a while."""

    def change(parsed: dict[str, Any]) -> None:
        for reservation in parsed.get("Reservations", ()):
            for each in reservation["Instances"]:
                each["Tags"] = [*each.get("Tags", ()), {"Key": key, "Value": value}]

    return change
