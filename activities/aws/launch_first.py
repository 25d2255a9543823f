"""Launch before terminate: the group grows by the successor, and later shrinks by the old instance."""

from datetime import datetime

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.auto_scaling_group import Group, find_group, pause
from gpu_runbooks.activities.aws.capacity_reservations import needs_free_slot
from gpu_runbooks.activities.aws.connection import Aws, act
from gpu_runbooks.activities.aws.ec2 import describe_machine
from gpu_runbooks.activities.aws.instance_owner import Ownership, owner_of
from gpu_runbooks.activities.aws.launch_history import CLOCK_SKEW, cannot_launch, recent_launches
from gpu_runbooks.activities.aws.launch_mark import MARK, Mark, mark_on, remove_mark, write_mark
from gpu_runbooks.activities.aws.successor_capacity import (
    launches_of,
    reasons_against_successor,
    reservation_of,
)
from gpu_runbooks.activities.aws.termination_protection import require_unprotected
from gpu_runbooks.activities.kubernetes.waiting import seconds_until
from gpu_runbooks.activities.model.repair import LaunchSuccessor, SuccessorLaunched


async def launch_successor(aws: Aws, request: LaunchSuccessor) -> SuccessorLaunched:
    """Raise the group's desired capacity by one, and wait until one instance more is in service.

    Where none comes by the deadline, or the group shows that it cannot launch, the capacity is taken back.
    Raises NO_OWNER and PROTECTED as the replacement itself does: then nothing was raised.
    """
    instance = await describe_machine(aws, request.identity)
    ownership = await owner_of(aws, request.identity.name, instance)
    group, mark = ownership.group, mark_on(ownership.group)
    if mark is not None and mark.instance_id != instance.instance_id:
        return _not_launched(
            group,
            f"{group.name} is larger for the successor of {mark.instance_id} since {mark.since:%H:%M} UTC "
            f"(tag {MARK}): one successor is launched at a time. Retry when that replacement has ended; if "
            "none runs, bring the desired capacity in order and remove the tag",
        )
    if ownership.is_going:
        if mark is not None:
            await finish(aws, group.name, instance.instance_id, mark.before)
        reason = f"{instance.instance_id} is going already, and {group.name} launches another by itself"
        return _not_launched(group, reason).model_copy(update={"going": True})
    if mark is None or group.desired_capacity == mark.before:
        await require_unprotected(aws, ownership)
        if reasons := await _reasons_against_launch(aws, ownership, request.deadline):
            if mark is not None:
                await remove_mark(aws, group.name)
            return _not_launched(group, "; ".join(reasons))
        mark = mark or await write_mark(aws, ownership)
        if mark is None:
            return _not_launched(group, f"another incident launches a successor in {group.name}: retry later")
        await act(
            aws.autoscaling_once.set_desired_capacity,
            AutoScalingGroupName=group.name,
            DesiredCapacity=mark.raised,
        )
    elif group.desired_capacity != mark.raised:
        await remove_mark(aws, group.name)
        return _not_launched(
            group,
            f"somebody set the desired capacity of {group.name} to {group.desired_capacity}, while it was "
            f"raised from {mark.before} to {mark.raised}: it is left as it is. Retry",
        )
    return await _one_more(aws, group, mark, request.deadline)


def require_launched(ownership: Ownership, launched: SuccessorLaunched) -> None:
    """Raise PROTECTED where the group is not as the launch left it: to shrink it would lose an instance."""
    group, old = ownership.group, ownership.instance.instance_id
    mark = mark_on(group)
    if mark is None or mark.instance_id != old or group.desired_capacity != launched.desired_capacity + 1:
        raise errors.refusal(
            errors.PROTECTED,
            f"instance {old} of {ownership.owner} is not terminated: its successor was launched by a desired "
            f"capacity of {launched.desired_capacity + 1}, and now it is {group.desired_capacity}"
            f"{'' if mark else f', without tag {MARK}'}. Bring it in order and retry",
        )
    if group.in_service(without=old) < launched.desired_capacity:
        raise errors.refusal(
            errors.NO_CAPACITY,
            f"instance {old} of {ownership.owner} is not terminated: the successor that was launched is not "
            f"in service any more ({group.in_service(without=old)} others are, of "
            f"{launched.desired_capacity}). Look at the group's activities, then retry",
        )


async def finish(aws: Aws, group_name: str, old: str, before: int) -> None:
    """Leave the group at its size of before, once the old instance is going, and take our mark off.

    Where the instance went by itself, nothing shrank the group yet. It is not shrunk where that would let it
    choose an instance to terminate. Raises NOT_VERIFIED while it is not back at that size.
    """
    group = await find_group(aws, group_name)
    mark = mark_on(group) if group is not None else None
    if group is None or mark is None or mark.instance_id != old:
        return
    if group.desired_capacity == mark.raised and group.present(without=old) <= before:
        await act(
            aws.autoscaling_once.set_desired_capacity, AutoScalingGroupName=group_name, DesiredCapacity=before
        )
        group = await find_group(aws, group_name)
        if group is None or group.desired_capacity == mark.raised:
            raise ApplicationError(
                f"group {group_name} was told to want {before} again, and that does not show",
                type=errors.NOT_VERIFIED,
            )
    await remove_mark(aws, group_name)


async def _reasons_against_launch(aws: Aws, ownership: Ownership, deadline: datetime) -> list[str]:
    """What speaks against one instance more beside the old one."""
    group = ownership.group
    reasons = await reasons_against_successor(aws, ownership, await recent_launches(aws, group.name))
    if seconds_until(deadline) <= 0:
        reasons.append("the time for it is over")
    if group.desired_capacity + 1 > group.max_size:
        reasons.append(
            f"{group.name} may have at most {group.max_size} instances and wants {group.desired_capacity}: "
            "raise its maximum size, or let the pool's policy terminate first"
        )
    if len(group.zones) > 1 and "AZRebalance" not in group.suspended:
        reasons.append(
            f"{group.name} spans {len(group.zones)} zones and rebalances them, so that it might terminate an "
            "instance of its own choice afterwards: suspend AZRebalance, or let the policy terminate first"
        )
    if group.is_weighted or group.unit not in {"", "units"}:
        reasons.append(f"{group.name} counts weights and not instances: let the policy terminate first")
    if ownership.instance.reservation:
        reservation = await reservation_of(aws, ownership)
        launches = await launches_of(aws, group) or []
        if reservation is not None and needs_free_slot(reservation, launches) and reservation.available < 1:
            reasons.append(
                f"{reservation.name} has no free slot: the successor fits only after the old instance is "
                "gone. Let the policy terminate first"
            )
    return reasons


async def _one_more(aws: Aws, before: Group, mark: Mark, deadline: datetime) -> SuccessorLaunched:
    """Wait for it; take the capacity back where none comes."""
    in_service = {key for key, member in before.members.items() if member.lifecycle == "InService"}
    while True:
        group = await find_group(aws, before.name)
        if group is None:
            return _not_launched(before, f"{before.name} does not exist any more")
        if group.in_service() >= mark.raised:
            new = [
                key
                for key, member in group.members.items()
                if member.lifecycle == "InService" and key not in in_service
            ]
            return SuccessorLaunched(
                launched=True,
                group=group.name,
                desired_capacity=mark.before,
                instance_id=new[0] if len(new) == 1 else "",
            )
        failed = cannot_launch(
            await recent_launches(aws, group.name), mark.since - CLOCK_SKEW, len(group.zones)
        )
        if failed is not None and group.present() <= mark.before:
            return await _taken_back(
                aws, group, mark, f"{group.name} cannot launch another: {failed.in_words()}"
            )
        if seconds_until(deadline) <= 0:
            return await _taken_back(aws, group, mark, f"no successor was in service in {group.name} in time")
        await pause(deadline)


async def _taken_back(aws: Aws, group: Group, mark: Mark, reason: str) -> SuccessorLaunched:
    """The desired capacity as it was, if it is still what we set and no instance came for it.

    To lower it with one instance too many would let the group choose which one it terminates.
    """
    if group.desired_capacity == mark.raised:
        if group.present() > mark.before:
            return _not_launched(
                group,
                f"{reason}. An instance was launched and is not in service yet, so the desired capacity "
                f"stays at {mark.raised}: retry when it is, or remove that instance, lower the capacity to "
                f"{mark.before} and remove the tag {MARK}",
            )
        await act(
            aws.autoscaling_once.set_desired_capacity,
            AutoScalingGroupName=group.name,
            DesiredCapacity=mark.before,
        )
        reason = f"{reason}. The desired capacity is {mark.before} again"
    await remove_mark(aws, group.name)
    return _not_launched(group, reason).model_copy(update={"desired_capacity": mark.before})


def _not_launched(group: Group, message: str) -> SuccessorLaunched:
    return SuccessorLaunched(
        launched=False,
        group=group.name,
        desired_capacity=group.desired_capacity,
        message=message[: errors.LONGEST_MESSAGE],
    )
