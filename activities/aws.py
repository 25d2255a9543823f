"""AWS: plain boto3 clients, one call at a time in a thread, and what AWS's refusals mean.

Credentials, region and endpoint come from the environment, as for any boto3 program.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoRegionError, ParamValidationError
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors

if TYPE_CHECKING:
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_ec2 import EC2Client

Answer = TypeVar("Answer")

CONNECT_SECONDS = 5
READ_SECONDS = 10

READ_ATTEMPTS = 5
"""Attempts of one read, with growing pauses; the activity's own retries come on top."""

NOT_PERMITTED = frozenset(
    {
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "OptInRequired",
    }
)
NO_SUCH_INSTANCE = "InvalidInstanceID.NotFound"

MEANINGS = {
    NO_SUCH_INSTANCE: errors.INSTANCE_UNKNOWN,
    "InvalidInstanceID.Malformed": errors.INSTANCE_UNKNOWN,
    "IncorrectInstanceState": errors.INSTANCE_NOT_RUNNING,
}


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

    @classmethod
    def connect(cls, *, read_seconds: float = READ_SECONDS) -> "Aws":
        """Make the clients; nothing is called yet.

        Raises `RuntimeError` where the environment names no region.
        """
        reads = _config(read_seconds, READ_ATTEMPTS)
        once = _config(read_seconds, 1)
        session = boto3.Session()
        try:
            return cls(
                ec2=session.client("ec2", config=reads),
                ec2_once=session.client("ec2", config=once),
                autoscaling=session.client("autoscaling", config=reads),
                autoscaling_once=session.client("autoscaling", config=once),
            )
        except NoRegionError as error:
            raise RuntimeError(f"{error} Set AWS_REGION to the region of the nodes") from error


def _config(read_seconds: float, attempts: int) -> Config:
    return Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=read_seconds,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=32,
        user_agent_extra="gpu-runbooks",
    )


async def call(method: Callable[..., Answer], **parameters: Any) -> Answer:
    """One call of a client's method. Raises `ApplicationError` for whatever is no answer."""
    name = getattr(method, "__name__", "call")
    try:
        return await asyncio.to_thread(method, **parameters)
    except (ClientError, BotoCoreError) as error:
        raise translated(error, name) from error


def translated(error: ClientError | BotoCoreError, name: str) -> ApplicationError:
    """What a failed call means to the workflow. An error never is a state of the instance."""
    if isinstance(error, ParamValidationError):
        return errors.refusal(errors.BAD_INPUT, f"{name}: {error}")
    code = code_of(error)
    if code in NOT_PERMITTED:
        return errors.refusal(
            errors.FORBIDDEN, f"{error}. Permit it to the cloud worker's IAM role, or mend its credentials"
        )
    if code in MEANINGS:
        return errors.refusal(MEANINGS[code], f"{name}: {error}")
    return ApplicationError(f"{name}: {error}"[: errors.LONGEST_MESSAGE], type=errors.AWS)


def code_of(error: BaseException | None) -> str:
    """AWS's code of a refusal, such as `RequestLimitExceeded`; empty for all else."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""
