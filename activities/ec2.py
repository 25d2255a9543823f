"""EC2 instances: what one is now, and its reboot."""

from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws import Aws, call
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import RebootInstance, RebootRequested

GOING = frozenset({"shutting-down", "terminated"})
"""States from which an instance never comes back."""


@dataclass(frozen=True)
class Instance:
    """An instance as EC2 describes it."""

    instance_id: str
    state: str
    """pending, running, stopping, stopped, shutting-down or terminated."""
    instance_type: str
    zone: str
    tags: dict[str, str]
    lifecycle: str = ""
    """spot, capacity-block, interruptible-capacity-reservation or scheduled; empty for plain On-Demand."""
    reservation: str = ""
    """Capacity reservation that it runs in; a Capacity Block is one too."""


async def describe(aws: Aws, instance_id: str) -> Instance:
    """The instance as it is now.

    Raises INSTANCE_UNKNOWN for an id that EC2 does not know, and a retryable error for an answer without the
    instance: EC2 is eventually consistent, so that an empty list is neither stopped nor terminated.
    """
    answer = await call(aws.ec2.describe_instances, InstanceIds=[instance_id])
    for reservation in answer["Reservations"]:
        for found in reservation["Instances"]:
            if found["InstanceId"] == instance_id:
                return Instance(
                    instance_id=instance_id,
                    state=found["State"]["Name"],
                    instance_type=found["InstanceType"],
                    zone=found["Placement"]["AvailabilityZone"],
                    tags={tag["Key"]: tag["Value"] for tag in found.get("Tags", ())},
                    lifecycle=found.get("InstanceLifecycle", ""),
                    reservation=found.get("CapacityReservationId", ""),
                )
    raise ApplicationError(
        f"EC2 answered without instance {instance_id}: its state is unknown", type=errors.AWS
    )


async def describe_machine(aws: Aws, identity: NodeIdentity) -> Instance:
    """The instance of a node, checked to be the machine that the node says it is.

    Raises INSTANCE_UNKNOWN for a node without an EC2 instance, and where type or zone differ: then the node's
    provider id, which a node writes itself, names somebody else's machine.
    """
    if not identity.instance_id:
        raise errors.refusal(
            errors.INSTANCE_UNKNOWN,
            f"node {identity.name} names no EC2 instance: its provider id is {identity.provider_id!r}",
        )
    instance = await describe(aws, identity.instance_id)
    if (instance.instance_type, instance.zone) != (identity.instance_type, identity.zone):
        raise errors.refusal(
            errors.INSTANCE_UNKNOWN,
            f"instance {instance.instance_id} is a {instance.instance_type} in {instance.zone}, but node "
            f"{identity.name} says {identity.instance_type or 'no type'} in {identity.zone}: it is not the "
            "node's machine, so it is left alone. Compare the node's provider id and labels with EC2",
        )
    return instance


def require_fresh(not_after: datetime) -> None:
    """Raise NOT_SENT where the look that permits an act is too old: a worker may have been stalled since."""
    if datetime.now(UTC) > not_after:
        raise ApplicationError(
            f"nothing was sent: the look at the node held until {not_after:%H:%M:%S} UTC",
            type=errors.NOT_SENT,
            non_retryable=True,
        )


async def reboot_instance(aws: Aws, request: RebootInstance) -> RebootRequested:
    """Call RebootInstances, once, on a running instance.

    Raises INSTANCE_NOT_RUNNING for any other state, naming it, and NOT_SENT where the state could not be
    read. An error of the reboot itself that is no refusal leaves its outcome unknown: EC2 has no idempotency
    token for it.
    """
    try:
        instance = await describe_machine(aws, request.identity)
    except ApplicationError as error:
        if error.non_retryable:
            raise
        raise ApplicationError(f"nothing was rebooted: {error.message}", type=errors.NOT_SENT) from error
    if instance.state != "running":
        raise errors.refusal(
            errors.INSTANCE_NOT_RUNNING,
            f"instance {instance.instance_id} of node {request.identity.name} is {instance.state}: only a "
            "running instance can be rebooted",
        )
    require_fresh(request.not_after)
    await call(aws.ec2_once.reboot_instances, InstanceIds=[instance.instance_id])
    return RebootRequested(instance_id=instance.instance_id, requested_at=datetime.now(UTC))
