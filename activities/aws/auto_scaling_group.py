"""An Auto Scaling group as it is now: its size, its members, and what it is told to launch."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpu_runbooks.activities.aws.connection import Aws, call
from gpu_runbooks.activities.kubernetes.waiting import seconds_until

POLL_SECONDS = 5.0
"""Between two looks at a group or an instance: all incidents of an account share AWS's limit of calls."""

RETAINED = "Terminating:Retained"
"""A lifecycle hook failed, and the group keeps the instance for a person: it does not go by itself."""

COUNTS_INSTANCES = frozenset({"", "units"})
"""Units of a desired capacity that instances, with their weights, add up to. Others are vCPUs and memory."""


@dataclass(frozen=True)
class Member:
    """An instance of a group."""

    lifecycle: str
    """Such as `InService`, `Pending:Wait` and `Terminating`."""
    weight: int = 1
    """Units of the desired capacity that it stands for."""
    protected: bool = False
    """From scale-in."""

    @property
    def is_letting_go(self) -> bool:
        """Whether the group is terminating it; EC2 may call it running for as long as hooks wait."""
        return self.lifecycle.startswith("Terminat") and self.lifecycle != RETAINED

    @property
    def is_present(self) -> bool:
        """Whether it counts towards the desired capacity: EC2 had an instance to give for it."""
        return self.lifecycle == "InService" or self.lifecycle.startswith("Pending")


@dataclass(frozen=True)
class Launches:
    """What a group, or the launch template behind it, says on where its instances are launched."""

    preference: str = ""
    """`capacity-reservations-only`, `open`, `none` and so on; empty for the default."""
    reservations: frozenset[str] = frozenset()
    """Ids of the reservations that are targeted."""
    reservation_groups: frozenset[str] = frozenset()
    """Resource groups of reservations that are targeted."""


@dataclass(frozen=True)
class Group:
    """An Auto Scaling group."""

    name: str
    desired_capacity: int
    max_size: int
    members: Mapping[str, Member]
    zones: tuple[str, ...] = ()
    suspended: Mapping[str, str] = field(default_factory=dict)
    """Why, by suspended process."""
    protects_new: bool = False
    """Every instance that it launches is protected from scale-in."""
    status: str = ""
    """`Delete in progress` while it is being deleted, else empty."""
    unit: str = ""
    """Unit of the desired capacity where it is not instances and their weights."""
    template: Mapping[str, str] = field(default_factory=dict)
    """LaunchTemplateId or LaunchTemplateName, and Version; empty for a launch configuration."""
    launches: Launches = Launches()
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_weighted(self) -> bool:
        return any(member.weight != 1 for member in self.members.values())

    def is_letting_go(self, instance_id: str) -> bool:
        return instance_id in self.members and self.members[instance_id].is_letting_go

    def present(self, *, without: str = "") -> int:
        """Capacity that is in service or being launched, except by one instance."""
        return sum(
            member.weight for key, member in self.members.items() if key != without and member.is_present
        )

    def in_service(self, *, without: str = "") -> int:
        return sum(
            member.weight
            for key, member in self.members.items()
            if key != without and member.lifecycle == "InService"
        )


async def find_group(aws: Aws, name: str) -> Group | None:
    """An Auto Scaling group by name; None where there is none."""
    answer = await call(aws.autoscaling.describe_auto_scaling_groups, AutoScalingGroupNames=[name])
    for found in answer["AutoScalingGroups"]:
        if found["AutoScalingGroupName"] == name:
            return group_from(found)
    return None


def group_from(found: Mapping[str, Any]) -> Group:
    """The group of an answer of DescribeAutoScalingGroups."""
    policy = found.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
    return Group(
        name=found["AutoScalingGroupName"],
        desired_capacity=found["DesiredCapacity"],
        max_size=found["MaxSize"],
        members={
            each["InstanceId"]: Member(
                lifecycle=each["LifecycleState"],
                weight=int(each.get("WeightedCapacity") or 1),
                protected=each.get("ProtectedFromScaleIn", False),
            )
            for each in found["Instances"]
        },
        zones=tuple(found.get("AvailabilityZones", ())),
        suspended={
            each["ProcessName"]: each.get("SuspensionReason", "")
            for each in found.get("SuspendedProcesses", ())
        },
        protects_new=found.get("NewInstancesProtectedFromScaleIn", False),
        status=found.get("Status", ""),
        unit=found.get("DesiredCapacityType", ""),
        template=found.get("LaunchTemplate") or policy.get("LaunchTemplateSpecification") or {},
        launches=launches_from(found.get("CapacityReservationSpecification", {})),
        tags={each["Key"]: each.get("Value", "") for each in found.get("Tags", ())},
    )


def launches_from(specification: Mapping[str, Any]) -> Launches:
    """Of a group, which lists its targets, or of a launch template, which has one."""
    target = specification.get("CapacityReservationTarget", {})
    ids = [*target.get("CapacityReservationIds", ()), target.get("CapacityReservationId", "")]
    groups = [
        *target.get("CapacityReservationResourceGroupArns", ()),
        target.get("CapacityReservationResourceGroupArn", ""),
    ]
    return Launches(
        preference=specification.get("CapacityReservationPreference", ""),
        reservations=frozenset(filter(None, ids)),
        reservation_groups=frozenset(filter(None, groups)),
    )


async def pause(deadline: datetime) -> None:
    """Wait until the next look, at most to the deadline."""
    await asyncio.sleep(min(POLL_SECONDS, max(0.0, seconds_until(deadline))))
