"""The clients themselves: how often they send, how long they wait, and with which credentials."""

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cloud.conftest import CLUSTER, Wire, clients_of, reboot_of
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.connection import CONNECT_SECONDS, READ_ATTEMPTS, READ_SECONDS, Aws, call
from gpu_runbooks.activities.aws.ec2 import describe, reboot_instance
from gpu_runbooks.activities.model.node import NodeIdentity

LISTEN_NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def node(fleet: list[NodeIdentity]) -> NodeIdentity:
    return fleet[0]


@pytest.fixture
def renewed(aws: Aws, wire: Wire, node: NodeIdentity, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Key ids that requests are signed with; another key came into the environment since the first."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "cloud-worker-2")
    return keys_of(aws)


def keys_of(aws: Aws) -> list[str]:
    """Key ids that the requests from now on are signed with."""
    keys: list[str] = []

    def remember(request: Any, **_: Any) -> None:
        [key] = re.findall(r"Credential=([^/]+)", request.headers["Authorization"].decode())
        keys.append(key)

    for client in clients_of(aws):
        client.meta.events.register("before-send", remember)
    return keys


@pytest.mark.parametrize("name", ["ec2", "autoscaling"])
def test_reads_adapt_and_are_bounded_and_acts_go_out_once(aws: Aws, name: str) -> None:
    reads, once = getattr(aws, name).meta.config, getattr(aws, f"{name}_once").meta.config

    assert reads.retries == {"mode": "adaptive", "total_max_attempts": READ_ATTEMPTS}
    assert once.retries == {"mode": "standard", "total_max_attempts": 1}
    for config in (reads, once):
        assert (config.connect_timeout, config.read_timeout) == (CONNECT_SECONDS, READ_SECONDS)


def test_the_environment_does_not_change_how_often_an_act_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_MAX_ATTEMPTS": "9",
        "AWS_RETRY_MODE": "legacy",
        "AWS_DEFAULT_REGION": "us-west-2",
    }.items():
        monkeypatch.setenv(name, value)

    made = Aws.connect(CLUSTER)

    assert made.ec2_once.meta.config.retries == {"mode": "standard", "total_max_attempts": 1}
    for client in clients_of(made):
        client.close()


def test_without_a_region_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    with pytest.raises(RuntimeError, match="AWS_REGION"):
        Aws.connect(CLUSTER)


@pytest.mark.parametrize(
    ("default", "other", "region"),
    [
        (None, "eu-north-1", "eu-north-1"),
        ("", "eu-north-1", "eu-north-1"),
        ("us-west-2", "eu-north-1", "us-west-2"),
        (None, None, "ap-south-1"),
        ("", "", "ap-south-1"),
    ],
)
def test_the_region_is_that_of_either_variable_or_of_the_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, default: str | None, other: str | None, region: str
) -> None:
    profile = tmp_path / "config"
    profile.write_text("[default]\nregion = ap-south-1\n")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    for name, value in {
        "AWS_DEFAULT_REGION": default,
        "AWS_REGION": other,
        "AWS_CONFIG_FILE": str(profile),
    }.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)

    made = Aws.connect(CLUSTER)

    assert {client.meta.region_name for client in clients_of(made)} == {region}
    for client in clients_of(made):
        client.close()


@pytest.mark.parametrize("code", ["ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidToken"])
async def test_a_read_with_expired_credentials_is_sent_again_with_new_ones(
    aws: Aws, wire: Wire, node: NodeIdentity, renewed: list[str], code: str
) -> None:
    wire.refuse(aws.ec2, "DescribeInstances", code)

    assert (await describe(aws, node.instance_id)).state == "running"
    assert renewed == ["cloud-worker", "cloud-worker-2"]


async def test_credentials_are_renewed_once_a_call(
    aws: Aws, wire: Wire, node: NodeIdentity, renewed: list[str]
) -> None:
    wire.refuse(aws.ec2, "DescribeInstances", *["ExpiredToken"] * 9)

    with pytest.raises(ApplicationError, match="ExpiredToken") as raised:
        await describe(aws, node.instance_id)

    assert (raised.value.type, raised.value.non_retryable) == (errors.AWS, False)
    assert renewed == ["cloud-worker", "cloud-worker-2"]


async def test_credentials_that_expire_between_throttled_attempts_are_renewed_too(
    aws: Aws, wire: Wire, node: NodeIdentity, renewed: list[str]
) -> None:
    wire.refuse(aws.ec2, "DescribeInstances", "RequestLimitExceeded", "ExpiredToken", "RequestLimitExceeded")

    assert (await describe(aws, node.instance_id)).state == "running"
    assert renewed == ["cloud-worker"] * 2 + ["cloud-worker-2"] * 2


async def test_a_reboot_with_expired_credentials_was_not_sent_and_the_next_one_has_new_ones(
    aws: Aws, wire: Wire, node: NodeIdentity, renewed: list[str]
) -> None:
    wire.refuse(aws.ec2_once, "RebootInstances", "RequestExpired")

    with pytest.raises(ApplicationError, match="RequestExpired") as raised:
        await reboot_instance(aws, reboot_of(node))

    assert (raised.value.type, raised.value.non_retryable) == (errors.NOT_SENT, False)
    assert wire.sent["RebootInstances"] == 1
    await reboot_instance(aws, reboot_of(node))
    assert renewed == ["cloud-worker"] * 2 + ["cloud-worker-2"] * 2


async def test_old_credentials_stay_where_no_new_ones_are_to_be_had(
    aws: Aws, wire: Wire, node: NodeIdentity, renewed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    wire.refuse(aws.ec2, "DescribeInstances", "ExpiredToken")

    assert (await describe(aws, node.instance_id)).state == "running"
    assert renewed == ["cloud-worker"] * 2


async def test_credentials_that_tell_their_end_are_refreshed_before_it(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, node: NodeIdentity
) -> None:
    """As of a role: what hands them out is asked again, in the middle of an incident."""
    asked = tmp_path / "asked"
    helper = tmp_path / "helper.py"
    soon = datetime.now(UTC) + timedelta(minutes=1)
    answer = {"Version": 1, "AccessKeyId": "role", "SecretAccessKey": "s", "SessionToken": "t"}
    helper.write_text(
        "import json, pathlib\n"
        f"asked = pathlib.Path({str(asked)!r})\n"
        "again = asked.exists()\n"
        "asked.touch()\n"
        f"answer = {json.dumps(answer)}\n"
        f"answer['Expiration'] = '2099-01-01T00:00:00Z' if again else {soon.isoformat()!r}\n"
        "answer['AccessKeyId'] += '-2' if again else '-1'\n"
        "print(json.dumps(answer))\n"
    )
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {sys.executable} {helper}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    made = Aws.connect(CLUSTER)

    keys = keys_of(made)

    assert (await describe(made, node.instance_id)).state == "running"

    assert keys == ["role-2"]
    for client in clients_of(made):
        client.close()


async def test_credentials_that_cannot_be_fetched_leave_the_act_unsent(
    aws: Aws, wire: Wire, node: NodeIdentity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """STS is away, as roles for service accounts know it: botocore says so from inside of another call."""
    token = tmp_path / "token"
    token.write_text("t")
    for name, value in {
        "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/cloud-worker",
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
        "AWS_ENDPOINT_URL_STS": LISTEN_NOWHERE,
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    made = Aws.connect(CLUSTER)

    with pytest.raises(ApplicationError, match="nothing was rebooted") as raised:
        await reboot_instance(made, reboot_of(node))

    assert (raised.value.type, raised.value.non_retryable) == (errors.NOT_SENT, False)
    for client in clients_of(made):
        client.close()


async def test_no_credentials_are_for_a_person(
    aws: Aws, wire: Wire, node: NodeIdentity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    made = Aws.connect(CLUSTER)

    with pytest.raises(ApplicationError, match="mend its credentials") as raised:
        await describe(made, node.instance_id)

    assert (raised.value.type, raised.value.non_retryable) == (errors.FORBIDDEN, True)
    for client in clients_of(made):
        client.close()


async def test_an_endpoint_that_nobody_listens_on_leaves_the_reboot_unsent(
    aws: Aws, wire: Wire, node: NodeIdentity
) -> None:
    def redirect(request: Any, **_: Any) -> None:
        request.url = LISTEN_NOWHERE

    aws.ec2_once.meta.events.register("before-send.ec2.RebootInstances", redirect)

    with pytest.raises(ApplicationError, match="It did not leave") as raised:
        await reboot_instance(aws, reboot_of(node))

    assert (raised.value.type, raised.value.non_retryable) == (errors.NOT_SENT, False)
    assert wire.sent["RebootInstances"] == 1


async def test_a_refusal_names_the_call_and_the_object(aws: Aws, wire: Wire, node: NodeIdentity) -> None:
    wire.refuse(aws.ec2, "DescribeInstances", "UnauthorizedOperation", message="You are not authorized")

    with pytest.raises(ApplicationError) as raised:
        await call(aws.ec2.describe_instances, InstanceIds=[node.instance_id])

    assert raised.value.message == (
        f"describe_instances of {node.instance_id}: An error occurred (UnauthorizedOperation) when calling "
        "the DescribeInstances operation: You are not authorized. Permit it to the cloud worker's IAM role "
        "(deploy/manifests/iam), or mend its credentials"
    )
