"""Whether a group would launch another instance, decided before the old one is terminated."""

from collections.abc import Sequence
from datetime import UTC, datetime

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.auto_scaling_group import COUNTS_INSTANCES, Group, Launches, launches_from
from gpu_runbooks.activities.aws.capacity_reservations import (
    NO_RESERVATION,
    Reservation,
    find_reservation,
    why_no_slot,
)
from gpu_runbooks.activities.aws.connection import Aws, call
from gpu_runbooks.activities.aws.instance_owner import Ownership
from gpu_runbooks.activities.aws.launch_history import WINDOW, Launch, failures_since
from gpu_runbooks.activities.aws.refusals import code_of

NO_TEMPLATE = frozenset(
    {
        "InvalidLaunchTemplateId.NotFound",
        "InvalidLaunchTemplateId.NotFoundException",
        "InvalidLaunchTemplateName.NotFound",
        "InvalidLaunchTemplateName.NotFoundException",
        "InvalidLaunchTemplateId.VersionNotFound",
    }
)
"""EC2's documentation and its clients spell some of them in two ways."""


def why_nothing_would_come(group: Group, launches: Sequence[Launch], now: datetime) -> list[str]:
    """What speaks against a successor, by what the group is and did. Nothing found: one may be expected."""
    found = []
    if group.status:
        found.append(f"{group.name} is marked {group.status!r}")
    if group.unit in COUNTS_INSTANCES:
        present = group.present()
        if present < group.desired_capacity:
            found.append(
                f"{group.name} wants {group.desired_capacity} and has {present}: it has no successor yet for "
                "an instance that left before. Wait until it is complete, then retry"
            )
        elif present > group.desired_capacity and not group.is_weighted:
            found.append(
                f"{group.name} wants {group.desired_capacity} and has {present}: it is shrinking, and would "
                "launch nothing. Wait until it has shrunk, then retry"
            )
    if failed := failures_since(launches, now - WINDOW):
        more = f" ({len(failed)} such failures in {WINDOW.total_seconds() / 60:.0f} min)"
        found.append(f"in {group.name} the latest {failed[0].in_words()}{more if len(failed) > 1 else ''}")
    return found


async def reasons_against_successor(aws: Aws, ownership: Ownership, launched: Sequence[Launch]) -> list[str]:
    """All that speaks against a successor, after the group's latest launches, and by its configuration.

    Raises PROTECTED for an instance of an UltraServer.
    """
    group, instance = ownership.group, ownership.instance
    now = datetime.now(UTC)
    found = why_nothing_would_come(group, launched, now)
    launches = await launches_of(aws, group)
    if launches is None:
        found.append(
            f"the launch template of {group.name}, {' '.join(group.template.values())}, does not exist: "
            "give the group another"
        )
    if instance.reservation:
        reservation = await reservation_of(aws, ownership)
        if reservation is None:
            found.append(f"EC2 does not show capacity reservation {instance.reservation}, in which it runs")
        elif reason := why_no_slot(reservation, launches or [group.launches], now):
            found.append(reason)
    elif instance.lifecycle == "capacity-block":
        found.append("it runs in a Capacity Block, and EC2 does not say in which")
    return found


async def require_successor(aws: Aws, ownership: Ownership, launched: Sequence[Launch]) -> None:
    """Raise NO_CAPACITY, with what was seen, where nothing would come in the instance's place."""
    if found := await reasons_against_successor(aws, ownership, launched):
        raise errors.refusal(
            errors.NO_CAPACITY,
            f"instance {ownership.instance.instance_id} of {ownership.owner} is not terminated, since "
            f"nothing would come in its place: {'; '.join(found)}",
        )


async def launches_of(aws: Aws, group: Group) -> list[Launches] | None:
    """What group and launch template say on where to launch; None where the template does not exist."""
    if not group.template:
        return [group.launches]
    key = "LaunchTemplateId" if "LaunchTemplateId" in group.template else "LaunchTemplateName"
    template = {key: group.template[key], "Versions": [group.template.get("Version", "$Default")]}
    try:
        answer = await call(aws.ec2.describe_launch_template_versions, **template)
    except ApplicationError as error:
        if code_of(error.__cause__) in NO_TEMPLATE:
            return None
        raise
    return [group.launches] + [
        launches_from(version["LaunchTemplateData"].get("CapacityReservationSpecification", {}))
        for version in answer["LaunchTemplateVersions"]
    ]


async def reservation_of(aws: Aws, ownership: Ownership) -> Reservation | None:
    """The reservation that the instance runs in; None where EC2 does not show it.

    Raises PROTECTED where it is a part of an UltraServer.
    """
    try:
        reservation = await find_reservation(aws, ownership.instance.reservation)
    except ApplicationError as error:
        if code_of(error.__cause__) == NO_RESERVATION:
            return None
        raise
    if reservation is not None and reservation.is_ultraserver:
        raise errors.refusal(
            errors.PROTECTED,
            f"instance {ownership.instance.instance_id} of {ownership.owner} is not terminated: "
            f"{reservation.name} is an UltraServer, and the replacement breaks the NVLink domain of the "
            "other instances: drain the whole UltraServer and replace it by hand",
        )
    return reservation
