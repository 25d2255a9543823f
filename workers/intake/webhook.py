"""The source `alertmanager`: each alert of a notification judged by itself, on the Node that it names.

What was taken already is recognised when the notification comes again, so it can come again as a whole: an
alert that may not be in Temporal is `unavailable`, and `webhook_http` then answers 503.
"""

import asyncio
import logging
import random
from datetime import UTC, datetime

from gpu_runbooks.activities.kubernetes.client import KubernetesError
from gpu_runbooks.workers.intake.alert_faults import AlertIgnored, fault_of
from gpu_runbooks.workers.intake.alertmanager import (
    Alert,
    AlertRefused,
    Unreadable,
    Webhook,
    is_node_name,
    named_nodes,
    target_of,
)
from gpu_runbooks.workers.intake.cut_off import cut_off
from gpu_runbooks.workers.intake.delivered import TemporalUnavailableError
from gpu_runbooks.workers.intake.live_nodes import LiveNodes
from gpu_runbooks.workers.intake.places import Places
from gpu_runbooks.workers.intake.reception import Answer, Reception
from gpu_runbooks.workers.intake.webhook_access import access
from gpu_runbooks.workers.intake.webhook_http import application
from gpu_runbooks.workers.intake.webhook_server import serving
from gpu_runbooks.workers.settings import Settings

AT_ONCE = 50
"""Alerts of one notification that are worked on at the same time."""

TAKING_SECONDS = 30.0
"""Time for one notification. Alertmanager waits for its group_interval, and at least 10 s."""

log = logging.getLogger(__name__)


async def take(reception: Reception, webhook: Webhook) -> list[Answer]:
    """Take each alert of a notification. Never raises for one: it is `unavailable`, the others are taken."""
    note = ""
    if webhook.truncated_alerts:
        note = (
            f"**Not all is known:** Alertmanager cut {webhook.truncated_alerts} more alerts off the "
            "notification with this fault"
        )
        log.warning("truncated=%d alerts were cut off by max_alerts", webhook.truncated_alerts)
    not_told = await _tell_guard(reception, webhook)
    labels = reception.policy.intake.node_labels
    deadline = asyncio.get_running_loop().time() + TAKING_SECONDS
    received = datetime.now(UTC)
    places = Places(AT_ONCE)

    async def judge(alert: Alert | Unreadable) -> Answer:
        try:
            async with asyncio.timeout_at(deadline), places.one():
                return await _judge(reception, alert, labels, nodes, received, note)
        except TimeoutError:
            reason = f"not done in {TAKING_SECONDS:g} s, to be sent again"
        except Exception:
            # A mistake of ours about one alert must not lose the others.
            log.exception("an alert was not taken")
            reason = "the intake failed at this alert, its log says how; to be sent again"
        return reception.told(Answer(alert.signal, "unavailable", reason=reason))

    async with LiveNodes(reception.find_node) as nodes:
        order = _order(len(webhook.alerts))
        answers = await asyncio.gather(*(judge(webhook.alerts[index]) for index in order))
    by_index = dict(zip(order, answers, strict=True))
    return [*(by_index[index] for index in range(len(by_index))), *not_told]


async def _tell_guard(reception: Reception, webhook: Webhook) -> list[Answer]:
    """Tell the guard what was cut off, before any alert is taken. An answer only where that failed."""
    policy = reception.policy
    hidden = cut_off(webhook, policy.storm.wire(), policy.intake.node_labels, datetime.now(UTC))
    if hidden is None:
        return []
    try:
        await reception.tell_guard(hidden)
    except TemporalUnavailableError as error:
        reason = f"the guard of the fleet was not told of {hidden.count} alerts, send it again: {error}"
        return [reception.told(Answer("truncatedAlerts", "unavailable", reason=reason))]
    return []


def _order(alerts: int) -> list[int]:
    """In which order alerts get their places. Where not all get one at once it is another each time: when
    time runs out, the same notification comes again, and others than before are reached.
    """
    return list(range(alerts)) if alerts <= AT_ONCE else random.sample(range(alerts), alerts)


async def _judge(
    reception: Reception,
    alert: Alert | Unreadable,
    labels: tuple[str, ...],
    nodes: LiveNodes,
    received: datetime,
    note: str,
) -> Answer:
    if isinstance(alert, Unreadable):
        return reception.told(Answer(alert.signal, "refused", reason=alert.reason))
    try:
        fault = fault_of(alert, received)
        named = [name for _, name in named_nodes(alert, labels) if is_node_name(name)]
        found = await nodes.found(named)
        for name in named:
            if isinstance(error := found.get(name), KubernetesError):
                reason = f"nodes cannot be asked for, send it again: {error}"
                return reception.told(Answer(alert.signal, "unavailable", name, reason))
        target = found[target_of(alert, labels, found)]
    except AlertIgnored as ignored:
        return reception.told(Answer(alert.signal, "ignored", reason=str(ignored)))
    except AlertRefused as refused:
        return reception.told(Answer(alert.signal, "refused", reason=str(refused)))
    if isinstance(target, KubernetesError):
        raise target
    return await reception.take(alert.signal, fault, target, note)


async def run(reception: Reception, settings: Settings, stop: asyncio.Event) -> None:
    """Serve the webhook until `stop` is set.

    Raises `ValueError` and `OSError` for an address or a token that cannot be used.
    """
    allowed = access(settings.listen, settings.webhook_token_file)

    async def taken(webhook: Webhook) -> list[Answer]:
        return await take(reception, webhook)

    made = application(
        taken,
        allowed,
        lambda: reception.policy.intake.node_labels,
        reception.metrics,
        reception.policy_standing,
    )
    async with serving(made, allowed.host, allowed.port):
        log.info("listening on %s", settings.listen)
        await stop.wait()
