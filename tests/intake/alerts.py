"""Notifications as Alertmanager sends them, in short."""

from datetime import UTC, datetime, timedelta
from typing import Any

ONSET = "2026-03-01T10:00:00.123456789Z"
RECEIVED = datetime(2026, 3, 1, 10, 0, 5, tzinfo=UTC)
BEGAN = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
"""Of alerts that real servers are to take: what is old is looked at first."""


def fresh(status: str = "firing", *, onset: str = BEGAN, **labels: str) -> dict[str, Any]:
    return alert(status, onset=onset, **labels)


def alert(
    status: str = "firing", fingerprint: str = "f1", onset: str = ONSET, **labels: str
) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": "GpuXidCritical", "severity": "critical"} | labels,
        "annotations": {"summary": "gpu fault"},
        "startsAt": onset,
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus.example/graph?g0.expr=x",
        "fingerprint": fingerprint,
    }


def notification(*alerts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "version": "4",
        "groupKey": '{}:{alertname="GpuXidCritical"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "gpu-runbooks",
        "groupLabels": {"alertname": "GpuXidCritical"},
        "commonLabels": {"alertname": "GpuXidCritical"},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager-0.example:9093",
        "alerts": list(alerts),
    } | fields
