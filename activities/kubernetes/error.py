"""What the API server says when it refuses, read so that no answer can break the reader.

The status code judges. A body helps where it is a Status object; a proxy's page, a plain string, half a JSON
or nothing at all are as good an error.
"""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

Object = dict[str, Any]
"""A Kubernetes object as JSON."""

LONGEST_RETRY_AFTER = 60.0
"""Seconds of a server's wish that are honoured: a proxy may ask for hours."""

LONGEST_EXCERPT = 200
"""Characters that are quoted of an answer that is no Status object."""


class KubernetesError(Exception):
    """The API server refused, or gave no answer that can be read (`status` 0)."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        body: Object | None = None,
        *,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.body = body or {}
        self.retry_after = retry_after
        """Seconds that the server asks us to wait, where it said so."""

    @property
    def details(self) -> Object:
        """`details` of the Status object: kind and name of what the answer is about, and causes."""
        details = self.body.get("details")
        return details if isinstance(details, dict) else {}

    def causes(self) -> tuple[str, ...]:
        """Machine-readable causes of the Status object, such as `DisruptionBudget`."""
        return tuple(str(cause.get("reason", "")) for cause in self._causes())

    def cause_messages(self) -> tuple[str, ...]:
        """What the causes say, for a person."""
        return tuple(str(cause["message"]) for cause in self._causes() if cause.get("message"))

    def _causes(self) -> list[Object]:
        causes = self.details.get("causes")
        return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []


def decoded(content: bytes) -> Object:
    """JSON object, or an empty one for anything else: half a chunk is no event, a proxy's page no Status."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def error_of(status: int, headers: Mapping[str, str], content: bytes, call: str) -> KubernetesError:
    """The error that an answer to `call` (verb and path) is."""
    answer = decoded(content)
    said = answer.get("message")
    message = said if isinstance(said, str) and said else _excerpt(content)
    error = KubernetesError(status, str(answer.get("reason") or ""), f"{call}: {message}", answer)
    asked = seconds_asked(headers.get("Retry-After"), datetime.now(UTC))
    error.retry_after = (
        seconds_asked(error.details.get("retryAfterSeconds"), None) if asked is None else asked
    )
    return error


def _excerpt(content: bytes) -> str:
    text = " ".join(content[: 2 * LONGEST_EXCERPT].decode(errors="replace").split())[:LONGEST_EXCERPT]
    return f"no Status object in the answer, but: {text}" if text else "an empty answer"


def seconds_asked(wish: Any, now: datetime | None) -> float | None:
    """Seconds of a `Retry-After`: a number, or with `now` a date of HTTP. None for what is neither.

    At most `LONGEST_RETRY_AFTER`, and none at all for what has passed.
    """
    if wish is None or isinstance(wish, bool):
        return None
    try:
        seconds = float(wish)
    except OverflowError:  # an integer of hundreds of digits
        return LONGEST_RETRY_AFTER if wish > 0 else 0.0
    except (TypeError, ValueError):
        date = _http_date(wish) if now else None
        if date is None or now is None:
            return None
        seconds = (date - now).total_seconds()
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER) if math.isfinite(seconds) else None


def _http_date(text: Any) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
