"""The line in the kernel log that a reset is ours. Pure.

A reset leaves Xids of the driver's own in the log, as it ends what was there. Between the lines `before` and
`after` of the same incident and GPU they are no new fault.
"""

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, unquote

WRITER = "gpu-runbooks"
"""Name before each line of ours in a log."""

PREFIX = f"{WRITER}: reset"

LONGEST_LINE = 976
"""Bytes that the kernel takes in one write to `/dev/kmsg`, with room for our priority."""

READABLE = "/:.-_"


class Phase(StrEnum):
    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True)
class Marker:
    phase: Phase
    incident: str
    """Workflow id."""
    gpu_uuid: str | None
    pci_address: str | None
    """Without function, as `0000:53:00`. The driver's Xid lines name the GPU by it."""


def marker_line(marker: Marker) -> str:
    """The text of the log record. What is unknown is left out. Values hold no spaces: they are quoted."""
    values = {
        "phase": marker.phase.value,
        "incident": marker.incident,
        "gpu": marker.gpu_uuid,
        "pci": marker.pci_address,
    }
    told = (f"{key}={quote(value, READABLE)}" for key, value in values.items() if value is not None)
    return " ".join((PREFIX, *told))


def read_marker(text: str) -> Marker | None:
    """The marker in the text of a record, without the log's own prefix; None for any other text."""
    if not text.startswith(f"{PREFIX} "):
        return None
    pairs = (pair.partition("=") for pair in text.removeprefix(PREFIX).split())
    values = {key: unquote(value) for key, _, value in pairs}
    if values.get("phase") not in set(Phase) or not values.get("incident"):
        return None
    return Marker(Phase(values["phase"]), values["incident"], values.get("gpu"), values.get("pci"))
