"""Alerts that a delivery lacks: as many nodes, of which the guard of the fleet is told.

Alertmanager cuts a notification off at `max_alerts`, and says how many alerts it left out. Nobody knows which
nodes those were, so none of them has an incident; but a storm is no smaller for it. What the others are, the
alerts that are there say: where none of them is a fault of a node now, none of the others is taken for one.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from gpu_runbooks.activities.model.fleet import AlertsTruncated, StormRule
from gpu_runbooks.activities.names import digest
from gpu_runbooks.workers.intake.alert_faults import AlertIgnored, fault_of
from gpu_runbooks.workers.intake.alertmanager import Alert, AlertRefused, Webhook, is_node_name, named_nodes
from gpu_runbooks.workflows.traits import signature

UNKNOWN = "alert of a kind that nobody knows"


def cut_off(
    webhook: Webhook, rule: StormRule, node_labels: Sequence[str], received: datetime
) -> AlertsTruncated | None:
    """What the guard is told of a delivery; None where no node's fault was cut off.

    The alerts that are there say what kind the others probably are: the most frequent kind of them.
    """
    if not webhook.truncated_alerts:
        return None
    alerts = [alert for alert in webhook.alerts if isinstance(alert, Alert)]
    kinds = Counter(kind for alert in alerts if (kind := _kind(alert, node_labels, received)))
    if alerts and not kinds:
        return None
    return AlertsTruncated(
        count=webhook.truncated_alerts,
        signature=max(kinds, key=lambda kind: kinds[kind]) if kinds else UNKNOWN,
        # Which alerts of a group are there changes with each that begins or ends; how many are not, the guard
        # compares with what the group lacked before.
        delivery=digest(webhook.group),
        rule=rule,
    )


def _kind(alert: Alert, node_labels: Sequence[str], received: datetime) -> str:
    """Signature of the fault of a node that an alert reports; empty for what is none, or no node's."""
    if not any(is_node_name(name) for _, name in named_nodes(alert, node_labels)):
        return ""
    try:
        return signature(fault_of(alert, received))
    except AlertIgnored:
        return ""
    except AlertRefused:
        return UNKNOWN
