"""What Alertmanager is told of a page, in the form of its API v2. Pure.

The form and the merging of equal alerts are from Alertmanager's own `api/v2/openapi.yaml` and
`types/types.go`: equal labels are the same alert, an end that has passed resolves it, and an end before the
start is refused.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpu_runbooks.activities.model.page import Page

ALERT_PREFIX = "GpuRunbook"
"""Names of all alerts of ours begin so: the intake knows by it what would be its own echo."""

LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
"""What every version takes, and every receiver can route by."""

MOST_LABELS = 20
LONGEST_LABEL = 200
"""Characters of a label's value, and of its name: a workflow id of a node has at most some 120."""

LONGEST_TEXT = 1500
"""Characters of an annotation: a pager shows a few lines."""


def alert(page: Page, now: datetime) -> dict[str, Any]:
    """The alert of a page, for `POST /api/v2/alerts`.

    One that is over ends now, so that Alertmanager tells its receivers that it is resolved.
    """
    starts = min(page.since, now)  # clocks differ, and an end before the start is refused
    return {
        "labels": labels(page),
        "annotations": {"summary": line(page.summary), "description": text(page.advice)},
        "startsAt": starts.isoformat(),
        "endsAt": max(now if page.over else page.until, starts).isoformat(),
    }


def labels(page: Page) -> dict[str, str]:
    """Name, severity and the caller's labels, cleaned: what cannot be a label is left out."""
    own = {"alertname": line(page.alert)[:LONGEST_LABEL], "severity": page.severity}
    given = {
        name: value
        for name, raw in list(page.labels.items())[:MOST_LABELS]
        if LABEL_NAME.fullmatch(name) and len(name) <= LONGEST_LABEL and (value := line(raw)[:LONGEST_LABEL])
    }
    return {**given, **own}


def is_ours(alert_labels: Mapping[str, str]) -> bool:
    """Whether an alert is one of these, come back through a receiver that sends us everything."""
    return alert_labels.get("alertname", "").startswith(ALERT_PREFIX)


def line(raw: str) -> str:
    """One line without control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in raw).split())[:LONGEST_TEXT]


def text(raw: str) -> str:
    """Several lines, each without control characters."""
    return "\n".join(filter(None, map(line, raw.splitlines())))[:LONGEST_TEXT]
