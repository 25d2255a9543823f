"""Alerts that a delivery lacks: as many nodes, of which the guard of the fleet is told.

Alertmanager cuts a notification off at `max_alerts`, and says how many alerts it left out. Nobody knows which
nodes those were, so none of them has an incident; but a storm is no smaller for it.
"""

from collections import Counter
from datetime import datetime

from gpu_runbooks.activities.model.fleet import AlertsTruncated, StormRule
from gpu_runbooks.activities.names import digest
from gpu_runbooks.workers.intake.alert_faults import AlertIgnored, fault_of
from gpu_runbooks.workers.intake.alertmanager import Alert, AlertRefused, Webhook
from gpu_runbooks.workflows.traits import signature

UNKNOWN = "alert of a kind that nobody knows"


def cut_off(webhook: Webhook, rule: StormRule, received: datetime) -> AlertsTruncated | None:
    """What the guard is told of a delivery; None where nothing was cut off.

    The alerts that are there say what kind the others probably are: the most frequent kind of them.
    """
    if not webhook.truncated_alerts:
        return None
    alerts = [alert for alert in webhook.alerts if isinstance(alert, Alert)]
    kinds = Counter(kind for alert in alerts if (kind := _kind(alert, received)))
    # A resolved alert is the same alert: only which alerts these are, and since when, tells deliveries apart.
    marks = sorted(f"{alert.fingerprint} {alert.starts_at.isoformat()}" for alert in alerts)
    return AlertsTruncated(
        count=webhook.truncated_alerts,
        signature=max(kinds, key=lambda kind: kinds[kind]) if kinds else UNKNOWN,
        delivery=digest(webhook.group, *marks),
        rule=rule,
    )


def _kind(alert: Alert, received: datetime) -> str:
    """Signature of the fault that an alert is about, whether it still fires or not; empty for none."""
    try:
        return signature(fault_of(alert.model_copy(update={"status": "firing"}), received))
    except (AlertIgnored, AlertRefused):
        return ""
