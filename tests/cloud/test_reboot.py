"""Reboots: one call at most, on a running instance that is the node's own machine."""

import pytest
from botocore.awsrequest import AWSResponse
from cloud.conftest import Wire, identity, reboot_of, set_state, soon
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.connection import READ_ATTEMPTS, Aws
from gpu_runbooks.activities.cloud import Cloud
from gpu_runbooks.activities.model.node import NodeIdentity


@pytest.fixture
def node(fleet: list[NodeIdentity]) -> NodeIdentity:
    return fleet[0]


async def test_a_running_instance_is_rebooted_once(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    requested = await Cloud(aws).reboot_instance(reboot_of(node))

    assert requested.instance_id == node.instance_id
    assert wire.sent == {"DescribeInstances": 1, "RebootInstances": 1}
    assert wire.parameters["RebootInstances"] == {"InstanceIds": [node.instance_id]}


async def test_a_timeout_after_the_request_was_sent_is_not_tried_again(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    wire.lose_answer(aws.ec2_once, "RebootInstances", times=3)

    with pytest.raises(ApplicationError, match="Read timeout") as raised:
        await Cloud(aws).reboot_instance(reboot_of(node))

    assert wire.sent["RebootInstances"] == 1
    assert raised.value.type == errors.AWS, "the outcome is unknown, not refused"


@pytest.mark.parametrize(
    ("code", "status", "error_type"),
    [
        ("InternalError", 500, errors.AWS),
        ("InternalFailure", 500, errors.AWS),
        ("Unavailable", 503, errors.AWS),
        ("ServiceUnavailable", 503, errors.AWS),
        ("RequestTimeout", 408, errors.AWS),
        ("RequestLimitExceeded", 503, errors.NOT_SENT),
        ("Throttling", 400, errors.NOT_SENT),
        ("SlowDown", 503, errors.NOT_SENT),
        ("ExpiredToken", 400, errors.NOT_SENT),
        ("RequestExpired", 400, errors.NOT_SENT),
    ],
)
async def test_a_failed_reboot_is_sent_once_and_says_whether_it_may_have_had_an_effect(
    aws: Aws, wire: Wire, node: NodeIdentity, code: str, status: int, error_type: str
) -> None:
    wire.refuse(aws.ec2_once, "RebootInstances", code, code, status=status)

    with pytest.raises(ApplicationError, match=code) as raised:
        await Cloud(aws).reboot_instance(reboot_of(node))

    assert raised.value.type == error_type
    assert ("Nobody knows whether it took effect" in raised.value.message) is (error_type == errors.AWS)
    assert wire.sent["RebootInstances"] == 1


async def test_a_reboot_whose_answer_is_garbage_has_an_unknown_outcome(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    class Garbage(AWSResponse):
        content = b"<html>502"

    aws.ec2_once.meta.events.register(
        "before-send.ec2.RebootInstances", lambda **_: Garbage("", 200, {}, None)
    )

    with pytest.raises(ApplicationError, match="reboot_instances") as raised:
        await Cloud(aws).reboot_instance(reboot_of(node))

    assert raised.value.type == errors.AWS
    assert wire.sent["RebootInstances"] == 1


async def test_a_look_that_is_too_old_sends_nothing(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    with pytest.raises(ApplicationError, match="the look at the node held until") as raised:
        await Cloud(aws).reboot_instance(reboot_of(node).model_copy(update={"not_after": soon(-1)}))

    assert raised.value.type == errors.NOT_SENT
    assert wire.sent["RebootInstances"] == 0


@pytest.mark.parametrize("state", ["pending", "stopping", "stopped", "shutting-down", "terminated"])
async def test_an_instance_that_does_not_run_is_not_rebooted(
    aws: Aws, wire: Wire, node: NodeIdentity, state: str
) -> None:
    wire.change(aws.ec2, "DescribeInstances", set_state(node.instance_id, state))

    with pytest.raises(ApplicationError, match=f"is {state}") as raised:
        await Cloud(aws).reboot_instance(reboot_of(node))

    assert (raised.value.type, raised.value.non_retryable) == (errors.INSTANCE_NOT_RUNNING, True)
    assert wire.sent["RebootInstances"] == 0


@pytest.mark.parametrize(
    "change",
    [{"zone": "us-west-2b"}, {"instance_type": "p4d.24xlarge"}, {"instance_type": ""}],
    ids=["other-zone", "other-type", "no-type"],
)
async def test_an_instance_that_is_not_the_nodes_machine_is_left_alone(
    aws: Aws, wire: Wire, node: NodeIdentity, change: dict[str, str]
) -> None:
    with pytest.raises(ApplicationError, match="not the node's machine") as raised:
        await Cloud(aws).reboot_instance(reboot_of(node.model_copy(update=change)))

    assert (raised.value.type, raised.value.non_retryable) == (errors.INSTANCE_UNKNOWN, True)
    assert wire.sent["RebootInstances"] == 0


async def test_a_node_without_an_instance_asks_ec2_nothing(aws: Aws, wire: Wire) -> None:
    with pytest.raises(ApplicationError, match="names no EC2 instance") as raised:
        await Cloud(aws).reboot_instance(reboot_of(identity("", provider_id="kind://worker")))

    assert raised.value.type == errors.INSTANCE_UNKNOWN
    assert not wire.sent


async def test_an_id_never_seen_is_refused(aws: Aws, wire: Wire) -> None:
    with pytest.raises(ApplicationError, match=r"InvalidInstanceID\.NotFound") as raised:
        await Cloud(aws).reboot_instance(reboot_of(identity("i-0aaaaaaaaaaaaaaa1")))

    assert (raised.value.type, raised.value.non_retryable) == (errors.INSTANCE_UNKNOWN, True)
    assert wire.sent["RebootInstances"] == 0


async def test_an_answer_without_the_instance_is_unknown(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    wire.change(aws.ec2, "DescribeInstances", lambda parsed: parsed.update(Reservations=[]))

    with pytest.raises(ApplicationError, match="its state is unknown") as raised:
        await Cloud(aws).reboot_instance(reboot_of(node))

    assert (raised.value.type, raised.value.non_retryable) == (errors.NOT_SENT, False)
    assert wire.sent["RebootInstances"] == 0


async def test_a_throttled_read_is_tried_again(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    wire.refuse(aws.ec2, "DescribeInstances", *["RequestLimitExceeded"] * (READ_ATTEMPTS - 1), status=503)

    await Cloud(aws).reboot_instance(reboot_of(node))

    assert wire.sent["RebootInstances"] == 1


async def test_a_read_that_stays_throttled_is_no_state(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    wire.refuse(aws.ec2, "DescribeInstances", *["RequestLimitExceeded"] * READ_ATTEMPTS, status=503)

    with pytest.raises(ApplicationError, match="RequestLimitExceeded") as raised:
        await Cloud(aws).reboot_instance(reboot_of(node))

    assert (raised.value.type, raised.value.non_retryable) == (errors.NOT_SENT, False)
    assert wire.sent["RebootInstances"] == 0


@pytest.mark.parametrize(
    ("code", "error_type"),
    [
        ("UnauthorizedOperation", errors.FORBIDDEN),
        ("AccessDenied", errors.FORBIDDEN),
        ("AuthFailure", errors.FORBIDDEN),
        ("OperationNotPermitted", errors.PROTECTED),
        ("UnsupportedOperation", errors.BAD_INPUT),
        ("DryRunOperation", errors.BAD_INPUT),
        ("InvalidInstanceID.Malformed", errors.INSTANCE_UNKNOWN),
        ("IncorrectInstanceState", errors.INSTANCE_NOT_RUNNING),
    ],
)
async def test_a_refused_reboot_says_what_a_person_must_mend(
    aws: Aws, wire: Wire, node: NodeIdentity, code: str, error_type: str
) -> None:
    wire.refuse(aws.ec2_once, "RebootInstances", code)

    with pytest.raises(ApplicationError, match="RebootInstances") as raised:
        await Cloud(aws).reboot_instance(reboot_of(node))

    assert (raised.value.type, raised.value.non_retryable) == (error_type, True)
    assert node.instance_id in raised.value.message
    assert wire.sent["RebootInstances"] == 1


async def test_a_malformed_id_is_refused(aws: Aws, wire: Wire) -> None:
    wire.refuse(aws.ec2, "DescribeInstances", "InvalidInstanceID.Malformed")

    with pytest.raises(ApplicationError, match="Malformed") as raised:
        await Cloud(aws).reboot_instance(reboot_of(identity("i-nonsense")))

    assert (raised.value.type, raised.value.non_retryable) == (errors.INSTANCE_UNKNOWN, True)
