"""AWS: plain boto3 clients, one call at a time in a thread, and what AWS's refusals mean to a workflow.

Endpoint and region come from the environment, and credentials from botocore's default chain, as for any boto3
program; `region.py` reads `AWS_REGION` too. Every call of the product goes through `call` (reads) or `act`
(what changes the world) of this file.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import NoRegionError
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.credentials import RenewableCredentials
from gpu_runbooks.activities.aws.refusals import NO_ANSWER, Refusal, meaning_of
from gpu_runbooks.activities.aws.region import region_of

if TYPE_CHECKING:
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_ec2 import EC2Client

Answer = TypeVar("Answer")

CONNECT_SECONDS = 5
READ_SECONDS = 10

READ_ATTEMPTS = 6
"""Attempts of one read, with growing pauses and a rate that adapts to throttling; the activity's own retries
come on top."""


@dataclass(frozen=True)
class Aws:
    """Clients of one account and region, safe to share between threads.

    Reads go through `ec2` and `autoscaling`, which try again by themselves. What changes the world goes
    through `ec2_once` and `autoscaling_once`: after a timeout nobody knows whether the call took effect, so
    it is never sent again before the state was read.
    """

    ec2: "EC2Client"
    ec2_once: "EC2Client"
    autoscaling: "AutoScalingClient"
    autoscaling_once: "AutoScalingClient"
    cluster: str
    """Name of the cluster in the tags of its instances. No other instance is touched."""

    @classmethod
    def connect(cls, cluster: str, *, read_seconds: float = READ_SECONDS) -> "Aws":
        """Make the clients; nothing is called yet.

        Raises `RuntimeError` where the environment names no region.
        """
        reads = config(read_seconds, "adaptive", READ_ATTEMPTS)
        once = config(read_seconds, "standard", 1)
        try:
            boto, credentials = new_session()
            aws = cls(
                ec2=boto.client("ec2", config=reads),
                ec2_once=boto.client("ec2", config=once),
                autoscaling=boto.client("autoscaling", config=reads),
                autoscaling_once=boto.client("autoscaling", config=once),
                cluster=cluster,
            )
        except NoRegionError as error:
            raise RuntimeError(f"{error} Set AWS_REGION to the region of the nodes") from error
        for client in (aws.ec2, aws.autoscaling):
            credentials.attach(client, try_again=True)
        for client in (aws.ec2_once, aws.autoscaling_once):
            credentials.attach(client, try_again=False)
        return aws


def new_session() -> tuple[boto3.Session, RenewableCredentials]:
    """A session over the default chain, and its credentials, which are attached to each of its clients.

    Raises `NoRegionError` where the environment names no region.
    """
    credentials = RenewableCredentials()
    session = botocore.session.Session()
    session.register_component("credential_provider", credentials)
    region = region_of(session)
    if region is None:
        raise NoRegionError
    return boto3.Session(botocore_session=session, region_name=region), credentials


def config(read_seconds: float, mode: Literal["adaptive", "standard"], attempts: int) -> Config:
    """How a client connects, waits, and tries again."""
    return Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=read_seconds,
        retries={"mode": mode, "total_max_attempts": attempts},
        max_pool_connections=32,
        user_agent_extra="gpu-runbooks",
    )


async def call(method: Callable[..., Answer], **parameters: Any) -> Answer:
    """One read by a client's method.

    Raises `ApplicationError` for whatever is no answer: AWS (worth a retry) where nothing was learned, which
    never is a state of the object, and a refusal for what a retry would not cure.
    """
    try:
        return await asyncio.to_thread(method, **parameters)
    except NO_ANSWER as error:
        raise translated(error, _what(method, parameters), acts=False) from error


async def act(method: Callable[..., Answer], **parameters: Any) -> Answer:
    """One call of a client's method that changes the world, sent once.

    Raises as `call` does, but NOT_SENT (worth a retry, after another look) where it surely had no effect, so
    that AWS means: nobody knows whether it had one.
    """
    try:
        return await asyncio.to_thread(method, **parameters)
    except NO_ANSWER as error:
        raise translated(error, _what(method, parameters), acts=True) from error


FOR_GOOD = {
    Refusal.FORBIDDEN: (
        errors.FORBIDDEN,
        "Permit it to the cloud worker's IAM role (deploy/manifests/iam), or mend its credentials",
    ),
    Refusal.PROTECTED: (errors.PROTECTED, "Take the protection off the instance, or handle it by hand"),
    Refusal.INVALID: (errors.BAD_INPUT, "It would be refused again: compare it with what AWS shows"),
    Refusal.UNKNOWN_INSTANCE: (
        errors.INSTANCE_UNKNOWN,
        "Compare the node's provider id with EC2, in the account and region of the cloud worker",
    ),
    Refusal.NOT_RUNNING: (errors.INSTANCE_NOT_RUNNING, "Only a running instance can be asked this"),
}
FOR_NOW = {
    Refusal.BUSY: "AWS was too busy for it: it is asked again later",
    Refusal.EXPIRED: (
        "The credentials were looked up anew for the next attempt. If it stays so, renew the cloud worker's "
        "credentials and compare its clock"
    ),
    Refusal.UNREACHABLE: "It did not leave: check the way to AWS and where the credentials come from",
}


def translated(error: Exception, what: str, *, acts: bool) -> ApplicationError:
    """What a failed call means to the workflow. An error never is a state of the object."""
    meaning = meaning_of(error)
    if meaning in FOR_GOOD:
        error_type, next_step = FOR_GOOD[meaning]
        return errors.refusal(error_type, f"{what}: {error}. {next_step}")
    if meaning in FOR_NOW:
        error_type = errors.NOT_SENT if acts else errors.AWS
        message = f"{what}: {error}. {FOR_NOW[meaning]}"
    else:
        error_type = errors.AWS
        message = f"{what}: {error}." + (" Nobody knows whether it took effect" if acts else "")
    return ApplicationError(message[: errors.LONGEST_MESSAGE], type=error_type)


def _what(method: Callable[..., Any], parameters: dict[str, Any]) -> str:
    """The call in words: its method, and the objects that its parameters name."""
    named = [
        value
        for given in parameters.values()
        for value in (given if isinstance(given, list) else [given])
        if isinstance(value, str)
    ]
    return f"{getattr(method, '__name__', 'call')} of {', '.join(named)}" if named else str(method.__name__)
