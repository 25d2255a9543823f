"""The HTTP side of the webhook: what is a notification, and which status tells Alertmanager what.

Alertmanager sends again after a 5xx and after no answer, never after a 4xx. So the answer is 503 as soon as
one alert may not be in Temporal, and 200 for whatever else becomes of a readable notification.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus

from aiohttp import web

from gpu_runbooks.workers.intake.alert_faults import LABELS
from gpu_runbooks.workers.intake.alertmanager import (
    MalformedError,
    TooManyAlertsError,
    Webhook,
    read_webhook,
)
from gpu_runbooks.workers.intake.metrics import CONTENT_TYPE, Metrics
from gpu_runbooks.workers.intake.reception import Answer
from gpu_runbooks.workers.intake.webhook_access import Access

LONGEST_BODY = 4 * 1024 * 1024
"""Bytes: thousands of alerts, or one with megabytes of annotations beside another that matters."""

MOST_AT_ONCE = 256
"""Notifications that are worked on at the same time."""

MEMORY = 64 * 1024 * 1024
"""Bytes of all their bodies together. Beyond it, and beyond their number, the answer is 503 at once."""

SMALLEST_SHARE = 16 * 1024
"""Bytes that count for a body at least, for what is made of it."""

BODY_SECONDS = 10.0
"""Time in which a body has to arrive."""

JSON_TYPE = "application/json"

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class OverloadedError(Exception):
    """No room for one more notification."""


class Room:
    """How many notifications, and how many bytes of them, are being worked on."""

    def __init__(self) -> None:
        self._requests = 0
        self._bytes = 0

    @contextmanager
    def take(self, length: int | None) -> Iterator[None]:
        """Hold room for a body; one of unknown length may become as long as any. Raises `OverloadedError`."""
        share = max(LONGEST_BODY if length is None else length, SMALLEST_SHARE)
        if self._requests >= MOST_AT_ONCE or self._bytes + share > MEMORY:
            raise OverloadedError
        self._requests += 1
        self._bytes += share
        try:
            yield
        finally:
            self._requests -= 1
            self._bytes -= share


def application(
    take: Callable[[Webhook], Awaitable[Sequence[Answer]]],
    allowed: Access,
    node_labels: Callable[[], Collection[str]],
    metrics: Metrics,
    standing: Callable[[], Mapping[str, str]] = dict,
) -> web.Application:
    """Who may post, what is a notification, and what is answered.

    `standing` is what `/healthz` says beside `ok`. Anybody may ask for it and for `/metrics`, so they hold no
    secret and name no node.
    """
    room = Room()

    async def alertmanager(request: web.Request) -> web.Response:
        if not allowed.permits(request.headers.getall("Authorization", [])):
            log.warning("401: a notification without the right bearer token from %s", request.remote)
            return _failure(401, "send the webhook's token: Authorization: Bearer <token>")
        if (refused := _refused_unread(request, allowed)) is not None:
            return refused
        try:
            with metrics.notification(), room.take(request.content_length):
                return await _notified(request)
        except OverloadedError:
            log.warning("503: more notifications at once than there is room for")
            return _failure(503, "more notifications at once than there is room for, send it again")

    async def _notified(request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            log.warning("503: a body from %s did not arrive in %g s", request.remote, BODY_SECONDS)
            response = _failure(503, f"the body did not arrive in {BODY_SECONDS:g} s, send it again")
            response.force_close()
            return response
        except web.RequestPayloadError as error:
            return _failure(400, f"the body cannot be read: {type(error).__name__}")
        try:
            webhook = read_webhook(body, LABELS.union(node_labels()))
        except MalformedError as error:
            log.warning("400: %s", error)
            return _failure(400, str(error))
        except TooManyAlertsError as error:
            log.warning("413: %s", error)
            return _failure(413, str(error))
        metrics.truncated(webhook.truncated_alerts)
        answers = await take(webhook)
        answered = {"truncated": webhook.truncated_alerts, "alerts": [asdict(answer) for answer in answers]}
        lost = any(answer.status == "unavailable" for answer in answers)
        return web.json_response(answered, status=503 if lost else 200)

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok", **standing()})

    async def measured(_: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    made = web.Application(client_max_size=LONGEST_BODY, middlewares=[_answered_in_json])
    made.router.add_post("/alertmanager", alertmanager)
    made.router.add_get("/healthz", healthz)
    made.router.add_get("/metrics", measured)
    return made


def _refused_unread(request: web.Request, allowed: Access) -> web.Response | None:
    """What the head of a request rules out. None where its body is to be read."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity":
        return _failure(415, "send the body as it is: a compressed one is not read")
    # A page in a browser on this machine may post anywhere, but not as JSON without being asked for it. With
    # a token the token decides, and the type does not matter.
    if allowed.token is None and request.content_type != JSON_TYPE:
        return _failure(415, f"without a token only {JSON_TYPE} is read")
    if (request.content_length or 0) > LONGEST_BODY:
        return _failure(413, _too_long())
    return None


def _too_long() -> str:
    return f"a notification has at most {LONGEST_BODY} bytes: group the alerts by node, or set max_alerts"


@web.middleware
async def _answered_in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Say in the same form what else goes wrong. No answer carries a trace."""
    try:
        return await handler(request)
    except web.HTTPRequestEntityTooLarge:
        return _failure(413, _too_long())
    except web.HTTPMethodNotAllowed as error:
        allow = ", ".join(sorted(error.allowed_methods))
        response = _failure(405, f"this path takes {allow}")
        response.headers["Allow"] = allow
        return response
    except web.HTTPNotFound:
        return _failure(
            404,
            "post notifications of Alertmanager to /alertmanager; /healthz and /metrics tell how it is",
        )
    except web.HTTPException as error:
        return _failure(error.status, HTTPStatus(error.status).phrase)
    except Exception:
        log.exception("503: a request was not answered")
        return _failure(503, "the intake failed at this request, its log says how; send it again")


def _failure(status: int, message: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response({"error": message}, status=status, headers=headers)
