"""Entries of the journal as `journalctl -o json` writes them.

A field is a string, a list of the bytes where it is no UTF-8, a list of values where it occurs several times,
or null where it was too large. The journal cuts the name of the writer off what a process wrote into the
kernel log, and keeps it in `SYSLOG_IDENTIFIER`.

Source of the format: systemd.io/JOURNAL_EXPORT_FORMATS.
"""

import json
from collections.abc import Mapping
from typing import Any

from gpu_runbooks.activities.kernel_log.kmsg import is_kernel
from gpu_runbooks.activities.kernel_log.marker import WRITER
from gpu_runbooks.activities.kernel_log.record import LONGEST_MESSAGE, Record, of_epoch

LONGEST_ENTRY = 128 * 1024
"""Bytes. One whose message is a list of bytes has five for each."""

_LONGEST_ID = 64


def read_entry(line: bytes) -> Record | None:
    """The record of an entry; None for what is none, or has no text."""
    if len(line) > LONGEST_ENTRY:
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    text = _text(entry.get("MESSAGE"))
    if not text:
        return None
    kernel = _is_kernel(entry)
    if not kernel and _field(entry, "SYSLOG_IDENTIFIER") == WRITER:
        text = f"{WRITER}: {text}"
    realtime = _number(_field(entry, "__REALTIME_TIMESTAMP"))
    microseconds = _number(_field(entry, "_SOURCE_MONOTONIC_TIMESTAMP"))
    return Record(
        text=text,
        kernel=kernel,
        microseconds=microseconds,
        time=None if realtime is None else of_epoch(realtime),
        moment="" if realtime is None else str(realtime),
        boot_id=_field(entry, "_BOOT_ID")[:_LONGEST_ID],
    )


def _is_kernel(entry: Mapping[str, Any]) -> bool:
    """Only what says so is the kernel's: what processes write into its log has its transport, too."""
    facility = _field(entry, "SYSLOG_FACILITY")
    if "SYSLOG_FACILITY" in entry and (_number(facility) is None or not is_kernel(int(facility) << 3)):
        return False
    if "SYSLOG_IDENTIFIER" in entry and _field(entry, "SYSLOG_IDENTIFIER") != "kernel":
        return False
    return _field(entry, "_TRANSPORT") == "kernel"


def _text(message: Any) -> str:
    if isinstance(message, str):
        return message[:LONGEST_MESSAGE]
    if isinstance(message, list) and all(
        isinstance(each, int) and 0 <= each <= 255 for each in message[:LONGEST_MESSAGE]
    ):
        return bytes(message[:LONGEST_MESSAGE]).decode("utf-8", "replace")
    return ""


def _field(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 10**20 else ""
    return value if isinstance(value, str) else ""


def _number(text: str) -> int | None:
    return int(text) if 0 < len(text) <= 19 and text.isascii() and text.isdecimal() else None
