"""Failures of activities, in words for a person."""

from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

from gpu_runbooks.activities.errors import NOT_SENT, SERVICES_HELD, UNAVAILABLE

NO_ANSWER = frozenset({UNAVAILABLE, SERVICES_HELD})
"""Errors after which the same question has another answer later."""


def cause_type(error: ActivityError) -> str:
    """Type of the ApplicationError behind it, one of `activities.errors`; empty for a timeout."""
    return (error.cause.type or "") if isinstance(error.cause, ApplicationError) else ""


def had_no_answer(error: ActivityError) -> bool:
    """Whether an outside system was away, or the worker that talks to it: nothing was refused."""
    return isinstance(error.cause, ActivityTimeoutError) or cause_type(error) in NO_ANSWER


def was_never_sent(error: ActivityError) -> bool:
    """Whether the act behind it was surely not asked for: it said so itself, or no worker took it up."""
    cause = error.cause
    if isinstance(cause, ActivityTimeoutError):
        return cause.type is TimeoutType.SCHEDULE_TO_START
    return cause_type(error) == NOT_SENT


def said(error: ActivityError) -> str:
    """What the activity itself said, for a refusal that is an answer."""
    return error.cause.message if isinstance(error.cause, ApplicationError) else in_words(error)


def in_words(error: ActivityError) -> str:
    """What happened. The error's own text is always the same, so the cause is unwrapped."""
    cause = error.cause
    if isinstance(cause, ActivityTimeoutError):
        kind = cause.type.name.lower().replace("_", "-") if cause.type is not None else "unknown"
        last = f"; last {cause.cause}" if cause.cause is not None else ""
        return f"{error.activity_type} had no answer in time ({kind} timeout){last}"
    if isinstance(cause, ApplicationError):
        return f"{error.activity_type}: {cause.message} [{cause.type}]"
    return f"{error.activity_type}: {cause or error}"
