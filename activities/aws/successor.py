"""After the termination: whether the group launches another, and whether all is well at the end."""

from datetime import UTC, datetime

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.auto_scaling_group import Group, find_group, pause
from gpu_runbooks.activities.aws.capacity_reservations import SLOT_RETURNS
from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.aws.ec2 import describe
from gpu_runbooks.activities.aws.instance_state import GOING, Seen
from gpu_runbooks.activities.aws.launch_history import (
    CLOCK_SKEW,
    WINDOW,
    Launch,
    cannot_launch,
    failures_since,
    recent_launches,
)
from gpu_runbooks.activities.heartbeat import Beat
from gpu_runbooks.activities.kubernetes.waiting import seconds_until
from gpu_runbooks.activities.model.repair import (
    AwaitSuccessor,
    ConfirmReplacement,
    ReplacementConfirmed,
    SuccessorComing,
)

MOST_INSTANCES = 500
"""Of one group, that an answer names: a payload holds 16 KiB."""

SEEN_GOING = "seen going"
"""Heartbeat detail: an attempt saw the old instance shutting down, so an id that EC2 forgets is gone."""


async def await_successor(aws: Aws, request: AwaitSuccessor) -> SuccessorComing:
    """Wait until the group is complete again without the old instance, or shows that it cannot launch.

    An instance that is still pending counts: EC2 had one to give. In a reservation the slot of the old
    instance is free only some minutes after it is terminated, so that launches which fail until then say
    nothing.
    """
    slot_free = None if request.reservation else request.requested_at
    while True:
        group = await find_group(aws, request.group)
        if group is None or group.status:
            state = f"is marked {group.status!r}" if group else "does not exist any more"
            return _lost(f"group {request.group} {state}")
        if group.present(without=request.replaced) >= request.desired_capacity:
            others = sorted(group.members.keys() - {request.replaced})
            return SuccessorComing(coming=True, instances=others if len(others) <= MOST_INSTANCES else ())
        launches = await recent_launches(aws, group.name)
        if slot_free is None and await _state_of(aws, request.replaced) in {"terminated", ""}:
            slot_free = datetime.now(UTC) + SLOT_RETURNS
        if reason := why_none_comes(group, request, launches, slot_free):
            return _lost(reason)
        if seconds_until(request.deadline) <= 0:
            return SuccessorComing(coming=False, message=_late(group, request, launches))
        await pause(request.deadline)


def why_none_comes(
    group: Group, request: AwaitSuccessor, launches: list[Launch], slot_free: datetime | None
) -> str:
    """Why the group will launch no successor; empty while it may. Failures count from `slot_free` on."""
    if "Launch" in group.suspended:
        why = group.suspended["Launch"] or "no reason given"
        return f"process Launch of {group.name} is suspended ({why}): resume it, and it launches another"
    if group.desired_capacity < request.desired_capacity:
        return (
            f"somebody lowered the desired capacity of {group.name} from {request.desired_capacity} to "
            f"{group.desired_capacity}: it launches nothing"
        )
    if slot_free is None:
        return ""
    failed = cannot_launch(launches, slot_free - CLOCK_SKEW, len(group.zones))
    return f"{group.name} cannot launch another: {failed.in_words()}" if failed else ""


async def confirm_replacement(
    aws: Aws, request: ConfirmReplacement, beat: Beat, *, seen_going: bool = False
) -> ReplacementConfirmed:
    """Wait until the old instance is terminated, and the new one in service at the same capacity.

    Shutting down is not terminated: the machine may still run, for the better part of an hour on large
    types. `seen_going` says that an earlier attempt saw it so. Not confirmed by the deadline is a result,
    with all that is missing, and so, at once, is a new instance that goes itself; an error of AWS is raised.
    """
    while True:
        old = await _state_of(aws, request.replaced, Seen.GOING if seen_going else Seen.NEVER)
        new = await _state_of(aws, request.replacement)
        seen_going = seen_going or old in GOING
        if seen_going:
            beat(SEEN_GOING)
        group = await find_group(aws, request.group)
        missing = [] if old == "terminated" else [_not_terminated(request, old, group)]
        missing += _missing(request, group, new)
        if not missing:
            return ReplacementConfirmed(confirmed=True)
        if new in GOING:
            failed = failures_since(await recent_launches(aws, request.group), datetime.now(UTC) - WINDOW)
            missing += [f"{request.group} cannot launch another: {failed[0].in_words()}"] if failed else []
            return _not_confirmed(missing, capacity_lost=bool(failed))
        if seconds_until(request.deadline) <= 0:
            return _not_confirmed(missing)
        await pause(request.deadline)


def _lost(reason: str) -> SuccessorComing:
    return SuccessorComing(coming=False, capacity_lost=True, message=reason[: errors.LONGEST_MESSAGE])


def _late(group: Group, request: AwaitSuccessor, launches: list[Launch]) -> str:
    failed = failures_since(launches, request.requested_at - CLOCK_SKEW)
    last = f"; the last {failed[0].in_words()}" if failed else ""
    present = group.present(without=request.replaced)
    return f"{group.name} has {present} of {request.desired_capacity} instances{last}"[
        : errors.LONGEST_MESSAGE
    ]


async def _state_of(aws: Aws, instance_id: str, seen: Seen = Seen.NEVER) -> str:
    """State of an instance; empty for an id that EC2 does not know, or not yet."""
    try:
        return (await describe(aws, instance_id, seen)).state
    except ApplicationError as error:
        if error.type == errors.INSTANCE_UNKNOWN:
            return ""
        raise


def _not_terminated(request: ConfirmReplacement, state: str, group: Group | None) -> str:
    if not state:
        return f"EC2 does not know old instance {request.replaced}, which was never seen shutting down"
    member = group.members.get(request.replaced) if group else None
    there = f" ({member.lifecycle} in its group)" if member else ""
    return f"old instance {request.replaced} is {state}, not terminated{there}"


def _missing(request: ConfirmReplacement, group: Group | None, state: str) -> list[str]:
    """What keeps the new instance, in this state, from being a full member of its group."""
    if group is None:
        return [f"group {request.group} does not exist any more"]
    missing = []
    member = group.members.get(request.replacement)
    lifecycle = member.lifecycle if member else "not a member"
    if lifecycle != "InService":
        missing.append(f"new instance {request.replacement} is {lifecycle} in group {group.name}")
    if state != "running":
        missing.append(f"new instance {request.replacement} is {state or 'unknown to EC2'}, not running")
    if group.desired_capacity != request.desired_capacity:
        missing.append(
            f"desired capacity of {group.name} is {group.desired_capacity}, before it was "
            f"{request.desired_capacity}"
        )
    return missing


def _not_confirmed(missing: list[str], *, capacity_lost: bool = False) -> ReplacementConfirmed:
    message = "; ".join(missing)[: errors.LONGEST_MESSAGE]
    return ReplacementConfirmed(confirmed=False, capacity_lost=capacity_lost, message=message)
