"""Whether a stretch of the log is whole: only of a whole one can be said that no fault is in it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_runbooks.activities.kernel_log.event import printable

NEXT_TO = 10.0
"""Seconds between a general note of suppressed lines and a driver's line for the one to concern the other."""

MOST_REASONS = 32

LONGEST_REASON = 160
"""Characters."""

_OF_A_DRIVER = re.compile(
    r"(?:_{0,2}(?:nv(?!me|dimm|mem|ram)\w{0,60}|uvm\w{0,60}|(?:rm|os|efa|ena)_\w{1,60}): "
    r"|NVRM: (?:\w{1,60}: )?|nvidia(?:-\w{1,40})?(?: [0-9a-f:.]{7,20})?: "
    r"|(?:infiniband|efa|ena) [\w:.-]{1,40}: )"
    r"[0-9]{1,10} callbacks suppressed",
    re.ASCII,
)
"""The kernel names the function whose lines it left out, a driver's own macro the driver or its device."""

_OF_ANYBODY = re.compile(
    r"(?:printk: .{0,80}\b(?:suppressed|dropped)\b"
    r"|(?:_{2,4}|printk_)ratelimit: [0-9]{1,10} \w{1,20} suppressed"
    r"|\*\* [0-9]{1,10} printk messages dropped)",
    re.ASCII,
)
_OF_A_READER = re.compile(
    rb"systemd-journald(?:\[[0-9]{1,10}\])?: "
    rb"((?:/dev/kmsg buffer overrun|Missed [0-9]{1,10} kernel messages)[^\n]{0,60})"
)


@dataclass(frozen=True, slots=True)
class Moment:
    """When a record was logged, as far as it says."""

    line: int
    """Count of lines read before it."""
    clock: str
    """Which clock the seconds are of; empty for none."""
    seconds: float

    def near(self, other: "Moment", limit: float, *, lines: int | None = None) -> bool:
        """Whether two records are at most so many seconds apart.

        Where no clock tells, they are if at most so many lines lie between; without a limit of lines always.
        """
        if self.clock and self.clock == other.clock:
            return abs(self.seconds - other.seconds) <= limit
        return lines is None or abs(self.line - other.line) <= lines


@dataclass(frozen=True, slots=True)
class Window:
    complete: bool
    """False: that no Xid was found does not mean that there was none."""
    reasons: tuple[str, ...]
    """What is missing, in words; at most `MOST_REASONS`."""


class Completeness:
    """Follows a log, and notes what it lacks."""

    def __init__(self) -> None:
        self.expected: int | None = None
        """Sequence of the next record, where none is missing."""
        self._driver_line: Moment | None = None
        self._note: tuple[Moment, str] | None = None
        self._reasons: dict[str, None] = {}

    def window(self, unsaid: Iterable[str] = ()) -> Window:
        """What was found, with the GPUs of which the log still has to say what is wrong, by address."""
        reasons = tuple(dict.fromkeys((*self._reasons, *map(_unsaid, unsaid))))[:MOST_REASONS]
        return Window(not reasons, reasons)

    def begin_window(self) -> None:
        """Forget what was missing. The sequence goes on."""
        self._reasons.clear()

    def begin_boot(self) -> None:
        self.expected = self._driver_line = self._note = None

    def follow(self, sequence: int) -> None:
        """A record of this number was read. A lower one is read again, by a reader that began anew."""
        expected = self.expected
        if sequence == expected:
            self.expected = sequence + 1
        elif expected is None or sequence > expected:
            if expected is not None:
                self._lack(f"records {expected} to {sequence - 1} are missing")
            self.expected = sequence + 1

    def driver_line(self, moment: Moment) -> None:
        """A line of the GPU's drivers was read, next to which a general note of suppressed lines counts."""
        self._driver_line = moment
        if self._note:
            noted, text = self._note
            self._note = None
            if moment.near(noted, NEXT_TO, lines=1):
                self._lack(text)

    def kernel_line(self, text: str, moment: Moment) -> None:
        """A line of the kernel was read that may be a note of suppressed lines."""
        if _OF_A_DRIVER.match(text):
            self._lack(text)
        elif _OF_ANYBODY.match(text):
            if self._driver_line and moment.near(self._driver_line, NEXT_TO, lines=1):
                self._lack(text)
            else:
                self._note = (moment, text)

    def raw_line(self, line: bytes) -> None:
        """A line was read in which the journal may say that it missed some of the kernel's."""
        if found := _OF_A_READER.search(line):
            self._lack(found[1].decode("ascii", "replace"))

    def unsaid(self, gpus: Iterable[str]) -> None:
        """GPUs, by address, were named as having something wrong, and the lines that say what are missing."""
        for gpu in gpus:
            self._lack(_unsaid(gpu))

    def nameless(self, text: str) -> None:
        """A line says that a GPU is gone, and the one that names the GPU is missing."""
        self._lack(f"the line before is missing that names the GPU: {text}")

    def _lack(self, reason: str) -> None:
        if len(self._reasons) < MOST_REASONS:
            self._reasons[printable(reason, LONGEST_REASON)] = None


def _unsaid(gpu: str) -> str:
    return f"lines are missing that say what was wrong with GPU {gpu} at probe"
