"""What the kernel log of a bundle tells, read from the text that an agent brought. Pure."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from gpu_runbooks.activities.evidence.bundle import FAULTS, fitting_list
from gpu_runbooks.activities.kernel_log import Event, Parser
from gpu_runbooks.activities.kernel_log.address import pci_address
from gpu_runbooks.activities.kubernetes.error import Object
from gpu_runbooks.activities.model.node_task import HardwareFacts

_HEAD = re.compile(r"# (\S{1,40}) is ([0-9]{1,19}) microseconds after boot\n", re.ASCII)
"""The first line of an agent's text. It ties the records' clock to the time."""


def faults_part(part: Any, boot_id: str, facts: HardwareFacts | None) -> Object | None:
    """The events of a kernel log, newest first, and whether there were no others. None where there is no log.

    Only the agent saw which records it left out, so that whether the log is whole is its word; without it the
    log is not.
    """
    if not isinstance(part, Mapping) or not part.get("text"):
        return None
    text = str(part["text"])
    parser = Parser(boot_id=boot_id, boot_time=_boot_time(text), uuids=_uuids(facts))
    events = parser.feed(text)
    return {**fitting_list(map(_told, reversed(events)), FAULTS), "complete": part.get("complete") is True}


def _boot_time(text: str) -> datetime | None:
    head = _HEAD.match(text)
    if head is None:
        return None
    try:
        moment = datetime.fromisoformat(head[1]) - timedelta(microseconds=int(head[2]))
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else None


def _uuids(facts: HardwareFacts | None) -> dict[str, str]:
    gpus: Iterable[Any] = facts.gpus if facts else ()
    return {gpu.pci_address: gpu.uuid for gpu in gpus if gpu.uuid and pci_address(gpu.pci_address or "")}


def _told(event: Event) -> Object:
    """One event, without what it does not say."""
    finding = event.finding
    told = {
        "kind": event.kind.value,
        "code": event.code,
        "time": event.time.isoformat(timespec="milliseconds") if event.time else None,
        "sequence": event.sequence,
        "pci": event.pci,
        "uuid": event.uuid,
        "device": finding.device,
        "gpu_instance": finding.gi,
        "compute_instance": finding.ci,
        "process": finding.process,
        "place": finding.place or None,
        "grade": finding.grade or None,
        "recovery_action": finding.recovery_action,
        "caused_by": finding.caused_by,
        "text": event.text,
    }
    return {name: value for name, value in told.items() if value is not None}
