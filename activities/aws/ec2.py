"""EC2 instances: what one is now, what is scheduled for it, and its reboot."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.cluster_tag import CLUSTER_TAG, is_untagged, why_not_ours
from gpu_runbooks.activities.aws.connection import Aws, act, call
from gpu_runbooks.activities.aws.instance_state import GOING, Known, Odd, Seen, known_from, seen_after
from gpu_runbooks.activities.aws.refusals import MALFORMED_INSTANCE, NO_SUCH_INSTANCE, code_of
from gpu_runbooks.activities.aws.scheduled_events import pending_events
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import (
    InspectInstance,
    InstanceReport,
    RebootInstance,
    RebootRequested,
)

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

UNSURE_SECONDS = 6.0
"""How long an answer that says nothing of the instance is asked for again, before it is an error."""
UNSURE_PAUSE = 2.0

LONGEST_EVENTS = 10


@dataclass(frozen=True)
class Instance:
    """An instance as EC2 describes it. One that EC2 forgot after its end has its id and state alone."""

    instance_id: str
    state: str
    """One of `instance_state.STATES`."""
    instance_type: str = ""
    zone: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    lifecycle: str = ""
    """spot, capacity-block, interruptible-capacity-reservation or scheduled; empty for plain On-Demand."""
    reservation: str = ""
    """Capacity reservation that it runs in; a Capacity Block is one too."""


async def describe(
    aws: Aws, instance_id: str, seen: Seen = Seen.NEVER, *, within: float | None = None
) -> Instance:
    """The instance as it is now, by what EC2 says and by what was seen of it before.

    While EC2 says nothing of it, it is asked again for `within` seconds (6 unless told). Raises
    INSTANCE_UNKNOWN for an id that EC2 does not know and that nobody saw there, and AWS (worth a retry) where
    the state stays unknown: that is neither stopped nor terminated.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + (UNSURE_SECONDS if within is None else within)
    while True:
        answer, found, error = await _ask(aws, instance_id)
        known = known_from(seen, [answer])
        seen = seen_after(seen, answer)
        if known.state:
            return _instance(instance_id, known, found)
        if known.refused and error is not None:
            raise error
        if loop.time() >= until:
            raise ApplicationError(
                f"EC2's answer about instance {instance_id} is {answer!r}: its state is unknown, which is "
                "neither stopped nor terminated. It is asked again later",
                type=errors.AWS,
            ) from error
        await asyncio.sleep(UNSURE_PAUSE)


async def _ask(aws: Aws, instance_id: str) -> tuple[str, "InstanceTypeDef | None", ApplicationError | None]:
    """One answer about the instance: its state or an `Odd`, what EC2 shows, and how it refused."""
    try:
        answer = await call(aws.ec2.describe_instances, InstanceIds=[instance_id])
    except ApplicationError as error:
        match code_of(error.__cause__):
            case code if code == NO_SUCH_INSTANCE:
                return Odd.NOT_FOUND, None, error
            case code if code == MALFORMED_INSTANCE:
                return Odd.MALFORMED, None, error
        raise
    for reservation in answer["Reservations"]:
        for found in reservation["Instances"]:
            if found["InstanceId"] == instance_id:
                return found["State"]["Name"], found, None
    return Odd.ABSENT, None, None


def _instance(instance_id: str, known: Known, found: "InstanceTypeDef | None") -> Instance:
    if found is None:
        return Instance(instance_id=instance_id, state=known.state)
    return Instance(
        instance_id=instance_id,
        state=known.state,
        instance_type=found["InstanceType"],
        zone=found["Placement"]["AvailabilityZone"],
        tags={tag["Key"]: tag["Value"] for tag in found.get("Tags", ())},
        lifecycle=found.get("InstanceLifecycle", ""),
        reservation=found.get("CapacityReservationId", ""),
    )


async def describe_machine(aws: Aws, identity: NodeIdentity) -> Instance:
    """The instance of a node, checked to be the machine that the node says it is, and one of the cluster's.

    Raises INSTANCE_UNKNOWN for a node without an EC2 instance, and where type or zone differ: then the node's
    provider id, which a node writes itself, names somebody else's machine. Raises FORBIDDEN where the tags
    do not say that it is the cluster's: no reason for a stronger act, a person has to look.
    """
    if not identity.instance_id:
        raise errors.refusal(
            errors.INSTANCE_UNKNOWN,
            f"node {identity.name} names no EC2 instance: its provider id is {identity.provider_id!r}, and "
            "only one of the form aws:///ZONE/i-... does. Repair its machine by hand",
        )
    instance = await describe(aws, identity.instance_id)
    if (instance.instance_type, instance.zone) != (identity.instance_type, identity.zone):
        raise errors.refusal(
            errors.INSTANCE_UNKNOWN,
            f"instance {instance.instance_id} is a {instance.instance_type} in {instance.zone}, but node "
            f"{identity.name} says {identity.instance_type or 'no type'} in {identity.zone}: it is not the "
            "node's machine, so it is left alone. Compare the node's provider id and labels with EC2",
        )
    is_over = instance.state in GOING and is_untagged(instance.tags)
    if not is_over and (why := why_not_ours(instance.tags, aws.cluster)):
        raise errors.refusal(
            errors.FORBIDDEN,
            f"instance {instance.instance_id} of node {identity.name} is left alone: {why}. If it is this "
            f"cluster's, tag it {CLUSTER_TAG}{aws.cluster}=owned; if the cluster has another name in AWS, "
            "set GPU_RUNBOOKS_CLUSTER to that",
        )
    return instance


async def require_running(aws: Aws, request: RebootInstance) -> Instance:
    """The node's own machine, which runs.

    Raises INSTANCE_NOT_RUNNING for any other state, naming it, and NOT_SENT where the state could not be
    read.
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
    read or the call surely had no effect. AWS means an unknown outcome: EC2 has no idempotency token for it.
    """
    instance = await require_running(aws, request)
    require_fresh(request.not_after)
    try:
        await act(aws.ec2_once.reboot_instances, InstanceIds=[instance.instance_id])
    except ApplicationError as error:
        if code_of(error.__cause__) != NO_SUCH_INSTANCE:
            raise
        raise ApplicationError(
            f"nothing was rebooted: EC2 showed instance {instance.instance_id} running, and then did not "
            "know it. It is looked at again",
            type=errors.NOT_SENT,
        ) from error
    return RebootRequested(instance_id=instance.instance_id, requested_at=datetime.now(UTC))


async def inspect_instance(aws: Aws, request: InspectInstance) -> InstanceReport:
    """State of the node's own machine, and the events that AWS has scheduled for it.

    Raises as `describe_machine` does, and AWS (worth a retry) where EC2 does not tell the events. An instance
    that is going has none that matter.
    """
    instance = await describe_machine(aws, request.identity)
    if instance.state in GOING:
        return InstanceReport(state=instance.state)
    answer = await call(
        aws.ec2.describe_instance_status, InstanceIds=[instance.instance_id], IncludeAllInstances=True
    )
    for status in answer["InstanceStatuses"]:
        if status["InstanceId"] == instance.instance_id:
            pending = pending_events(status.get("Events", ()))
            return InstanceReport(
                state=instance.state,
                retiring="; ".join(event.words for event in pending if event.retires),
                events=tuple(event.words for event in pending[:LONGEST_EVENTS]),
            )
    raise ApplicationError(
        f"EC2 answered without the status of instance {instance.instance_id} of node "
        f"{request.identity.name}: nobody knows what is scheduled for it. It is asked again later",
        type=errors.AWS,
    )
