"""The fault that an alert reports, from labels as dcgm-exporter writes them, or as a rule sets them. Pure.

docs/intake.md lists the labels. What no label says stays unknown: nothing is read out of free text.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from gpu_runbooks.activities import names
from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource
from gpu_runbooks.activities.paging.alert import is_ours
from gpu_runbooks.workers.intake.alertmanager import SUMMARY_ANNOTATIONS, Alert, AlertRefused, is_node_name
from gpu_runbooks.workers.intake.plain_text import is_inert, one_line
from gpu_runbooks.workflows.policy.catalogue import UnreadableXidError
from gpu_runbooks.workflows.policy.faults import canonical_code

GPU_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
PCI_ADDRESS = re.compile(
    r"(?:PCI:)?(?:0{0,4}(?P<domain>[0-9a-f]{4}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.[0-9a-f])?",
    re.IGNORECASE,
)
"""`00000000:4C:00.0` of exporters, `0000:4c:00.0` of sysfs, `PCI:0000:4c:00` of the kernel log."""

BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)

CODE_LABELS = (
    ("xid", FaultSource.XID),
    ("sxid", FaultSource.SXID),
    ("dcgm_health_code", FaultSource.DCGM),
    ("health_error_code", FaultSource.DCGM),
)
"""The first that an alert carries says what is wrong; without any, the alert's name is the code."""

NO_VALUE = re.compile(
    r"-[0-9]+(?:\.[0-9]*)?|[+-]?(?:nan|inf|infinity)|null|none|nil|n/a|<nil>|<no value>",
    re.ASCII | re.IGNORECASE,
)
"""What exporters and templates write where there is no code: no Xid is negative."""

WITHOUT_VALUE = "is no code: the exporter had no value, see its rule or its log"

UUID_LABELS = ("UUID", "gpu_uuid")
PCI_LABELS = ("pci_bus_id", "pci_address")
MIG_LABEL = "GPU_I_ID"
"""dcgm-exporter's number of a MIG instance; `UUID` beside it is that of the whole GPU."""
RECOVERY_LABEL = "recovery_action"
BOOT_LABEL = "boot_id"
POD_LABELS = (("exported_namespace", "exported_pod"), ("namespace", "pod"))
"""Prometheus renames the exporter's own labels where the scraped target has some of the same name."""

LABELS = frozenset(
    {"alertname", MIG_LABEL, RECOVERY_LABEL, BOOT_LABEL}
    | {label for label, _ in CODE_LABELS}
    | {*UUID_LABELS, *PCI_LABELS, "Hostname"}
    | {label for pair in POD_LABELS for label in pair}
)
"""All labels that are read, beside those that the policy names for the node."""

EXPORTER = "dcgm-exporter"

LONGEST_SUMMARY = 300
LONGEST_CODE = 128
"""Bytes: the code becomes a search attribute, which holds 255 characters with its source."""


class AlertIgnored(Exception):  # noqa: N818  a decision, not a failure of ours
    """There is nothing to do about this alert."""


def fault_of(alert: Alert, received: datetime) -> Fault:
    """The fault that a firing alert reports. Same alert, same onset: same fingerprint.

    Raises `AlertIgnored` for what is no fault now, `AlertRefused` for an alert that says not what is wrong.
    """
    if is_ours(alert.labels):
        raise AlertIgnored(
            f"{alert.signal} is an alert of gpu-runbooks itself, about what it waits for: it is no fault. "
            'A route with the matcher alertname!~"GpuRunbook.*" keeps it away from here'
        )
    if alert.status == "resolved":
        raise AlertIgnored("resolution is a hint only: a node returns by our own validation")
    source, code = _source_and_code(alert)
    if len(code.encode()) > LONGEST_CODE:
        raise AlertRefused(f"{source} {code[:40]!a}... is longer than {LONGEST_CODE} bytes")
    if not is_inert(code):
        raise AlertRefused(f"{source} {code[:40]!a} is no name: it has characters that no name has")
    return Fault(
        source=source,
        code=code,
        entity=_entity(alert.labels, source),
        recovery_action=_recovery_action(alert.labels),
        place=_place(alert.labels),
        pod=_pod(alert.labels),
        boot_id=_boot_id(alert.labels),
        summary=_summary(alert.annotations),
        # An onset in the future is another clock's error; as it stands it would outdate every repair.
        first_seen=min(alert.starts_at, received).astimezone(UTC),
        last_seen=received,
        fingerprint=names.digest(alert.fingerprint, alert.starts_at.astimezone(UTC).isoformat()),
        reporter="alertmanager",
    )


def _source_and_code(alert: Alert) -> tuple[FaultSource, str]:
    without: list[str] = []
    for label, source in CODE_LABELS:
        written = alert.labels.get(label, "").strip()
        if not written:
            continue
        if NO_VALUE.fullmatch(written):
            without.append(f"{label} {written[:40]}")
            continue
        try:
            code = canonical_code(source, written)
        except UnreadableXidError:
            return source, written  # policy decides about what nobody can read
        if code == "0":
            raise AlertIgnored(f"{label} 0 means that there was none")
        return source, code
    if without:
        raise AlertRefused(f"{', '.join(without)} {WITHOUT_VALUE}")
    if not alert.name.strip():
        labels = ", ".join(label for label, _ in CODE_LABELS)
        raise AlertRefused(f"the alert has no alertname and no label {labels}: nothing says what is wrong")
    return FaultSource.ALERT, alert.name.strip()


def _entity(labels: Mapping[str, str], source: FaultSource) -> Entity:
    """The device that the labels name. The whole node where they name none, or contradict themselves."""
    uuids = {found for label in UUID_LABELS if (found := _gpu_uuid(labels.get(label, "")))}
    addresses = {found for label in PCI_LABELS if (found := pci_address(labels.get(label, "")))}
    if len(uuids) > 1 or len(addresses) > 1 or not (uuids or addresses):
        return Entity()
    address = next(iter(addresses), None)
    if source is FaultSource.SXID:  # of a switch, which has no UUID
        return Entity(kind="nvswitch", pci_address=address) if address else Entity()
    return Entity(kind="gpu", uuid=next(iter(uuids), None), pci_address=address)


def _gpu_uuid(value: str) -> str | None:
    """UUID as NVML spells it; None for anything else, such as that of a MIG slice."""
    text = value.strip()
    return f"GPU-{text[4:].lower()}" if GPU_UUID.fullmatch(text) else None


def pci_address(value: str) -> str | None:
    """PCI address as NVML counts it, without function and in lower case; None for anything else."""
    found = PCI_ADDRESS.fullmatch(value.strip())
    return f"{found['domain'] or '0000'}:{found['bus']}:{found['device']}".lower() if found else None


def _recovery_action(labels: Mapping[str, str]) -> int | None:
    """What the driver wants done, as a number of one or two digits; None for anything else."""
    text = labels.get(RECOVERY_LABEL, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 2 else None


def _place(labels: Mapping[str, str]) -> str:
    instance = labels.get(MIG_LABEL, "").strip()
    plain = instance.isascii() and instance.isdecimal() and len(instance) <= 3
    return f"MIG instance {int(instance)}" if plain else ""


def _pod(labels: Mapping[str, str]) -> str:
    """`namespace/name` of the pod at work, only where both look like names.

    Plain `namespace` and `pod` are the exporter's own where no pod used the GPU: those are nobody's work.
    """
    for namespace_label, pod_label in POD_LABELS:
        namespace, pod = labels.get(namespace_label, ""), labels.get(pod_label, "")
        if not (namespace or pod):
            continue
        names_both = is_node_name(pod) and is_node_name(namespace) and "." not in namespace
        fits = len(namespace) <= 63
        exporter = EXPORTER in pod or pod == labels.get("Hostname")
        return f"{namespace}/{pod}" if names_both and fits and not exporter else ""
    return ""


def _boot_id(labels: Mapping[str, str]) -> str:
    text = labels.get(BOOT_LABEL, "").strip().lower()
    return text if BOOT_ID.fullmatch(text) else ""


def _summary(annotations: Mapping[str, str]) -> str:
    text = next((annotations[name] for name in SUMMARY_ANNOTATIONS if annotations.get(name, "").strip()), "")
    return one_line(text, LONGEST_SUMMARY)
