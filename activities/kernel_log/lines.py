"""Lines of text: `dmesg` in its forms, syslog in its forms, `journalctl` as text.

    [  123.456789] NVRM: ...                                   dmesg; -T and other clocks in the brackets
    kern  :err   : [  123.456789] NVRM: ...                    dmesg -x
    <3>[  123.456789] NVRM: ...                                dmesg -r
    2026-03-01T10:00:00,211323+00:00 NVRM: ...                 dmesg --time-format iso
    Mar  1 10:00:00 gpu-a1 kernel: [  123.456789] NVRM: ...    syslog, with or without the brackets
    2026-03-01T10:00:00.211323+00:00 gpu-a1 kernel: NVRM: ...  rsyslog's own form
    <3>1 2026-03-01T10:00:00.211Z gpu-a1 kernel - - - NVRM: ...  RFC 5424

Where a form names the writer, only `kernel` without a process id is the kernel: `logger -t NVRM` is not.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_runbooks.activities.kernel_log.kmsg import is_kernel
from gpu_runbooks.activities.kernel_log.marker import WRITER
from gpu_runbooks.activities.kernel_log.record import LONGEST_MESSAGE, Record, of_epoch, utc

_PRIORITY = re.compile(r"<([0-9]{1,10})>", re.ASCII)
_FACILITY = re.compile(r"([a-z0-9]{2,10}) *:([a-z]{3,7}) *: ?", re.ASCII)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)}) +(?P<day>[0-9]{{1,2}})"
_CLOCK = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?:[.,](?P<part>[0-9]{1,9}))?"
_ISO = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"
_ZONE = r"(?:Z|[+-][0-9]{2}:?[0-9]{2})"

_BY_MONTH = re.compile(rf"{_MONTH} {_CLOCK} ", re.ASCII)
_BY_ISO = re.compile(rf"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?({_ISO}) ?({_ZONE}|UTC)? ", re.ASCII)
_BY_EPOCH = re.compile(r"([0-9]{9,11})\.([0-9]{6}) ", re.ASCII)
_RFC5424 = re.compile(
    rf"1 (-|{_ISO}{_ZONE}) \S{{1,255}} (\S{{1,48}}) (\S{{1,128}}) \S{{1,32}} "
    r"(?:-|(?:\[(?:[^\]\\]|\\.){0,1024}\]){1,8}) ?\ufeff?",
    re.ASCII,
)
_WRITER = re.compile(
    r"(?:[^\s:\[]\S{0,253}[^\s:\]] |[^\s:\[] )?(?:([a-z0-9]{2,10})\.[a-z]{3,7} )?"
    r"([A-Za-z0-9_./-]{1,48})(\[[0-9]{1,10}\])?: ?",
    re.ASCII,
)
_BRACKETS = re.compile(r"\[ {0,12}([^\]]{1,40})\]", re.ASCII)
_CALLER = re.compile(r" {0,4}\[ {0,12}[TC][0-9]{1,10}\]", re.ASCII)
_UPTIME = re.compile(r"([0-9]{1,12})\.([0-9]{1,9})(?: <[^>]{0,20}>)?$", re.ASCII)
_OTHER_CLOCK = re.compile(
    r"(?:\.\.\.|[+<]? *[0-9]{1,12}\.[0-9]{1,9}>?|[A-Z][a-z]{2} ?[0-9]{1,2} [0-9]{2}:[0-9]{2})$"
)
_CTIME = re.compile(rf"[A-Z][a-z]{{2}} {_MONTH} {_CLOCK} (?P<year>[0-9]{{4}})$", re.ASCII)


@dataclass(slots=True)
class _Line:
    """A line, of which more and more is read from the left."""

    rest: str
    kernel: bool = True
    microseconds: int | None = None
    time: datetime | None = None
    moment: str = ""
    dated: bool = False
    """Whether it has a stamp, so that a name of the writer may stand behind."""

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.rest)
        if found:
            self.rest = self.rest[found.end() :]
        return found


def read_line(line: bytes, near: datetime | None) -> Record | None:
    """The record of a line of text; None where a form that names its writer names neither the kernel nor us.

    `near` is a moment shortly after the record, in the log's zone: syslog names neither year nor zone.
    """
    text = line[:LONGEST_MESSAGE].decode("utf-8", "replace")
    if text[:1] in {" ", "\t"}:
        return Record(text=text.lstrip(" \t"), kernel=True, continues=True)
    rest = _Line(text)
    _read_facility(rest)
    if found := rest.take(_RFC5424):
        if found[2] not in {"kernel", WRITER}:
            return None
        rest.moment, rest.time = found[1], _iso(found[1], near)
        if found[2] == WRITER or found[3] != "-":
            rest.kernel = False
        if found[2] == WRITER:
            return _record(rest, f"{WRITER}: {rest.rest}")
        _read_brackets(rest, near)
        return _record(rest, rest.rest)
    named = _read_stamp(rest, near)
    _read_brackets(rest, near)
    writer = _WRITER.match(rest.rest) if rest.dated or rest.rest.startswith("kernel: ") else None
    if writer and writer[2] == "kernel":
        rest.kernel = rest.kernel and writer[1] in {None, "kern"} and writer[3] is None
        rest.rest = rest.rest[writer.end() :]
        _read_brackets(rest, near)
    elif writer and writer[2] == WRITER:
        rest.kernel = False
        return _record(rest, f"{WRITER}: {rest.rest[writer.end() :]}")
    elif named:
        return None
    return _record(rest, rest.rest)


def _record(line: _Line, text: str) -> Record:
    return Record(text, line.kernel, None, line.microseconds, line.time, line.moment)


def _read_facility(line: _Line) -> None:
    if found := line.take(_PRIORITY):
        line.kernel = is_kernel(int(found[1]))
    elif found := line.take(_FACILITY):
        line.kernel = found[1] == "kern"


def _read_stamp(line: _Line, near: datetime | None) -> bool:
    """Read a date before the text. Returns whether its form always names the writer."""
    if found := line.take(_BY_MONTH):
        line.time = _without_year(found, near)
    elif found := line.take(_BY_EPOCH):
        line.time = of_epoch(int(found[1] + found[2]))
    elif found := line.take(_BY_ISO):
        line.time = _iso(found[1] + (found[2] or "").replace("UTC", "Z"), near)
        line.moment, line.dated = found[0], True
        # dmesg writes such a date with a comma, and no writer.
        return not line.rest.startswith(("NVRM:", "nvidia", "[")) and "," not in found[1]
    else:
        return False
    line.moment, line.dated = found[0], True
    return True


def _read_brackets(line: _Line, near: datetime | None) -> None:
    found = _BRACKETS.match(line.rest)
    if found is None:
        return
    inside = found[1].rstrip()
    if uptime := _UPTIME.match(inside):
        line.microseconds = int(uptime[1]) * 1_000_000 + int(uptime[2][:6].ljust(6, "0"))
    elif date := _CTIME.match(inside):
        line.time, line.moment = _of_parts(date, int(date["year"]), near), inside
    elif _OTHER_CLOCK.match(inside):
        line.moment = inside
    else:
        return
    line.rest, line.dated = line.rest[found.end() :], True
    line.take(_CALLER)
    line.rest = line.rest.removeprefix(" ")


def _iso(text: str, near: datetime | None) -> datetime | None:
    try:
        return utc(datetime.fromisoformat(text), near)
    except ValueError:
        return None


def _without_year(date: re.Match[str], near: datetime | None) -> datetime | None:
    """The newest such date that is not after `near`, but for a day's difference of clocks and zones."""
    if near is None:
        return None
    for year in (near.year, near.year - 1):
        moment = _of_parts(date, year, near)
        limit = utc(near, near)
        if moment and limit and moment - limit <= timedelta(days=1):
            return moment
    return None


def _of_parts(date: re.Match[str], year: int, near: datetime | None) -> datetime | None:
    try:
        moment = datetime(  # noqa: DTZ001 - the log does not say in which zone: `utc` takes that of `near`
            year,
            _MONTHS.index(date["month"]) + 1,
            int(date["day"]),
            int(date["hour"]),
            int(date["minute"]),
            int(date["second"]),
            int((date["part"] or "0")[:6].ljust(6, "0")),
        )
    except ValueError:
        return None
    return utc(moment, near)
