"""Reads a kernel log line by line, and tells its events. Keeps what joins lines, and what tells repeats.

Nothing that is fed raises, and each line costs bounded time and memory: most only a few searches for words.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from gpu_runbooks.activities.kernel_log import nvidia
from gpu_runbooks.activities.kernel_log.address import pci_address
from gpu_runbooks.activities.kernel_log.event import Event, Finding, Kind, printable
from gpu_runbooks.activities.kernel_log.journal import LONGEST_ENTRY, read_entry
from gpu_runbooks.activities.kernel_log.kmsg import read_kmsg
from gpu_runbooks.activities.kernel_log.lines import read_line
from gpu_runbooks.activities.kernel_log.marker import PREFIX, read_marker
from gpu_runbooks.activities.kernel_log.network import read_network
from gpu_runbooks.activities.kernel_log.probe import Probes, read_name, read_rest
from gpu_runbooks.activities.kernel_log.record import Record
from gpu_runbooks.activities.kernel_log.relevance import RECORD, is_relevant_line, is_relevant_record
from gpu_runbooks.activities.kernel_log.repeats import MOST_DEVICES, Recent, Told
from gpu_runbooks.activities.kernel_log.window import Completeness, Moment, Window
from gpu_runbooks.activities.kernel_log.xid import read_xid

JOIN = 5.0
"""Seconds within which lines belong to one fault of an NVSwitch."""

LOST_AGAIN = 60.0
"""Seconds in which a GPU that fell off the bus is told once, whichever forms its lines have."""

JOURNAL = b"systemd-journald"
"""Writer of notes about records of the kernel that it missed."""


class Parser:
    """One log of one node.

    `boot_id` is of the records that name none. `boot_time` turns uptime into time; `near` is a moment shortly
    after the newest record, and says year and zone where a line does not. `uuids` are known already, by
    address. Of records up to the sequence `after` no event is told: a reader that was there goes on.
    """

    def __init__(
        self,
        *,
        boot_id: str = "",
        boot_time: datetime | None = None,
        near: datetime | None = None,
        uuids: Mapping[str, str] | None = None,
        after: int | None = None,
    ) -> None:
        self._boot_id = boot_id
        self._boot_time = boot_time
        self._near = near
        self._known = {pci: uuid for each, uuid in (uuids or {}).items() if (pci := pci_address(each))}
        self._uuids = dict(self._known)
        self._after = after
        self._completeness = Completeness()
        self._line = 0
        self._in_kmsg = False
        self._probes = Probes()
        self._lost = Recent(LOST_AGAIN)
        self._switches = Recent(JOIN)
        self._told = Told()

    @property
    def window(self) -> Window:
        """Whether the log is whole since the beginning, or since `begin_window`."""
        return self._completeness.window(self._probes.unsaid())

    def begin_window(self) -> None:
        self._completeness.begin_window()
        self._probes.begin_window()

    def feed(self, line: bytes | str) -> tuple[Event, ...]:
        """The events that a line completes. Several lines at once are read one after the other."""
        if isinstance(line, str):
            line = line.encode("utf-8", "backslashreplace")
        if line.find(b"\n") >= 0:
            return tuple(event for each in line.split(b"\n") for event in self.feed(each))
        self._line += 1
        header = RECORD.match(line)
        if header is None:
            record = self._read_line(line[:LONGEST_ENTRY])
            return () if record is None else self._read(record)
        self._in_kmsg = True
        sequence = int(header[2])
        if sequence == self._completeness.expected:
            self._completeness.expected = sequence + 1  # what `follow` does, without a call for each line
        else:
            self._completeness.follow(sequence)
        if not is_relevant_record(header, line):
            return ()
        if header[4] == JOURNAL:
            self._completeness.raw_line(line)
        return self._read(read_kmsg(header, line))

    def _read_line(self, line: bytes) -> Record | None:
        if not is_relevant_line(line):
            return None
        if line[:1] in {b" ", b"\t"} and self._in_kmsg:
            return None  # about the record above
        self._in_kmsg = False
        line = line.rstrip(b"\r")
        record = read_entry(line) if line.startswith(b"{") else read_line(line, self._near)
        if JOURNAL in line:
            self._completeness.raw_line(line)
        return record

    def _read(self, record: Record) -> tuple[Event, ...]:
        if record.boot_id and record.boot_id != self._boot_id:
            self._begin_boot(record.boot_id)
        text, *further = record.text.split("\n")
        if text.startswith(PREFIX) and (marker := read_marker(text.rstrip())):
            phase = marker.phase.value
            return self._tell(
                Finding(Kind.MARKER, phase, printable(text), marker.pci_address, marker=marker), record
            )
        if not record.kernel:
            return ()
        moment = self._moment(record)
        if record.continues:
            return self._join(text, moment, last=True)
        events = self._tell(self._find(text, record, moment), record) + self._join(text, moment, last=False)
        for each in further if self._probes.names(record) else ():
            events += self._join(each.strip(), moment, last=True)
        return events

    def _find(self, text: str, record: Record, moment: Moment) -> Finding | None:
        """The finding that a line of the kernel is by itself; what only belongs to others is remembered."""
        self._completeness.kernel_line(text, moment)
        if text.startswith("NVRM: "):
            self._completeness.driver_line(moment)
            if text.startswith("NVRM: Xid ("):
                return self._first_lost(read_xid(text), record, moment)
            return self._find_of_driver(text, record, moment)
        if text.startswith("nvidia-nvswitch"):
            self._completeness.driver_line(moment)
            return self._find_of_switch(text, record, moment)
        if text.startswith(("infiniband ", "efa ", "ena ")):
            return read_network(text)
        if text.startswith("nvidia"):
            self._completeness.driver_line(moment)
        return nvidia.read_other(text)

    def _find_of_driver(self, text: str, record: Record, moment: Moment) -> Finding | None:
        if known := nvidia.read_uuid(text):
            if len(self._uuids) < MOST_DEVICES:
                self._uuids[known[0]] = known[1]
            return None
        if probed := read_name(text):
            pci, line = probed
            if line.gone:
                return self._first_lost(nvidia.lost(pci, text), record, moment)
            if line.verb in {None, "has"}:
                self._probes.name(pci, line, record, moment)
                self._completeness.unsaid(self._probes.given_up(moment))
            return None
        if finding := nvidia.read_fell_off(text):
            return self._first_lost(finding, record, moment)
        return nvidia.read_other(text)

    def _join(self, text: str, moment: Moment, *, last: bool) -> tuple[Event, ...]:
        """The event of a line that says what is wrong with a GPU that a line before named.

        `last`: it belongs to the line before, and so to the GPU that was named last.
        """
        line = read_rest(text)
        if line is None:
            return ()
        self._completeness.unsaid(self._probes.given_up(moment))
        named = self._probes.take(line, last=last)
        if named is not None:
            lost = nvidia.lost(named.pci, text)
            return self._tell(self._first_lost(lost, named.record, moment), named.record)
        if line.gone and not last and not self._lost.lately(moment):
            self._completeness.nameless(text)
        return ()

    def _first_lost(self, finding: Finding | None, record: Record, moment: Moment) -> Finding | None:
        """The finding, but for a GPU that was just told to have fallen off the bus."""
        if finding is None or finding.code != nvidia.LOST:
            return finding
        if self._is_told(record):
            return None
        if not self._lost.again(str(finding.pci), moment):
            return finding
        self._pass_over(record)
        return None

    def _find_of_switch(self, text: str, record: Record, moment: Moment) -> Finding | None:
        line = nvidia.read_sxid(text)
        if line is None or self._is_told(record):
            return None
        fault = (line.finding.pci, line.finding.code)
        again = self._switches.again((*fault, line.finding.link) if line.headline else fault, moment)
        if line.headline:
            self._switches.put(fault, moment)
        if again:
            self._pass_over(record)
            return None
        return line.finding

    def _tell(self, finding: Finding | None, record: Record) -> tuple[Event, ...]:
        if finding is None:
            return ()
        identity = self._identity(record)
        if (identity, record.microseconds) in self._told:
            return ()
        self._told.add((identity, record.microseconds))
        if record.sequence is not None and self._after is not None and record.sequence <= self._after:
            return ()
        pci = finding.pci
        return (
            Event(
                finding=finding,
                identity=identity,
                boot_id=self._boot_id,
                sequence=record.sequence,
                uptime=None if record.microseconds is None else record.microseconds / 1_000_000,
                time=record.time or self._wall_time(record),
                uuid=None if pci is None else self._uuids.get(pci),
            ),
        )

    def _begin_boot(self, boot_id: str) -> None:
        self._boot_id = boot_id
        self._uuids = dict(self._known)
        self._completeness.unsaid(self._probes.clear())
        self._lost.clear()
        self._switches.clear()
        self._completeness.begin_boot()

    def _moment(self, record: Record) -> Moment:
        if record.microseconds is not None:
            return Moment(self._line, "uptime", record.microseconds / 1_000_000)
        if record.time is not None:
            return Moment(self._line, "time", record.time.timestamp())
        return Moment(self._line, "", 0.0)

    def _wall_time(self, record: Record) -> datetime | None:
        if self._boot_time is None or record.microseconds is None:
            return None
        try:
            return (self._boot_time + timedelta(microseconds=record.microseconds)).astimezone(UTC)
        except (OverflowError, ValueError):
            return None

    def _identity(self, record: Record) -> str:
        if record.sequence is not None:
            return f"{self._boot_id}/{record.sequence}"
        when = record.moment if record.microseconds is None else str(record.microseconds)
        content = f"{when}\n{record.text}".encode("utf-8", "backslashreplace")
        return f"{self._boot_id}/{hashlib.sha256(content).hexdigest()[:20]}"

    def _is_told(self, record: Record) -> bool:
        return (self._identity(record), record.microseconds) in self._told

    def _pass_over(self, record: Record) -> None:
        """Take a record for told: it belongs to a fault that is."""
        self._told.add((self._identity(record), record.microseconds))


def parse(
    lines: Iterable[bytes | str] | bytes | str,
    *,
    boot_id: str = "",
    boot_time: datetime | None = None,
    near: datetime | None = None,
    uuids: Mapping[str, str] | None = None,
) -> Iterator[Event]:
    """The events of a whole log, oldest first. A `Parser` says as well whether the log is whole."""
    parser = Parser(boot_id=boot_id, boot_time=boot_time, near=near, uuids=uuids)
    for line in (lines,) if isinstance(lines, bytes | str) else lines:
        yield from parser.feed(line)
