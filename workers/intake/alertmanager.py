"""Alertmanager's webhook (JSON version 4): reading it, and which Node an alert is about. Pure.

Format: https://prometheus.io/docs/alerting/latest/configuration/#webhook_config. The status of the group is
not read: it is `firing` as long as one member fires. A label named `status` means nothing either. No address
in a notification is read, let alone fetched.
"""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)

from gpu_runbooks.workers.intake.plain_text import one_line

NODE_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
"""A DNS subdomain, as Kubernetes demands of a Node's name. Nothing else gets near an API path."""

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,18})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)

MOST_ALERTS = 4000
"""Alerts of one notification: each has a line in the log and in the answer."""

MOST_LABELS = 256
"""Labels of one alert, and annotations: Prometheus' own limits are far below."""

LONGEST_SIGNAL = 128
"""Characters of an alert's name in answers and log lines."""

SUMMARY_ANNOTATIONS = ("summary", "description")
LONGEST_ANNOTATION = 2000
"""Characters that are kept of one."""


def _written_moment(value: Any) -> Any:
    if not isinstance(value, str) or not RFC_3339.fullmatch(value):
        raise ValueError("should be a moment in RFC 3339 with its timezone, as Alertmanager writes it")
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _wanted_labels(labels: dict[str, str], info: ValidationInfo) -> dict[str, str]:
    wanted = (info.context or {}).get("labels")
    return labels if wanted is None else {name: text for name, text in labels.items() if name in wanted}


def _read_annotations(annotations: dict[str, str]) -> dict[str, str]:
    return {
        name: annotations[name][:LONGEST_ANNOTATION] for name in SUMMARY_ANNOTATIONS if name in annotations
    }


Moment = Annotated[
    AwareDatetime,
    Field(ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(9999, 1, 1, tzinfo=UTC)),
    BeforeValidator(_written_moment),
]
"""Go's zero time, the year 1, is an unset time and no moment."""

Texts = Annotated[dict[str, str], Field(max_length=MOST_LABELS)]


class Alert(BaseModel):
    """One alert of a notification: what of it can matter to us. The rest is dropped at once."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    status: Literal["firing", "resolved"]
    labels: Annotated[Texts, AfterValidator(_wanted_labels)]
    annotations: Annotated[Texts, AfterValidator(_read_annotations)] = {}
    starts_at: Moment = Field(alias="startsAt")
    fingerprint: Annotated[str, Field(min_length=1, max_length=256)]

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "")

    @property
    def signal(self) -> str:
        """The name as answers and log lines show it."""
        return one_line(self.name, LONGEST_SIGNAL)


@dataclass(frozen=True)
class Unreadable:
    """A member of `alerts` that is no alert. The others of its notification are taken all the same."""

    signal: str
    reason: str


class _Body(BaseModel):
    """Body of a notification. The addresses in it (`externalURL`, `generatorURL`) are not even read."""

    model_config = ConfigDict(extra="ignore")

    version: Literal["4"]
    alerts: list[Any]
    truncated_alerts: Annotated[int, Field(alias="truncatedAlerts", strict=True, ge=0, le=10**9)] = 0
    group_key: Annotated[str, BeforeValidator(_text)] = Field(alias="groupKey", default="")


@dataclass(frozen=True)
class Webhook:
    """A notification."""

    alerts: tuple[Alert | Unreadable, ...]
    truncated_alerts: int = 0
    """Alerts of the group that `max_alerts` cut off: nodes that nobody told us about."""
    group: str = ""
    """Alertmanager's key of the group, only to tell one from another."""


class MalformedError(ValueError):
    """The body is no webhook of Alertmanager. The message names the first wrong fields."""


class TooManyAlertsError(ValueError):
    """More alerts than one notification may have."""


class AlertRefused(Exception):  # noqa: N818  a refusal, not a failure of ours
    """No incident can come of this alert. The message says why and what to change."""


def read_webhook(body: bytes, labels: Container[str] | None = None) -> Webhook:
    """Parse a notification, and keep of each alert the labels that are named, or all.

    Raises `MalformedError` for a body without one readable alert in it, unless `alerts` is empty, and
    `TooManyAlertsError`.
    """
    try:
        read = _Body.model_validate_json(body)
    except ValidationError as error:
        raise MalformedError(f"not a webhook of Alertmanager, version 4: {_wrong(error)}") from None
    if len(read.alerts) > MOST_ALERTS:
        raise TooManyAlertsError(
            f"{len(read.alerts)} alerts in one notification, at most {MOST_ALERTS} are read: group by node, "
            "or set max_alerts"
        )
    alerts = tuple(_alert(number, raw, labels) for number, raw in enumerate(read.alerts))
    unreadable = [alert.reason for alert in alerts if isinstance(alert, Unreadable)]
    if unreadable and len(unreadable) == len(alerts):
        raise MalformedError(f"not a webhook of Alertmanager, version 4: {unreadable[0]}")
    return Webhook(alerts, read.truncated_alerts, read.group_key)


def _alert(number: int, raw: Any, labels: Container[str] | None) -> Alert | Unreadable:
    try:
        return Alert.model_validate(raw, context={"labels": labels})
    except ValidationError as error:
        signal = raw.get("labels") if isinstance(raw, dict) else None
        name = signal.get("alertname") if isinstance(signal, dict) else None
        shown = one_line(name, LONGEST_SIGNAL) if isinstance(name, str) else ""
        return Unreadable(shown, _wrong(error, "alerts", number))


def _wrong(error: ValidationError, *path: str | int) -> str:
    """The first wrong fields. Names of fields are the sender's, so they are cut."""
    details = error.errors(include_input=False, include_url=False, include_context=False)
    wrong = [
        f"{'.'.join(one_line(str(part), 40) for part in (*path, *detail['loc'])) or 'body'}: {detail['msg']}"
        for detail in details[:5]
    ]
    more = f" (and {len(details) - 5} more)" if len(details) > 5 else ""
    return one_line("; ".join(wrong) + more, 1000)


def named_nodes(alert: Alert, node_labels: Sequence[str]) -> list[tuple[str, str]]:
    """Labels of an alert that may name its node, with what they say, in the order of the policy."""
    return [(label, alert.labels[label]) for label in node_labels if alert.labels.get(label)]


def is_node_name(value: str) -> bool:
    return NODE_NAME.fullmatch(value) is not None


def target_of(alert: Alert, node_labels: Sequence[str], nodes: Container[str]) -> str:
    """Name of the one Node that an alert is about; `nodes` has those that exist.

    The first label decides, and what it names must be a Node. A later one may be something else (exporters
    put a pod's name into `Hostname`), but not another Node. An address such as `instance` is never turned
    into a name. Raises `AlertRefused`.
    """
    named = named_nodes(alert, node_labels)
    if not named:
        raise AlertRefused(
            f"no label names a node: policy looks at {', '.join(node_labels)}, and an address with a port is "
            "no name. Let the alert's rule carry the node's name in one of these"
        )
    label, name = named[0]
    if name not in nodes:
        raise AlertRefused(f"label {label} says {name[:100]!a}, and no Node has exactly this name")
    for other_label, other in named[1:]:
        if other != name and other in nodes:
            raise AlertRefused(f"label {label} says node {name}, label {other_label} says node {other}")
    return name
