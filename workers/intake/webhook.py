"""The source `alertmanager`: its webhook over HTTP, and which status tells Alertmanager what.

Alertmanager sends again after a 5xx and after no answer, never after a 4xx. So the answer is 503 as soon as
one alert may not be in Temporal, and 200 for whatever else becomes of a readable notification. Every alert
is judged by itself; what was taken already is recognised when the notification comes again.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime

from aiohttp import web

from gpu_runbooks.activities.kubernetes.client import KubernetesError, Object
from gpu_runbooks.workers.intake.alertmanager import (
    Alert,
    AlertIgnored,
    AlertRefused,
    MalformedError,
    Webhook,
    fault_of,
    is_node_name,
    named_nodes,
    read_webhook,
    target_of,
)
from gpu_runbooks.workers.intake.reception import Answer, Reception
from gpu_runbooks.workers.intake.webhook_access import Access, access
from gpu_runbooks.workers.settings import Settings

LONGEST_BODY = 1024 * 1024
"""Bytes: some 1,500 alerts. Alertmanager groups by node or alert, and `max_alerts` cuts."""

AT_ONCE = 50
"""Alerts of one notification that are worked on at the same time."""

log = logging.getLogger(__name__)


async def take(reception: Reception, webhook: Webhook) -> list[Answer]:
    """Take each alert of a notification. Raises `KubernetesError` when nodes cannot be asked for."""
    note = ""
    if webhook.truncated_alerts:
        note = (
            f"**Not all is known:** Alertmanager cut {webhook.truncated_alerts} more alerts off the "
            "notification with this fault"
        )
        log.warning("truncated=%d alerts were cut off by max_alerts", webhook.truncated_alerts)
    labels = reception.policy.intake.node_labels
    nodes = await _find_nodes(reception, webhook.alerts, labels)
    received = datetime.now(UTC)
    limit = asyncio.Semaphore(AT_ONCE)

    async def judge(alert: Alert) -> Answer:
        async with limit:
            return await _judge(reception, alert, nodes, received, note)

    return list(await asyncio.gather(*map(judge, webhook.alerts)))


async def _find_nodes(
    reception: Reception, alerts: Iterable[Alert], labels: tuple[str, ...]
) -> dict[str, Object]:
    """The live Nodes among all names that firing alerts carry, by name."""
    named = {
        name
        for alert in alerts
        if alert.status == "firing"
        for _, name in named_nodes(alert, labels)
        if is_node_name(name)
    }
    limit = asyncio.Semaphore(AT_ONCE)

    async def find(name: str) -> Object | None:
        async with limit:
            return await reception.find_node(name)

    found = await asyncio.gather(*map(find, named))
    return {name: node for name, node in zip(named, found, strict=True) if node is not None}


async def _judge(
    reception: Reception, alert: Alert, nodes: Mapping[str, Object], received: datetime, note: str
) -> Answer:
    name = alert.name[:128]
    try:
        fault = fault_of(alert, received)
        node = target_of(alert, reception.policy.intake.node_labels, nodes)
    except AlertIgnored as ignored:
        return reception.told(Answer(name, "ignored", reason=str(ignored)))
    except AlertRefused as refused:
        return reception.told(Answer(name, "refused", reason=str(refused)))
    return await reception.take(name, fault, nodes[node], note)


def application(reception: Reception, allowed: Access) -> web.Application:
    """The HTTP side: who may post, what is a notification, and which status tells Alertmanager what."""

    async def alertmanager(request: web.Request) -> web.Response:
        if not allowed.permits(request.headers.getall("Authorization", [])):
            log.warning("401: a notification without the right bearer token from %s", request.remote)
            return _failure(401, "send the webhook's token: Authorization: Bearer <token>")
        try:
            webhook = read_webhook(await request.read())
        except MalformedError as error:
            log.warning("400: %s", error)
            return _failure(400, str(error))
        try:
            answers = await take(reception, webhook)
        except KubernetesError as error:
            log.error("503: %s", error)  # noqa: TRY400 - a trace would say no more
            return _failure(503, f"nodes cannot be asked for, send it again: {error}")
        body = {"truncated": webhook.truncated_alerts, "alerts": [asdict(answer) for answer in answers]}
        lost = any(answer.status == "unavailable" for answer in answers)
        return web.json_response(body, status=503 if lost else 200)

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    made = web.Application(client_max_size=LONGEST_BODY)
    made.router.add_post("/alertmanager", alertmanager)
    made.router.add_get("/healthz", healthz)
    return made


def _failure(status: int, message: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response({"error": message}, status=status, headers=headers)


async def run(reception: Reception, settings: Settings, stop: asyncio.Event) -> None:
    """Serve the webhook until `stop` is set.

    Raises `ValueError` and `OSError` for an address or a token that cannot be used.
    """
    allowed = access(settings.listen, settings.webhook_token_file)
    # No access log: what matters is logged alert by alert.
    runner = web.AppRunner(application(reception, allowed), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, allowed.host, allowed.port).start()
        log.info("listening on %s", settings.listen)
        await stop.wait()
    finally:
        await runner.cleanup()
