"""After the termination: a group that launches another, and one that cannot."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cloud.conftest import GROUP, Wire, members, replacement_of, set_state, soon
from cloud.scaling import NO_P5, change_group, failed, leave_out, show_activities
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws import auto_scaling_group, successor
from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.cloud import Cloud
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import AwaitSuccessor, ConfirmReplacement

RESERVATION = "cr-0123456789abcdef0"


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_scaling_group, "POLL_SECONDS", 0.05)


def waiting_for(node: NodeIdentity, **changes: Any) -> AwaitSuccessor:
    fields = {
        "replaced": node.instance_id,
        "group": GROUP,
        "desired_capacity": 4,
        "requested_at": datetime.now(UTC),
        "deadline": soon(600),
    }
    return AwaitSuccessor(**(fields | changes))


def just_failed(message: str = NO_P5) -> dict[str, Any]:
    return failed(message, StartTime=datetime.now(UTC))


@pytest.fixture
def node(aws: Aws, wire: Wire, fleet: list[NodeIdentity]) -> NodeIdentity:
    """It left the group, which has launched none in its place."""
    leave_out(aws, wire, fleet[0].instance_id)
    return fleet[0]


async def test_a_complete_group_has_launched_its_successor(aws: Aws, fleet: list[NodeIdentity]) -> None:
    await Cloud(aws).replace_instance(replacement_of(fleet[0]))

    answer = await successor.await_successor(aws, waiting_for(fleet[0]))

    assert (answer.coming, answer.capacity_lost) == (True, False)
    assert set(answer.instances) == set(members(aws)) - {fleet[0].instance_id}


async def test_a_group_without_capacity_is_told_at_once(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    show_activities(aws, wire, just_failed())

    answer = await successor.await_successor(aws, waiting_for(node))

    assert (answer.coming, answer.capacity_lost) == (False, True)
    assert "do not have sufficient p5.48xlarge capacity" in answer.message


async def test_a_failure_from_before_the_termination_is_not_its_own(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    show_activities(aws, wire, failed(ago=timedelta(minutes=2)))

    answer = await successor.await_successor(aws, waiting_for(node, deadline=soon(-1)))

    assert (answer.coming, answer.capacity_lost) == (False, False)
    assert "has 3 of 4 instances" in answer.message


async def test_the_old_instance_does_not_count_for_its_successor(aws: Aws, fleet: list[NodeIdentity]) -> None:
    answer = await successor.await_successor(aws, waiting_for(fleet[0], deadline=soon(-1)))

    assert not answer.coming


async def test_a_reserved_slot_is_waited_for_until_the_old_instance_is_gone(
    aws: Aws, wire: Wire, node: NodeIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(successor, "SLOT_RETURNS", timedelta(0))
    looked, loop = asyncio.Event(), asyncio.get_running_loop()
    states = ["shutting-down"]

    def state(parsed: dict[str, Any]) -> None:
        set_state(node.instance_id, states[-1])(parsed)
        loop.call_soon_threadsafe(looked.set)

    wire.change(aws.ec2, "DescribeInstances", state)
    wire.change(
        aws.autoscaling,
        "DescribeScalingActivities",
        lambda parsed: parsed.update(Activities=[just_failed()]),
    )
    waiting = asyncio.create_task(successor.await_successor(aws, waiting_for(node, reservation=RESERVATION)))
    for _ in range(3):
        looked.clear()
        await looked.wait()
    assert not waiting.done(), "its slot is not free yet, so that these failures say nothing"
    states.append("terminated")

    assert (await waiting).capacity_lost


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"SuspendedProcesses": [{"ProcessName": "Launch", "SuspensionReason": "by ana"}]}, "by ana"),
        ({"DesiredCapacity": 3}, "somebody lowered the desired capacity"),
        ({"Status": "Delete in progress"}, "Delete in progress"),
    ],
)
async def test_a_group_that_will_launch_nothing_is_told_at_once(
    aws: Aws, wire: Wire, node: NodeIdentity, change: dict[str, Any], words: str
) -> None:
    change_group(aws, wire, lambda group: group.update(change))

    answer = await successor.await_successor(aws, waiting_for(node))

    assert (answer.coming, answer.capacity_lost) == (False, True)
    assert words in answer.message


async def test_a_group_that_is_gone_launches_nothing(aws: Aws, node: NodeIdentity) -> None:
    answer = await successor.await_successor(aws, waiting_for(node, group="gone"))

    assert answer.capacity_lost
    assert "does not exist any more" in answer.message


async def test_a_throttled_look_is_an_error_and_no_answer(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    wire.refuse(aws.autoscaling, "DescribeScalingActivities", *["Throttling"] * 9)

    with pytest.raises(ApplicationError) as raised:
        await successor.await_successor(aws, waiting_for(node))

    assert (raised.value.type, raised.value.non_retryable) == (errors.AWS, False)


@pytest.mark.parametrize("capacity_lost", [True, False])
async def test_a_new_instance_that_its_group_ends_again_is_told_at_once(
    aws: Aws, wire: Wire, fleet: list[NodeIdentity], capacity_lost: bool
) -> None:
    old, new = fleet[0], fleet[1]
    await Cloud(aws).replace_instance(replacement_of(old))
    wire.change(aws.ec2, "DescribeInstances", set_state(new.instance_id, "shutting-down"))
    if capacity_lost:
        show_activities(aws, wire, just_failed())

    answer = await Cloud(aws).confirm_replacement(
        ConfirmReplacement(
            replaced=old.instance_id,
            replacement=new.instance_id,
            group=GROUP,
            desired_capacity=4,
            deadline=soon(600),
        )
    )

    assert (answer.confirmed, answer.capacity_lost) == (False, capacity_lost)
    assert f"new instance {new.instance_id} is shutting-down" in answer.message
