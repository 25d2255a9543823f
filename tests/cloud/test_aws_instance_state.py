"""EC2 is eventually consistent: what its answers say of an instance, with what was seen of it before."""

from typing import Any

import pytest
from cloud.conftest import Wire, identity, reboot_of, set_state
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.connection import READ_ATTEMPTS, Aws
from gpu_runbooks.activities.aws.ec2 import describe, reboot_instance
from gpu_runbooks.activities.aws.instance_state import GOING, STATES, Known, Odd, Seen, known_from
from gpu_runbooks.activities.model.node import NodeIdentity

UNKNOWN, REFUSED = Known(), Known(refused=True)
UNHEARD_OF = "hibernating-on-mars"
ID = "i-0aaaaaaaaaaaaaaa1"


@pytest.fixture
def node(fleet: list[NodeIdentity]) -> NodeIdentity:
    return fleet[0]


@pytest.mark.parametrize(
    ("seen", "answers", "known"),
    [
        (Seen.LAUNCHED, [Odd.NOT_FOUND, Odd.NOT_FOUND, "pending", "running"], Known("running")),
        (Seen.LAUNCHED, [Odd.NOT_FOUND, Odd.NOT_FOUND, "pending"], Known("pending")),
        (Seen.LAUNCHED, [Odd.NOT_FOUND] * 9, UNKNOWN),
        (Seen.LAUNCHED, ["pending", Odd.NOT_FOUND], UNKNOWN),
        (Seen.LAUNCHED, [Odd.NOT_FOUND, "terminated", Odd.NOT_FOUND], Known("terminated")),
        (Seen.GOING, [Odd.NOT_FOUND], Known("terminated")),
        (Seen.GOING, ["shutting-down"], Known("shutting-down")),
        (Seen.GOING, ["shutting-down", Odd.NOT_FOUND], Known("terminated")),
        (Seen.GOING, [Odd.ABSENT, Odd.NOT_FOUND], Known("terminated")),
        (Seen.GOING, ["running"], UNKNOWN),
        (Seen.GOING, ["running", Odd.NOT_FOUND], Known("terminated")),
        (Seen.THERE, [Odd.NOT_FOUND], UNKNOWN),
        (Seen.THERE, [Odd.NOT_FOUND, "running"], Known("running")),
        (Seen.THERE, ["shutting-down", Odd.NOT_FOUND], Known("terminated")),
        (Seen.NEVER, [Odd.NOT_FOUND], REFUSED),
        (Seen.NEVER, [Odd.ABSENT, Odd.NOT_FOUND], REFUSED),
        (Seen.NEVER, ["running", Odd.NOT_FOUND], UNKNOWN),
        (Seen.NEVER, ["stopped"], Known("stopped")),
        (Seen.NEVER, [], UNKNOWN),
        *((seen, [Odd.ABSENT], UNKNOWN) for seen in Seen),
        *((seen, [UNHEARD_OF], UNKNOWN) for seen in Seen),
        *((seen, [Odd.MALFORMED], REFUSED) for seen in Seen),
        *(
            (seen, [state], Known(state))
            for seen in Seen
            if seen is not Seen.GOING
            for state in sorted(STATES)
        ),
        *((Seen.GOING, [state], Known(state)) for state in sorted(GOING)),
    ],
)
def test_what_is_known(seen: Seen, answers: list[str], known: Known) -> None:
    assert known_from(seen, answers) == known
    assert known.unknown is (known == UNKNOWN)


async def test_a_new_id_is_asked_for_until_it_shows(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    states = ["pending", "running"]
    wire.refuse(aws.ec2, "DescribeInstances", *["InvalidInstanceID.NotFound"] * 2)
    wire.change(aws.ec2, "DescribeInstances", lambda parsed: next_state(parsed, node, states))

    assert (await describe(aws, node.instance_id, Seen.LAUNCHED, within=30)).state == "pending"
    assert wire.sent["DescribeInstances"] == 3
    assert (await describe(aws, node.instance_id, Seen.LAUNCHED)).state == "running"


@pytest.mark.parametrize("seen", [Seen.LAUNCHED, Seen.THERE])
async def test_an_id_that_stays_unknown_is_worth_a_retry(aws: Aws, seen: Seen) -> None:
    with pytest.raises(ApplicationError, match="neither stopped nor terminated") as raised:
        await describe(aws, ID, seen)

    assert (raised.value.type, raised.value.non_retryable) == (errors.AWS, False)


async def test_an_id_that_was_seen_going_and_is_forgotten_is_terminated(aws: Aws, wire: Wire) -> None:
    assert (await describe(aws, ID, Seen.GOING)).state == "terminated"
    assert wire.sent["DescribeInstances"] == 1


async def test_a_malformed_id_is_refused_at_once(aws: Aws, wire: Wire) -> None:
    wire.refuse(aws.ec2, "DescribeInstances", *["InvalidInstanceID.Malformed"] * 9)

    for seen in Seen:
        with pytest.raises(ApplicationError, match="Malformed") as raised:
            await describe(aws, "i-nonsense", seen)
        assert (raised.value.type, raised.value.non_retryable) == (errors.INSTANCE_UNKNOWN, True)
    assert wire.sent["DescribeInstances"] == len(Seen)


@pytest.mark.parametrize("kind", ["no-reservations", "another-instance", "unheard-of-state"])
async def test_an_answer_that_says_nothing_of_the_instance_is_no_state(
    aws: Aws, wire: Wire, node: NodeIdentity, kind: str
) -> None:
    def change(parsed: dict[str, Any]) -> None:
        if kind == "unheard-of-state":
            set_state(node.instance_id, UNHEARD_OF)(parsed)
        elif kind == "another-instance":
            parsed["Reservations"][0]["Instances"][0]["InstanceId"] = ID
        else:
            parsed["Reservations"] = []

    wire.change(aws.ec2, "DescribeInstances", change)

    with pytest.raises(ApplicationError, match="nothing was rebooted") as raised:
        await reboot_instance(aws, reboot_of(node))

    assert (raised.value.type, raised.value.non_retryable) == (errors.NOT_SENT, False)
    assert wire.sent["RebootInstances"] == 0


async def test_one_empty_answer_is_asked_again(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    empty = [True]

    def change(parsed: dict[str, Any]) -> None:
        if empty:
            empty.pop()
            parsed["Reservations"] = []

    wire.change(aws.ec2, "DescribeInstances", change)

    assert (await describe(aws, node.instance_id, within=30)).state == "running"


async def test_five_throttled_answers_are_waited_out_within_one_look(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    wire.refuse(aws.ec2, "DescribeInstances", *["RequestLimitExceeded"] * 5, status=503)

    assert (await describe(aws, node.instance_id)).state == "running"


async def test_throttling_is_neither_a_state_nor_gone(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    """As many refusals as one call makes attempts: the call fails, and the next one shows the state."""
    for seen in Seen:
        wire.refuse(aws.ec2, "DescribeInstances", *["RequestLimitExceeded"] * READ_ATTEMPTS, status=503)
        with pytest.raises(ApplicationError, match="RequestLimitExceeded") as raised:
            await describe(aws, node.instance_id, seen)
        assert (raised.value.type, raised.value.non_retryable) == (errors.AWS, False)

    assert (await describe(aws, node.instance_id)).state == "running"


async def test_an_instance_that_vanishes_before_its_reboot_is_looked_at_again(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    wire.refuse(aws.ec2_once, "RebootInstances", "InvalidInstanceID.NotFound")

    with pytest.raises(ApplicationError, match="looked at again") as raised:
        await reboot_instance(aws, reboot_of(node))

    assert (raised.value.type, raised.value.non_retryable) == (errors.NOT_SENT, False)
    assert wire.sent["RebootInstances"] == 1


async def test_the_id_of_a_node_that_ec2_never_showed_is_refused(aws: Aws, wire: Wire) -> None:
    with pytest.raises(ApplicationError, match="Compare the node's provider id") as raised:
        await reboot_instance(aws, reboot_of(identity(ID)))

    assert (raised.value.type, raised.value.non_retryable) == (errors.INSTANCE_UNKNOWN, True)
    assert wire.sent == {"DescribeInstances": 1}


def next_state(parsed: dict[str, Any], node: NodeIdentity, states: list[str]) -> None:
    """The next of these states, in an answer that is one."""
    if parsed.get("Reservations"):
        set_state(node.instance_id, states.pop(0))(parsed)
