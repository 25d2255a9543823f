"""Role `intake`: Alertmanager's webhook in, incidents out. Needs a Temporal client and read of nodes.

Alertmanager sends again after a 5xx and after no answer, never after a 4xx. So the answer is 503 as soon as
one alert may not be in Temporal, and 200 for whatever else becomes of a readable notification. Every alert
is judged by itself; what was taken already is recognised when the notification comes again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from aiohttp import web
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import FaultReport, Plan
from gpu_runbooks.activities.nodes.node import NODES, identity_of
from gpu_runbooks.workers.alertmanager import (
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
from gpu_runbooks.workers.incidents import Incidents, TemporalUnavailableError
from gpu_runbooks.workers.planner import planner, read_policy
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workers.temporal_connection import connect
from gpu_runbooks.workers.webhook_access import Access, access

LONGEST_BODY = 1024 * 1024
"""Bytes: some 1,500 alerts. Alertmanager groups by node or alert, and `max_alerts` cuts."""

AT_ONCE = 50
"""Alerts of one notification that are worked on at the same time."""

log = logging.getLogger(__name__)

Planner = Callable[[Fault, NodeIdentity, Mapping[str, str], str | None], Plan]


@dataclass(frozen=True)
class Answer:
    """What became of one alert."""

    alert: str
    status: str
    """started, joined, duplicate, ignored, refused, or unavailable: not taken, to be sent again."""
    node: str = ""
    reason: str = ""
    workflow_id: str = ""
    run_id: str = ""


class Intake:
    """Takes notifications. `plan` refuses with an `ApplicationError`, whose message says why."""

    def __init__(
        self, kubernetes: Kubernetes, incidents: Incidents, plan: Planner, node_labels: tuple[str, ...]
    ) -> None:
        self._kubernetes = kubernetes
        self._incidents = incidents
        self._plan = plan
        self._node_labels = node_labels

    async def take(self, webhook: Webhook) -> list[Answer]:
        """Take each alert of a notification. Raises `KubernetesError` when nodes cannot be asked for."""
        note = ""
        if webhook.truncated_alerts:
            note = (
                f"**Not all is known:** Alertmanager cut {webhook.truncated_alerts} more alerts off the "
                "notification with this fault"
            )
            log.warning("truncated=%d alerts were cut off by max_alerts", webhook.truncated_alerts)
        nodes = await self._find_nodes(webhook.alerts)
        received = datetime.now(UTC)
        limit = asyncio.Semaphore(AT_ONCE)

        async def judge(alert: Alert) -> Answer:
            async with limit:
                answer = await self._judge(alert, nodes, received, note)
            log.info("%s", answer)
            return answer

        return list(await asyncio.gather(*map(judge, webhook.alerts)))

    async def _find_nodes(self, alerts: Iterable[Alert]) -> dict[str, Object]:
        """The live Nodes among all names that firing alerts carry, by name."""
        named = {
            name
            for alert in alerts
            if alert.status == "firing"
            for _, name in named_nodes(alert, self._node_labels)
            if is_node_name(name)
        }
        limit = asyncio.Semaphore(AT_ONCE)

        async def find(name: str) -> Object | None:
            async with limit:
                return await self._kubernetes.find(f"{NODES}/{name}")

        found = await asyncio.gather(*map(find, named))
        return {name: node for name, node in zip(named, found, strict=True) if node is not None}

    async def _judge(
        self, alert: Alert, nodes: Mapping[str, Object], received: datetime, note: str
    ) -> Answer:
        name = alert.name[:128]
        node = ""
        try:
            fault = fault_of(alert, received)
            node = target_of(alert, self._node_labels, nodes)
            labels = nodes[node]["metadata"].get("labels") or {}
            plan = self._plan(fault, identity_of(nodes[node]), labels, None)
            delivered = await self._incidents.deliver(FaultReport(fault=fault, plan=plan), note)
        except AlertIgnored as ignored:
            return Answer(name, "ignored", node, str(ignored))
        except AlertRefused as refused:
            return Answer(name, "refused", node, str(refused))
        except ApplicationError as refused:
            return Answer(name, "refused", node, refused.message)
        except TemporalUnavailableError as error:
            return Answer(name, "unavailable", node, str(error))
        return Answer(name, node=node, **asdict(delivered))


def application(intake: Intake, allowed: Access) -> web.Application:
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
            answers = await intake.take(webhook)
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


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Serve the webhook until `stop` is set. Starts without Temporal, and answers 503 until it is there.

    Raises `ValueError` and `OSError` for an address, token or policy that cannot be used.
    """
    allowed = access(settings.listen, settings.webhook_token_file)
    policy = read_policy(settings)
    async with Kubernetes.connect() as kubernetes:
        incidents = Incidents(await connect(lazy=True), settings.cluster)
        intake = Intake(kubernetes, incidents, planner(settings, policy), policy.intake.node_labels)
        # No access log: what matters is logged alert by alert.
        runner = web.AppRunner(application(intake, allowed), access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, allowed.host, allowed.port).start()
            log.info("listening on %s", settings.listen)
            await stop.wait()
        finally:
            await runner.cleanup()
