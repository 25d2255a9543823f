"""Alertmanager's webhook (JSON version 4) as faults of nodes. Pure: nothing is asked, no address is fetched.

Format: https://prometheus.io/docs/alerting/latest/configuration/#webhook_config. The status of the group is
not read: it is `firing` as long as one member fires. A label named `status` means nothing either.
"""

import re
from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from gpu_runbooks.activities import names
from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource
from gpu_runbooks.workflows.policy.catalogue import UnreadableXidError
from gpu_runbooks.workflows.policy.policy import canonical_code

NODE_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
"""A DNS subdomain, as Kubernetes demands of a Node's name. Nothing else gets near an API path."""

GPU_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
PCI_ADDRESS = re.compile(
    r"(?:PCI:)?(?:0{0,4}(?P<domain>[0-9a-f]{4}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.[0-9a-f])?",
    re.IGNORECASE,
)
"""`00000000:4C:00.0` of exporters, `0000:4c:00.0` of sysfs, `PCI:0000:4c:00` of the kernel log."""

XID_LABEL = "xid"
UUID_LABELS = ("UUID", "gpu_uuid")
PCI_LABELS = ("pci_bus_id", "pci_address")
SUMMARY_ANNOTATIONS = ("summary", "description")

LONGEST_SUMMARY = 300
LONGEST_CODE = 128
"""Bytes: the code becomes a search attribute, which holds 255 characters with its source."""

Moment = Annotated[
    AwareDatetime,
    Field(strict=True, ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(9999, 1, 1, tzinfo=UTC)),
]
"""Go's zero time, the year 1, is an unset time and no moment."""


class Alert(BaseModel):
    """One alert of a notification."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    annotations: dict[str, str] = {}
    starts_at: Moment = Field(alias="startsAt")
    fingerprint: Annotated[str, Field(min_length=1)]

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "")


class Webhook(BaseModel):
    """Body of a notification. The addresses in it (`externalURL`, `generatorURL`) are not even read."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal["4"]
    alerts: tuple[Alert, ...]
    truncated_alerts: Annotated[int, Field(alias="truncatedAlerts", ge=0)] = 0
    """Alerts of the group that `max_alerts` cut off: nodes that nobody told us about."""


class MalformedError(ValueError):
    """The body is no webhook of Alertmanager. The message names the first wrong fields."""


class AlertRefused(Exception):  # noqa: N818  a refusal, not a failure of ours
    """No incident can come of this alert. The message says why and what to change."""


class AlertIgnored(Exception):  # noqa: N818  a decision, not a failure of ours
    """There is nothing to do about this alert."""


def read_webhook(body: bytes) -> Webhook:
    """Parse a notification. Raises `MalformedError`."""
    try:
        return Webhook.model_validate_json(body)
    except ValidationError as error:
        wrong = [
            f"{'.'.join(map(str, detail['loc'])) or 'body'}: {detail['msg']}"
            for detail in error.errors(include_input=False, include_url=False)
        ]
        more = f" (and {len(wrong) - 5} more)" if len(wrong) > 5 else ""
        raise MalformedError(
            "not a webhook of Alertmanager, version 4: " + "; ".join(wrong[:5]) + more
        ) from None


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
        raise AlertRefused(f"label {label} says {name[:100]!r}, and no Node has exactly this name")
    for other_label, other in named[1:]:
        if other != name and other in nodes:
            raise AlertRefused(f"label {label} says node {name}, label {other_label} says node {other}")
    return name


def fault_of(alert: Alert, received: datetime) -> Fault:
    """The fault that a firing alert reports. Same alert, same onset: same fingerprint.

    Raises `AlertIgnored` for what is no fault now, `AlertRefused` for an alert that says not what is wrong.
    """
    if alert.status == "resolved":
        raise AlertIgnored("resolution is a hint only: a node returns by our own validation")
    source, code = _source_and_code(alert)
    if len(code.encode()) > LONGEST_CODE:
        raise AlertRefused(f"{source} {code[:40]!r}... is longer than {LONGEST_CODE} bytes")
    return Fault(
        source=source,
        code=code,
        entity=_entity(alert.labels),
        summary=_summary(alert.annotations),
        # An onset in the future is another clock's error; as it stands it would outdate every repair.
        first_seen=min(alert.starts_at, received).astimezone(UTC),
        last_seen=received,
        fingerprint=names.digest(alert.fingerprint, alert.starts_at.astimezone(UTC).isoformat()),
        reporter="alertmanager",
    )


def _source_and_code(alert: Alert) -> tuple[FaultSource, str]:
    xid = alert.labels.get(XID_LABEL, "").strip()
    if not xid:
        if not alert.name.strip():
            raise AlertRefused("the alert has no alertname and no label xid: nothing says what is wrong")
        return FaultSource.ALERT, alert.name.strip()
    try:
        code = canonical_code(FaultSource.XID, xid)
    except UnreadableXidError:
        return FaultSource.XID, xid  # policy decides about what nobody can read
    if code == "0":
        raise AlertIgnored("xid 0 means that there was none")
    return FaultSource.XID, code


def _entity(labels: Mapping[str, str]) -> Entity:
    """The GPU that the labels name. The whole node where they name none, or contradict themselves."""
    uuids = {found for label in UUID_LABELS if (found := _gpu_uuid(labels.get(label, "")))}
    addresses = {found for label in PCI_LABELS if (found := pci_address(labels.get(label, "")))}
    if len(uuids) > 1 or len(addresses) > 1 or not (uuids or addresses):
        return Entity()
    return Entity(kind="gpu", uuid=next(iter(uuids), None), pci_address=next(iter(addresses), None))


def _gpu_uuid(value: str) -> str | None:
    """UUID as NVML spells it; None for anything else, such as that of a MIG slice."""
    text = value.strip()
    return f"GPU-{text[4:].lower()}" if GPU_UUID.fullmatch(text) else None


def pci_address(value: str) -> str | None:
    """PCI address as NVML counts it, without function and in lower case; None for anything else."""
    found = PCI_ADDRESS.fullmatch(value.strip())
    return f"{found['domain'] or '0000'}:{found['bus']}:{found['device']}".lower() if found else None


def _summary(annotations: Mapping[str, str]) -> str:
    """One line of plain text: the Temporal UI shows it as Markdown, where a link or image could be loaded."""
    text = next((annotations[name] for name in SUMMARY_ANNOTATIONS if annotations.get(name, "").strip()), "")
    line = " ".join("".join(each if each.isprintable() else " " for each in text[:2000]).split())
    return line.replace("](", "] (").replace("<", "< ")[:LONGEST_SUMMARY]
