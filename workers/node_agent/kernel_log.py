"""The newest part of the kernel log, for the evidence of a repair.

The records stay as `/dev/kmsg` gives them: `<priority>,<sequence>,<microseconds>,<flags>;<text>`, with
continuation lines that begin with a space. So their reader can see gaps in the sequence.

What processes wrote there (priority 8 and above) is left out but for marks of ours, and so are records of
the kernel's audit: both quote command lines, which hold tokens now and then, and the evidence has more
readers than the log.

Source of the format: kernel, `Documentation/ABI/testing/dev-kmsg`.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpu_runbooks.activities.kernel_log import Kind, Parser
from gpu_runbooks.activities.kernel_log.kmsg import HEADER, is_kernel
from gpu_runbooks.workers.node_agent.plain_text import Part, plain

WINDOW_MINUTES = 360
"""A drain can take hours, and the evidence is gathered at its end."""

LIMIT = 64 * 1024
"""Bytes of the text. The CRD has the same limit."""

LONGEST_RECORD = 8192
"""Bytes. The kernel's own records are shorter."""

TAIL = 4 * 1024 * 1024
"""Bytes of the log that are looked at. The kernel's buffer has a few hundred kilobytes, as a rule."""

LONGEST_REASON = 120
"""Characters of what is missing. The CRD has a limit for the whole note."""

MOST_READ = 128 * 1024 * 1024
"""Bytes after which reading ends although the log goes on: somebody writes faster than we read."""

FAULT = re.compile(rb"\bS?Xid\b")
"""Beside the records that tell a fault: what joins one, repeats it, or has a shape that nobody knows yet."""

RELEVANT = re.compile(
    rb"nvrm|nvidia|nvlink|nvswitch|\befa|\bena\b|pcie|\baer\b|\bmce\b|\bedac\b|hardware error|suppressed",
    re.IGNORECASE,
)
OURS = re.compile(rb"[^;]*;gpu-runbooks: ")
AUDIT = re.compile(rb"[^;]*;audit: ")

SHARES = (0.5, 0.8, 1.0)
"""How far faults, then other relevant records, then all others may fill the text."""


@dataclass(frozen=True)
class KernelLogPart(Part):
    complete: bool = False
    """Whether no record of the window that tells a fault is missing: only then there were no others."""


@dataclass(frozen=True, slots=True)
class Record:
    seconds: float
    """Since the boot."""
    sequence: int | None
    rank: int | None
    """0 a fault, 1 relevant, 2 any other; None for one that is not the kernel's to tell."""
    text: str


def read_kernel_log(log: Path, *, uptime: float, now: datetime) -> KernelLogPart:
    """The last hours of a log. Never blocks on `/dev/kmsg`, and never raises: the note says what is missing.

    `uptime` in seconds: the clock of the records, which stands still while the machine sleeps, at `now`.
    """
    try:
        content, complete = _tail(log)
    except OSError as error:
        return KernelLogPart("", f"{log} cannot be read: {error.strerror or error}")
    start = uptime - 60 * WINDOW_MINUTES
    parser = Parser()
    recent: list[Record] = []
    begun_before = False
    for record in _records(content, parser, complete=complete):
        if record.seconds < start:
            begun_before = True
            parser.begin_window()
            continue
        begun_before = begun_before or (not recent and record.sequence == 0)
        recent.append(record)
    records = [record for record in recent if record.rank is not None]
    head = f"# {now.isoformat(timespec='seconds')} is {1_000_000 * uptime:.0f} microseconds after boot\n"
    kept = _fitting(records, LIMIT - len(head))
    notes = []
    if not complete:
        notes.append("the oldest records were overwritten, or are not among the newest 4 MiB")
    lacking = parser.window.reasons
    if lacking:
        notes.append(f"records are missing: {'; '.join(lacking)[:LONGEST_REASON]}")
    if private := len(recent) - len(records):
        notes.append(f"{private} records of processes and of the kernel's audit are left out")
    if len(kept) < len(records):
        notes.append(
            f"{len(kept)} of the {len(records)} records of the last {WINDOW_MINUTES} minutes: of these, the "
            "newest Xid lines, then those about GPU, EFA, ENA and PCIe, then others, up to 64 KiB"
        )
    all_faults = _faults(kept) == _faults(records)
    return KernelLogPart(
        head + "".join(record.text for record in kept),
        "; ".join(notes),
        complete=begun_before and not lacking and all_faults,
    )


def _tail(log: Path) -> tuple[bytes, bool]:
    """The end of the log, and whether it begins where the log does. Raises `OSError`."""
    descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status, complete, content, read = os.fstat(descriptor), True, bytearray(), 0
        if stat.S_ISREG(status.st_mode) and status.st_size > TAIL:
            os.lseek(descriptor, -TAIL, os.SEEK_END)
            complete = False
        while read < MOST_READ:
            try:
                chunk = os.read(descriptor, 64 * 1024)
            except BlockingIOError:  # nothing newer is there
                break
            except BrokenPipeError:  # overwritten since the last read: the next one goes on behind the gap
                complete = False
                continue
            if not chunk:
                break
            read += len(chunk)
            content += chunk
            if len(content) > 2 * TAIL:
                del content[:-TAIL]
                complete = False
        return bytes(content[-TAIL:]), complete and len(content) <= TAIL
    finally:
        os.close(descriptor)


def _records(content: bytes, parser: Parser, *, complete: bool) -> Iterator[Record]:
    """The records, oldest first. A line that no record begins belongs to the one before it."""
    lines = content.split(b"\n")
    if not complete:
        del lines[0]
    begun: list[bytes] = []
    for line in lines:
        if HEADER.match(line) and begun:
            yield _record(begun, parser)
            begun = []
        if line:
            begun.append(line)
    if begun:
        yield _record(begun, parser)


def _record(lines: list[bytes], parser: Parser) -> Record:
    content = b"\n".join(lines)
    if len(content) > LONGEST_RECORD:
        content = content[:LONGEST_RECORD] + b" [cut]"
    text = plain(content) + "\n"
    header = HEADER.match(content)
    if header is None:
        return Record(float("inf"), None, _rank(content, kernel=True, tells=False), text)
    tells = any(event.kind is not Kind.MARKER for event in parser.feed(lines[0][:LONGEST_RECORD]))
    rank = _rank(content, kernel=is_kernel(int(header[1])), tells=tells)
    return Record(int(header[3]) / 1_000_000, int(header[2]), rank, text)


def _rank(content: bytes, *, kernel: bool, tells: bool) -> int | None:
    if OURS.match(content):
        return 1
    if not kernel or AUDIT.match(content):
        return None
    if tells or FAULT.search(content):
        return 0
    return 1 if RELEVANT.search(content) else 2


def _faults(records: list[Record]) -> int:
    return sum(record.rank == 0 for record in records)


def _fitting(records: list[Record], limit: int) -> list[Record]:
    """The records that fit, in order: by rank, and within a rank the newest."""
    if sum(len(record.text) for record in records) <= limit:
        return records
    chosen: set[int] = set()
    used = 0
    for rank, share in enumerate(SHARES):
        for place in range(len(records) - 1, -1, -1):
            record = records[place]
            if record.rank == rank and used + len(record.text) <= limit * share:
                used += len(record.text)
                chosen.add(place)
    return [record for place, record in enumerate(records) if place in chosen]
