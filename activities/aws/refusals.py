"""What it means when AWS refuses a call, or does not answer: pure tables, and nothing else.

The one question that matters for a call that changes the world is whether it had an effect. A refusal before
the operation began (throttled, credentials expired, not permitted) surely had none. A timeout, a connection
that broke and a fault of the service leave it open.
"""

import re
from enum import Enum, auto

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProxyConnectionError,
)
from botocore.parsers import ResponseParserError
from botocore.retries.standard import RetryContext, ThrottledRetryableChecker

NO_ANSWER = (ClientError, BotoCoreError, ResponseParserError)
"""What a client raises for whatever is no answer."""


class Refusal(Enum):
    """Why a call has no answer."""

    BUSY = auto()
    """Throttled, or the object is in the middle of another operation."""
    EXPIRED = auto()
    """The credentials, or the time that the request was signed with."""
    UNREACHABLE = auto()
    """No connection came about, or no credentials could be fetched to sign with."""
    FORBIDDEN = auto()
    PROTECTED = auto()
    INVALID = auto()
    UNKNOWN_INSTANCE = auto()
    NOT_RUNNING = auto()
    OPEN = auto()
    """Nobody knows what became of it. What is in no table means this too; all others had no effect."""


NO_SUCH_INSTANCE = "InvalidInstanceID.NotFound"
MALFORMED_INSTANCE = "InvalidInstanceID.Malformed"

IN_PROGRESS = frozenset({"ResourceContention", "ScalingActivityInProgress"})
"""Auto Scaling's: another operation on the group or the instance is not finished."""

EXPIRED = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidToken",
        "RequestExpired",
        "RequestInTheFuture",
        "RequestTimeTooSkewed",
        "TokenRefreshRequired",
    }
)
SIGNATURE = frozenset({"SignatureDoesNotMatch", "InvalidSignatureException"})
SIGNED_AT_ANOTHER_TIME = ("signature expired", "signature not yet current")
"""How AWS tells a wrong clock from a wrong key: the code is the same."""

FORBIDDEN = SIGNATURE | {
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "Blocked",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "NotAuthorized",
    "OptInRequired",
    "PendingVerification",
    "UnauthorizedOperation",
    "UnrecognizedClientException",
}
INVALID = frozenset(
    {
        "DryRunOperation",
        "InvalidAction",
        "InvalidParameter",
        "InvalidParameterCombination",
        "InvalidParameterValue",
        "InvalidQueryParameter",
        "MalformedQueryString",
        "MissingAction",
        "MissingParameter",
        "UnknownParameter",
        "UnsupportedOperation",
        "ValidationError",
        "ValidationException",
    }
)
"""DryRunOperation is among them: it says that the call would have been permitted, and was not made."""

MEANINGS = {
    **dict.fromkeys(IN_PROGRESS, Refusal.BUSY),
    **dict.fromkeys(EXPIRED, Refusal.EXPIRED),
    **dict.fromkeys(FORBIDDEN, Refusal.FORBIDDEN),
    **dict.fromkeys(INVALID, Refusal.INVALID),
    "OperationNotPermitted": Refusal.PROTECTED,
    NO_SUCH_INSTANCE: Refusal.UNKNOWN_INSTANCE,
    MALFORMED_INSTANCE: Refusal.UNKNOWN_INSTANCE,
    "IncorrectInstanceState": Refusal.NOT_RUNNING,
}

NEVER_CONNECTED = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)
NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError)

OVER_THE_RATE = ("rate exceeded", "request limit exceeded")
"""Words of a throttling whose code is in no list. A fault of the service may quote them: that stays open."""

THROTTLING_CODE = re.compile(
    r"throttl|rate(?:limit)?exceeded|requestlimitexceeded|toomanyrequests", re.IGNORECASE
)
"""In codes of services and proxies that botocore does not list."""


def meaning_of(error: BaseException) -> Refusal:
    """What a failed call means."""
    match error:
        case ClientError():
            response = error.response
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return meaning_of_code(code_of(error), str(response.get("Error", {}).get("Message", "")), status)
        case ParamValidationError():
            return Refusal.INVALID
        case _ if isinstance(error, NO_CREDENTIALS):
            return Refusal.FORBIDDEN
        case _ if isinstance(error, (*NEVER_CONNECTED, CredentialRetrievalError)):
            return Refusal.UNREACHABLE
        case _:
            return Refusal.OPEN


def meaning_of_code(code: str, message: str = "", status: int = 0) -> Refusal:
    """What an answer that refuses means. The code counts before the HTTP status: EC2 throttles by 503."""
    words = message.lower()
    if code in SIGNATURE and any(phrase in words for phrase in SIGNED_AT_ANOTHER_TIME):
        return Refusal.EXPIRED
    if code in MEANINGS:
        return MEANINGS[code]
    if is_throttling(code) or status == 429:
        return Refusal.BUSY
    if 400 <= status < 500 and any(phrase in words for phrase in OVER_THE_RATE):
        return Refusal.BUSY
    if status == 503 and words.startswith(OVER_THE_RATE):
        return Refusal.BUSY
    return Refusal.OPEN


def is_throttling(code: str) -> bool:
    """Whether the code tells of a throttling, by botocore's list or by its words."""
    context = RetryContext(attempt_number=1, parsed_response={"Error": {"Code": code}})
    listed = ThrottledRetryableChecker().is_retryable(context)
    return bool(listed) or THROTTLING_CODE.search(code) is not None


def code_of(error: BaseException | None) -> str:
    """AWS's code of a refusal, such as `RequestLimitExceeded`; empty for all else."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""
