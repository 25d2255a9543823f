"""What moto does not show of Auto Scaling, injected into answers: activities, lifecycles, reservations."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.awsrequest import AWSResponse
from cloud.conftest import GROUP, Wire

from gpu_runbooks.activities.aws.connection import Aws

Change = Callable[[dict[str, Any]], None]

NO_P5 = (
    "We currently do not have sufficient p5.48xlarge capacity in the Availability Zone you requested "
    "(us-west-2a). Launching EC2 instance failed."
)


def failed(message: str = NO_P5, *, ago: timedelta = timedelta(minutes=5), **changes: Any) -> dict[str, Any]:
    """A scaling activity: a launch that failed."""
    return {
        "ActivityId": "a1",
        "AutoScalingGroupName": GROUP,
        "Description": f"Launching a new EC2 instance.  Status Reason: {message}",
        "Cause": "an instance was launched in response to a difference between desired and actual capacity",
        "StartTime": datetime.now(UTC) - ago,
        "StatusCode": "Failed",
        "StatusMessage": message,
    } | changes


def launched(*, ago: timedelta = timedelta(minutes=1), **changes: Any) -> dict[str, Any]:
    """A scaling activity: a launch that did well."""
    return (
        failed("", ago=ago)
        | {
            "Description": "Launching a new EC2 instance: i-0bbbbbbbbbbbbbbb1",
            "StatusCode": "Successful",
        }
        | changes
    )


def terminating(instance_id: str, **changes: Any) -> dict[str, Any]:
    """A scaling activity: a termination under way."""
    return (
        failed("", ago=timedelta(0))
        | {
            "Description": f"Terminating EC2 instance: {instance_id}",
            "StatusCode": "InProgress",
        }
        | changes
    )


def show_activities(aws: Aws, wire: Wire, *activities: dict[str, Any]) -> None:
    """Let the group have these scaling activities, newest first."""
    wire.change(
        aws.autoscaling,
        "DescribeScalingActivities",
        lambda parsed: parsed.update(Activities=[dict(each) for each in activities]),
    )


def change_group(aws: Aws, wire: Wire, change: Change) -> None:
    """Change what Auto Scaling says of the group."""

    def on_groups(parsed: dict[str, Any]) -> None:
        for group in parsed.get("AutoScalingGroups", ()):
            change(group)

    wire.change(aws.autoscaling, "DescribeAutoScalingGroups", on_groups)


def set_lifecycle(aws: Aws, wire: Wire, instance_id: str, lifecycle: str) -> None:
    """The lifecycle state of one instance, wherever Auto Scaling tells it."""

    def change(member: dict[str, Any]) -> None:
        if member["InstanceId"] == instance_id:
            member["LifecycleState"] = lifecycle

    def on_group(group: dict[str, Any]) -> None:
        for member in group["Instances"]:
            change(member)

    def on_instances(parsed: dict[str, Any]) -> None:
        for member in parsed.get("AutoScalingInstances", ()):
            change(member)

    change_group(aws, wire, on_group)
    wire.change(aws.autoscaling, "DescribeAutoScalingInstances", on_instances)


def leave_out(aws: Aws, wire: Wire, instance_id: str) -> None:
    """The group has lost this instance, and has launched none in its place."""

    def on_group(group: dict[str, Any]) -> None:
        group["Instances"] = [each for each in group["Instances"] if each["InstanceId"] != instance_id]

    change_group(aws, wire, on_group)


def change_instance(aws: Aws, wire: Wire, instance_id: str, **fields: Any) -> None:
    """Change what EC2 says of an instance."""

    def change(parsed: dict[str, Any]) -> None:
        for reservation in parsed.get("Reservations", ()):
            for each in reservation["Instances"]:
                if each["InstanceId"] == instance_id:
                    each.update(fields)

    wire.change(aws.ec2, "DescribeInstances", change)


class ReservationShown(AWSResponse):
    """EC2's answer about one capacity reservation, as it goes over the wire: moto has none."""

    def __init__(self, fields: dict[str, object]) -> None:
        super().__init__("", 200, {}, None)
        item = "".join(f"<{key}>{value}</{key}>" for key, value in fields.items())
        self._content = (
            "<DescribeCapacityReservationsResponse><capacityReservationSet>"
            f"<item>{item}</item></capacityReservationSet></DescribeCapacityReservationsResponse>"
        ).encode()

    @property
    def content(self) -> bytes:
        return self._content


def show_reservation(aws: Aws, reservation_id: str, **fields: object) -> None:
    """Let there be a capacity reservation, full unless told otherwise. Fields are named as on the wire."""
    shown = {
        "capacityReservationId": reservation_id,
        "state": "active",
        "availableInstanceCount": 0,
        "reservationType": "default",
    } | fields
    aws.ec2.meta.events.register(
        "before-send.*.DescribeCapacityReservations", lambda **_: ReservationShown(shown)
    )
