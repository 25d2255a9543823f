"""What a refusal of AWS means: above all, whether a call that changes the world surely had no effect."""

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.connection import translated
from gpu_runbooks.activities.aws.refusals import Refusal, meaning_of

URL = "https://ec2.us-west-2.amazonaws.com/"

ANSWERS = [
    # code, HTTP status, message, meaning
    ("RequestLimitExceeded", 503, "Request limit exceeded.", Refusal.BUSY),
    ("Throttling", 400, "Rate exceeded", Refusal.BUSY),
    ("ThrottlingException", 400, "", Refusal.BUSY),
    ("ThrottledException", 400, "", Refusal.BUSY),
    ("RequestThrottled", 400, "", Refusal.BUSY),
    ("RequestThrottledException", 400, "", Refusal.BUSY),
    ("TooManyRequestsException", 429, "", Refusal.BUSY),
    ("EC2ThrottledException", 503, "", Refusal.BUSY),
    ("PriorRequestNotComplete", 400, "", Refusal.BUSY),
    ("SlowDown", 503, "Please reduce your request rate.", Refusal.BUSY),
    ("BandwidthLimitExceeded", 509, "", Refusal.BUSY),
    ("429", 429, "Too Many Requests", Refusal.BUSY),
    ("SomethingNew", 400, "Rate exceeded for operation", Refusal.BUSY),
    ("Throttling.User", 400, "", Refusal.BUSY),
    ("RateExceeded", 400, "", Refusal.BUSY),
    ("RateLimitExceeded", 503, "", Refusal.BUSY),
    ("Client.RequestLimitExceeded", 503, "", Refusal.BUSY),
    ("TooManyRequests", 400, "", Refusal.BUSY),
    ("Unavailable", 503, "Request limit exceeded. Account 111122223333 is throttled.", Refusal.BUSY),
    ("ScalingActivityInProgress", 400, "", Refusal.BUSY),
    ("ResourceContention", 500, "", Refusal.BUSY),
    ("ExpiredToken", 400, "The security token included in the request is expired", Refusal.EXPIRED),
    ("ExpiredTokenException", 403, "", Refusal.EXPIRED),
    ("RequestExpired", 400, "Request has expired.", Refusal.EXPIRED),
    ("InvalidToken", 400, "", Refusal.EXPIRED),
    ("RequestTimeTooSkewed", 403, "", Refusal.EXPIRED),
    ("SignatureDoesNotMatch", 403, "Signature expired: 20260301T100000Z is now earlier", Refusal.EXPIRED),
    ("SignatureDoesNotMatch", 403, "Signature not yet current: 20260301T100000Z", Refusal.EXPIRED),
    ("SignatureDoesNotMatch", 403, "Check your AWS Secret Access Key", Refusal.FORBIDDEN),
    ("UnauthorizedOperation", 403, "You are not authorized to perform this operation.", Refusal.FORBIDDEN),
    ("AccessDenied", 403, "", Refusal.FORBIDDEN),
    ("AccessDeniedException", 400, "", Refusal.FORBIDDEN),
    ("AuthFailure", 401, "", Refusal.FORBIDDEN),
    ("InvalidClientTokenId", 403, "", Refusal.FORBIDDEN),
    ("UnrecognizedClientException", 400, "", Refusal.FORBIDDEN),
    ("OptInRequired", 401, "", Refusal.FORBIDDEN),
    ("OperationNotPermitted", 400, "Modify its 'disableApiTermination'", Refusal.PROTECTED),
    ("InvalidInstanceID.NotFound", 400, "", Refusal.UNKNOWN_INSTANCE),
    ("InvalidInstanceID.Malformed", 400, "", Refusal.UNKNOWN_INSTANCE),
    ("IncorrectInstanceState", 400, "", Refusal.NOT_RUNNING),
    ("ValidationError", 400, "", Refusal.INVALID),
    ("InvalidParameterValue", 400, "", Refusal.INVALID),
    ("UnsupportedOperation", 400, "", Refusal.INVALID),
    ("DryRunOperation", 412, "Request would have succeeded", Refusal.INVALID),
    ("InternalError", 500, "", Refusal.OPEN),
    ("InternalError", 500, "a dependency answered: Rate exceeded", Refusal.OPEN),
    ("InternalFailure", 500, "", Refusal.OPEN),
    ("Unavailable", 503, "The service is unavailable, after: Rate exceeded", Refusal.OPEN),
    ("Unavailable", 503, "", Refusal.OPEN),
    ("ServiceUnavailable", 503, "", Refusal.OPEN),
    ("503", 503, "Service Unavailable", Refusal.OPEN),
    ("502", 502, "Bad Gateway", Refusal.OPEN),
    ("RequestTimeout", 408, "", Refusal.OPEN),
    ("SomethingNew", 400, "", Refusal.OPEN),
    ("", 0, "", Refusal.OPEN),
]

FAILURES = [
    (ReadTimeoutError(endpoint_url=URL), Refusal.OPEN),
    (ConnectionClosedError(endpoint_url=URL), Refusal.OPEN),
    (HTTPClientError(error="reset"), Refusal.OPEN),
    (SSLError(endpoint_url=URL, error="broken"), Refusal.OPEN),
    (ResponseParserError("not XML"), Refusal.OPEN),
    (ConnectTimeoutError(endpoint_url=URL), Refusal.UNREACHABLE),
    (EndpointConnectionError(endpoint_url=URL), Refusal.UNREACHABLE),
    (CredentialRetrievalError(provider="web-identity", error_msg="STS is away"), Refusal.UNREACHABLE),
    (NoCredentialsError(), Refusal.FORBIDDEN),
    (ParamValidationError(report="InstanceIds is no list"), Refusal.INVALID),
]

TYPES = {
    # meaning: error of a read, error of an act, is it final
    Refusal.BUSY: (errors.AWS, errors.NOT_SENT, False),
    Refusal.EXPIRED: (errors.AWS, errors.NOT_SENT, False),
    Refusal.UNREACHABLE: (errors.AWS, errors.NOT_SENT, False),
    Refusal.OPEN: (errors.AWS, errors.AWS, False),
    Refusal.FORBIDDEN: (errors.FORBIDDEN, errors.FORBIDDEN, True),
    Refusal.PROTECTED: (errors.PROTECTED, errors.PROTECTED, True),
    Refusal.INVALID: (errors.BAD_INPUT, errors.BAD_INPUT, True),
    Refusal.UNKNOWN_INSTANCE: (errors.INSTANCE_UNKNOWN, errors.INSTANCE_UNKNOWN, True),
    Refusal.NOT_RUNNING: (errors.INSTANCE_NOT_RUNNING, errors.INSTANCE_NOT_RUNNING, True),
}


def refused(code: str, status: int, message: str) -> ClientError:
    return ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {
                "HTTPStatusCode": status,
                "RequestId": "r",
                "HostId": "",
                "HTTPHeaders": {},
                "RetryAttempts": 0,
            },
        },
        "RebootInstances",
    )


@pytest.mark.parametrize(("code", "status", "message", "meaning"), ANSWERS)
def test_what_an_answer_means(code: str, status: int, message: str, meaning: Refusal) -> None:
    assert meaning_of(refused(code, status, message)) is meaning


@pytest.mark.parametrize(("failure", "meaning"), FAILURES, ids=lambda value: type(value).__name__)
def test_what_no_answer_means(failure: Exception, meaning: Refusal) -> None:
    assert meaning_of(failure) is meaning


@pytest.mark.parametrize("meaning", Refusal)
def test_only_what_surely_had_no_effect_is_called_so(meaning: Refusal) -> None:
    cases = [refused(code, status, message) for code, status, message, row in ANSWERS if row is meaning]
    cases += [failure for failure, row in FAILURES if row is meaning]
    of_read, of_act, final = TYPES[meaning]
    assert cases
    for case in cases:
        for acts, expected in ((False, of_read), (True, of_act)):
            error = translated(case, "reboot_instances of i-0aaaaaaaaaaaaaaa1", acts=acts)
            assert (error.type, error.non_retryable) == (expected, final), case
            assert error.message.startswith("reboot_instances of i-0aaaaaaaaaaaaaaa1: ")
