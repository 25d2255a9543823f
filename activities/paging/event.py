"""The Event of a page, on the Node that it is about. Pure."""

from datetime import datetime
from typing import Any

from gpu_runbooks.activities import names
from gpu_runbooks.activities.model.page import Page
from gpu_runbooks.activities.paging.alert import labels, line

NAMESPACE = "default"
"""Of Events about objects without a namespace: the API accepts no other."""

LONGEST_NOTE = 1024
"""Bytes, by the API's own validation of `note`."""


def event(page: Page, uid: str, now: datetime) -> dict[str, Any]:
    """The Event of a page. A page that is repeated has the same name, so that it is written once.

    The API server forgets Events, after an hour by default: the next repetition writes it again.
    """
    pairs = [f"{name}={value}" for name, value in sorted(labels(page).items())]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"gpu-runbook-page-{names.digest(*pairs, page.since.isoformat(), uid)}",
            "namespace": NAMESPACE,
        },
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": "Warning",
        "reason": line(page.alert)[:128],
        "action": "CallPerson",
        "note": line(f"{page.summary.rstrip('.')}. {page.advice}")
        .encode()[:LONGEST_NOTE]
        .decode(errors="ignore"),
        "regarding": {
            "apiVersion": "v1",
            "kind": "Node",
            "name": page.node,
            **({"uid": uid} if uid else {}),
        },
        "reportingController": f"{names.PREFIX}/cluster-worker",
        "reportingInstance": "cluster-worker",
    }
