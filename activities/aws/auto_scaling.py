"""Replacement of an instance by its Auto Scaling group: the group terminates it and launches another."""

import asyncio
from datetime import UTC, datetime

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws import auto_scaling_group, launch_first
from gpu_runbooks.activities.aws.auto_scaling_group import find_group
from gpu_runbooks.activities.aws.connection import Aws, act
from gpu_runbooks.activities.aws.ec2 import Instance, describe, describe_machine, require_fresh
from gpu_runbooks.activities.aws.instance_owner import Ownership, owner_of
from gpu_runbooks.activities.aws.instance_state import GOING
from gpu_runbooks.activities.aws.launch_history import is_terminating, launches_in, recent_activities
from gpu_runbooks.activities.aws.refusals import code_of
from gpu_runbooks.activities.aws.successor_capacity import require_successor
from gpu_runbooks.activities.aws.termination_protection import require_unprotected
from gpu_runbooks.activities.heartbeat import Beat
from gpu_runbooks.activities.model.repair import ReplaceInstance, ReplaceRequested

READ_BACK_SECONDS = 20.0
"""How long a termination that was accepted may take to show."""


async def replace_instance(
    aws: Aws, request: ReplaceInstance, beat: Beat, *, earlier_group: str = ""
) -> ReplaceRequested:
    """Have the group terminate the instance and launch another: its desired capacity stays.

    Where a successor was launched first, the group shrinks back by the old instance instead.

    An instance that is going already is success, without a second call; `earlier_group` is the group that an
    earlier attempt found and told in its heartbeat. Raises NO_OWNER for an instance that no Auto Scaling
    group owns, PROTECTED where something forbids the termination, NO_CAPACITY where nothing would come in
    its place, and NOT_VERIFIED (worth a retry) where the termination does not show.
    """
    identity, first = request.identity, request.launched
    instance = await describe_machine(aws, identity)
    ownership = await owner_of(aws, identity.name, instance, earlier_group)
    group = ownership.group
    beat(group.name)
    if not ownership.is_going:
        # What an earlier attempt asked for may not show at the instance yet.
        activities = await recent_activities(aws, group.name)
        if not is_terminating(activities, instance.instance_id):
            await require_unprotected(aws, ownership, shrinks=first is not None)
            if first is None:
                await require_successor(aws, ownership, launches_in(activities))
            else:
                launch_first.require_launched(ownership, first)
            require_fresh(request.not_after)
            await _terminate(aws, ownership, shrinks=first is not None)
        instance = await _read_back(aws, instance, group.name)
    if first is not None:
        await launch_first.finish(aws, group.name, instance.instance_id, first.desired_capacity)
    return ReplaceRequested(
        instance_id=instance.instance_id,
        group=group.name,
        desired_capacity=group.desired_capacity if first is None else first.desired_capacity,
        state=instance.state,
        requested_at=datetime.now(UTC),
        reservation=ownership.instance.reservation,
    )


async def _terminate(aws: Aws, ownership: Ownership, *, shrinks: bool) -> None:
    """The one call. An instance that left its group a moment ago is looked at again (NOT_SENT)."""
    try:
        await act(
            aws.autoscaling_once.terminate_instance_in_auto_scaling_group,
            InstanceId=ownership.instance.instance_id,
            ShouldDecrementDesiredCapacity=shrinks,
        )
    except ApplicationError as error:
        if code_of(error.__cause__) != "ValidationError" or "not found" not in error.message.lower():
            raise
        raise ApplicationError(
            f"nothing was terminated: {ownership.instance.instance_id} was in {ownership.group.name}, and "
            "then that group did not know it. It is looked at again",
            type=errors.NOT_SENT,
        ) from error


async def _read_back(aws: Aws, before: Instance, group_name: str) -> Instance:
    """The instance, once EC2 or the group shows that it is going."""
    loop = asyncio.get_running_loop()
    until = loop.time() + READ_BACK_SECONDS
    while True:
        instance = await describe(aws, before.instance_id)
        if instance.state in GOING:
            return instance
        group = await find_group(aws, group_name)
        if group is not None and group.is_letting_go(instance.instance_id):
            return instance
        if loop.time() >= until:
            raise ApplicationError(
                f"group {group_name} accepted the termination of {instance.instance_id}, which is "
                f"{instance.state} {READ_BACK_SECONDS:.0f} s later",
                type=errors.NOT_VERIFIED,
            )
        await asyncio.sleep(auto_scaling_group.POLL_SECONDS)
