"""What is known of an instance before a repair: its state, and what AWS has scheduled for it."""

from datetime import UTC, datetime
from typing import Any

import botocore.session
import pytest
from cloud.conftest import Wire, identity, set_state
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.aws.ec2 import inspect_instance
from gpu_runbooks.activities.aws.scheduled_events import RETIRING, pending_events
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import InspectInstance

EVENT_CODES = botocore.session.get_session().get_service_model("ec2").shape_for("EventCode").enum


@pytest.fixture
def node(fleet: list[NodeIdentity]) -> NodeIdentity:
    return fleet[0]


def event(code: str, description: str = "The instance is running on degraded hardware") -> dict[str, Any]:
    return {
        "InstanceEventId": "instance-event-0d59",
        "Code": code,
        "Description": description,
        "NotBefore": datetime(2026, 3, 14, 3, 0, tzinfo=UTC),
    }


def scheduled(*events: dict[str, Any]) -> Any:
    """Change of an answer of DescribeInstanceStatus: moto schedules nothing."""

    def change(parsed: dict[str, Any]) -> None:
        for status in parsed["InstanceStatuses"]:
            status["Events"] = list(events)

    return change


async def test_nothing_is_scheduled_for_a_healthy_instance(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    report = await inspect_instance(aws, InspectInstance(identity=node))

    assert (report.state, report.retiring, report.events) == ("running", "", ())
    assert wire.parameters["DescribeInstanceStatus"] == {
        "InstanceIds": [node.instance_id],
        "IncludeAllInstances": True,
    }


@pytest.mark.parametrize("code", EVENT_CODES)
async def test_a_scheduled_event_is_told(aws: Aws, wire: Wire, node: NodeIdentity, code: str) -> None:
    wire.change(aws.ec2, "DescribeInstanceStatus", scheduled(event(code)))

    report = await inspect_instance(aws, InspectInstance(identity=node))

    words = f"{code}: The instance is running on degraded hardware, not before 2026-03-14 03:00 UTC"
    assert report.events == (words,)
    assert report.retiring == (words if code in {"instance-retirement", "instance-stop"} else "")


def test_what_retires_an_instance_is_known_to_ec2() -> None:
    assert set(EVENT_CODES) > RETIRING


@pytest.mark.parametrize("over", ["[Completed] ", "[Canceled] ", "[Cancelled] ", "  [completed] "])
async def test_an_event_that_is_over_does_not_count(
    aws: Aws, wire: Wire, node: NodeIdentity, over: str
) -> None:
    wire.change(
        aws.ec2,
        "DescribeInstanceStatus",
        scheduled(event("instance-retirement", f"{over}degraded hardware"), event("system-reboot", "power")),
    )

    report = await inspect_instance(aws, InspectInstance(identity=node))

    assert report.retiring == ""
    assert report.events == ("system-reboot: power, not before 2026-03-14 03:00 UTC",)


def test_a_code_that_nobody_has_heard_of_is_told_and_retires_nothing() -> None:
    [told] = pending_events([{"Code": "instance-teleport"}])

    assert told.words == "instance-teleport: "
    assert not told.retires


async def test_of_many_events_the_retirement_is_never_cut(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    many = [event("system-maintenance", "x" * 900)] * 20
    wire.change(aws.ec2, "DescribeInstanceStatus", scheduled(*many, event("instance-retirement")))

    report = await inspect_instance(aws, InspectInstance(identity=node))

    assert len(report.events) == 10
    assert report.events[0].startswith("instance-retirement")
    assert len(report.model_dump_json()) < 4096


@pytest.mark.parametrize("state", ["shutting-down", "terminated"])
async def test_an_instance_that_is_going_says_so(
    aws: Aws, wire: Wire, node: NodeIdentity, state: str
) -> None:
    wire.change(aws.ec2, "DescribeInstances", set_state(node.instance_id, state))

    report = await inspect_instance(aws, InspectInstance(identity=node))

    assert (report.state, report.retiring) == (state, "")


async def test_a_stopped_instance_is_looked_at_too(aws: Aws, node: NodeIdentity) -> None:
    aws.ec2.stop_instances(InstanceIds=[node.instance_id])

    assert (await inspect_instance(aws, InspectInstance(identity=node))).state == "stopped"


async def test_an_id_that_ec2_does_not_know_is_told(aws: Aws) -> None:
    with pytest.raises(ApplicationError, match=r"InvalidInstanceID\.NotFound") as raised:
        await inspect_instance(aws, InspectInstance(identity=identity("i-0aaaaaaaaaaaaaaa1")))

    assert (raised.value.type, raised.value.non_retryable) == (errors.INSTANCE_UNKNOWN, True)


async def test_an_answer_without_the_instance_says_nothing_of_events(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    wire.change(aws.ec2, "DescribeInstanceStatus", lambda parsed: parsed.update(InstanceStatuses=[]))

    with pytest.raises(ApplicationError, match="nobody knows what is scheduled") as raised:
        await inspect_instance(aws, InspectInstance(identity=node))

    assert (raised.value.type, raised.value.non_retryable) == (errors.AWS, False)
