"""Replacement of an instance by its Auto Scaling group: the group terminates it and launches another."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws import Aws, act, call
from gpu_runbooks.activities.aws_refusals import NO_SUCH_INSTANCE, code_of
from gpu_runbooks.activities.ec2 import Instance, describe, describe_machine, require_fresh
from gpu_runbooks.activities.heartbeat import Beat
from gpu_runbooks.activities.instance_state import GOING
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import (
    ConfirmReplacement,
    ReplaceInstance,
    ReplacementConfirmed,
    ReplaceRequested,
)
from gpu_runbooks.activities.waiting import seconds_until

GROUP_TAG = "aws:autoscaling:groupName"
"""Set by Auto Scaling alone (the prefix `aws:` is reserved); a terminated instance keeps it for a while."""

KARPENTER_TAG = "karpenter.sh/nodepool"

POLL_SECONDS = 2.0
READ_BACK_SECONDS = 20.0
"""How long a termination that was accepted may take to show."""

SEEN_GOING = "seen going"
"""Heartbeat detail: an attempt saw the old instance shutting down, so an id that EC2 forgets is gone."""


@dataclass(frozen=True)
class Group:
    """An Auto Scaling group as it is now."""

    name: str
    desired_capacity: int
    members: Mapping[str, str]
    """Lifecycle state by instance id, such as `InService` and `Terminating:Wait`."""

    def is_letting_go(self, instance_id: str) -> bool:
        """Whether the group is terminating it already; EC2 may call it running for as long as hooks wait."""
        return self.members.get(instance_id, "").startswith("Terminat")


async def replace_instance(
    aws: Aws, request: ReplaceInstance, beat: Beat, *, earlier_group: str = ""
) -> ReplaceRequested:
    """Have the group terminate the instance and launch another: its desired capacity stays.

    An instance that is going already is success, without a second call; `earlier_group` is the group that an
    earlier attempt found and told in its heartbeat. Raises NO_OWNER for an instance that no Auto Scaling
    group owns, and NOT_VERIFIED (worth a retry) where the termination does not show.
    """
    identity = request.identity
    instance = await describe_machine(aws, identity)
    group = await _owner_of(aws, identity, instance, earlier_group)
    beat(group.name)
    if instance.state not in GOING and not group.is_letting_go(instance.instance_id):
        require_fresh(request.not_after)
        await act(
            aws.autoscaling_once.terminate_instance_in_auto_scaling_group,
            InstanceId=instance.instance_id,
            ShouldDecrementDesiredCapacity=False,
        )
        instance = await _read_back(aws, instance.instance_id, group.name)
    return ReplaceRequested(
        instance_id=instance.instance_id,
        group=group.name,
        desired_capacity=group.desired_capacity,
        state=instance.state,
        requested_at=datetime.now(UTC),
    )


async def confirm_replacement(
    aws: Aws, request: ConfirmReplacement, beat: Beat, *, seen_going: bool = False
) -> ReplacementConfirmed:
    """Wait until the old instance is terminated, and the new one in service at the same capacity.

    Shutting down is not terminated: the machine may still run. `seen_going` says that an earlier attempt saw
    it so. Not confirmed by the deadline is a result, with all that is missing; an error of AWS is raised.
    """
    while True:
        old = await _state_of(aws, request.replaced)
        seen_going = seen_going or old in GOING
        if seen_going:
            beat(SEEN_GOING)
        missing = [] if old == "terminated" or (seen_going and not old) else [_not_terminated(request, old)]
        missing += await _missing(aws, request)
        if not missing:
            return ReplacementConfirmed(confirmed=True)
        if seconds_until(request.deadline) <= 0:
            return ReplacementConfirmed(confirmed=False, message="; ".join(missing)[: errors.LONGEST_MESSAGE])
        await asyncio.sleep(min(POLL_SECONDS, max(0.0, seconds_until(request.deadline))))


async def find_group(aws: Aws, name: str) -> Group | None:
    """An Auto Scaling group by name; None where there is none."""
    answer = await call(aws.autoscaling.describe_auto_scaling_groups, AutoScalingGroupNames=[name])
    for found in answer["AutoScalingGroups"]:
        if found["AutoScalingGroupName"] == name:
            members = {each["InstanceId"]: each["LifecycleState"] for each in found["Instances"]}
            return Group(name=name, desired_capacity=found["DesiredCapacity"], members=members)
    return None


async def _owner_of(aws: Aws, identity: NodeIdentity, instance: Instance, earlier_group: str) -> Group:
    """The group that will launch the successor. Raises NO_OWNER where nobody would."""
    if pool := instance.tags.get(KARPENTER_TAG):
        raise errors.refusal(
            errors.NO_OWNER,
            f"instance {instance.instance_id} of node {identity.name} belongs to Karpenter's pool {pool}, "
            "which is not replaced from here: delete the node's NodeClaim, and Karpenter launches another",
        )
    name = await _group_name(aws, instance, earlier_group)
    group = await find_group(aws, name) if name else None
    if group is None:
        which = f"group {name} does not exist" if name else "it is in no Auto Scaling group"
        raise errors.refusal(
            errors.NO_OWNER,
            f"instance {instance.instance_id} of node {identity.name} is not replaced, since nothing would "
            f"launch another: {which}. Replace it by hand, or attach it to a group and retry",
        )
    return group


async def _group_name(aws: Aws, instance: Instance, earlier_group: str) -> str:
    """Name of the group that an instance is in, or was in before it went; empty for none.

    The group's own word counts for an instance that is there. Of one that is gone the tag may be left.
    """
    answer = await call(aws.autoscaling.describe_auto_scaling_instances, InstanceIds=[instance.instance_id])
    for member in answer["AutoScalingInstances"]:
        if member["InstanceId"] == instance.instance_id:
            return member["AutoScalingGroupName"]
    return instance.tags.get(GROUP_TAG, earlier_group) if instance.state in GOING else ""


async def _read_back(aws: Aws, instance_id: str, group_name: str) -> Instance:
    """The instance, once EC2 or the group shows that it is going."""
    loop = asyncio.get_running_loop()
    until = loop.time() + READ_BACK_SECONDS
    while True:
        instance = await describe(aws, instance_id)
        if instance.state in GOING:
            return instance
        group = await find_group(aws, group_name)
        if group is not None and group.is_letting_go(instance_id):
            return instance
        if loop.time() >= until:
            raise ApplicationError(
                f"group {group_name} accepted the termination of {instance_id}, which is {instance.state} "
                f"{READ_BACK_SECONDS:.0f} s later",
                type=errors.NOT_VERIFIED,
            )
        await asyncio.sleep(POLL_SECONDS)


async def _state_of(aws: Aws, instance_id: str) -> str:
    """State of an instance; empty for an id that EC2 does not know."""
    try:
        return (await describe(aws, instance_id)).state
    except ApplicationError as error:
        if code_of(error.__cause__) == NO_SUCH_INSTANCE:
            return ""
        raise


def _not_terminated(request: ConfirmReplacement, state: str) -> str:
    if state:
        return f"old instance {request.replaced} is {state}, not terminated"
    return f"EC2 does not know old instance {request.replaced}, which was never seen shutting down"


async def _missing(aws: Aws, request: ConfirmReplacement) -> list[str]:
    """What keeps the new instance from being a full member of its group."""
    group = await find_group(aws, request.group)
    if group is None:
        return [f"group {request.group} does not exist any more"]
    missing = []
    lifecycle = group.members.get(request.replacement, "not a member")
    if lifecycle != "InService":
        missing.append(f"new instance {request.replacement} is {lifecycle} in group {group.name}")
    if (state := await _state_of(aws, request.replacement)) != "running":
        missing.append(f"new instance {request.replacement} is {state or 'unknown to EC2'}, not running")
    if group.desired_capacity != request.desired_capacity:
        missing.append(
            f"desired capacity of {group.name} is {group.desired_capacity}, before it was "
            f"{request.desired_capacity}"
        )
    return missing
