"""GPUs that the driver names at probe, and of which its further lines say what is wrong.

    NVRM: The NVIDIA GPU 0000:b3:00.0
    NVRM: (PCI ID: 10de:26b9) installed in this system has
    NVRM: fallen off the bus and is not responding to commands.

Several GPUs are probed at once, and their lines mix. Only the first has an address, so that the others are
taken to come in the same order. Source of the shape: `nv-pci.c` of NVIDIA/open-gpu-kernel-modules 595.45.04.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpu_runbooks.activities.kernel_log.address import PATTERN, pci_address
from gpu_runbooks.activities.kernel_log.record import Record
from gpu_runbooks.activities.kernel_log.window import Moment

JOIN = 5.0
"""Seconds within which the lines about one GPU are logged."""

JOIN_LINES = 8
"""As many lines about anything else, where these have no times."""

MOST_NAMED = 64
"""GPUs that wait for their further lines. A node has no more than a few dozen."""

_NAMED = re.compile(rf"NVRM: The NVIDIA GPU ({PATTERN})(?![0-9A-Fa-f:.])", re.ASCII)
_INSTALLED = re.compile(r"installed in this (?:\w{1,20} ){0,3}?system(?: (\w{1,20}))?", re.ASCII)
_REST = re.compile(
    r"NVRM: (?:(?:\(PCI ID: [^)\n]{1,20}\) )?installed in this|(?:has )?fallen off the bus\b)", re.ASCII
)
_GONE = "fallen off the bus"


@dataclass(slots=True)
class Named:
    """A GPU that was named, and the record that names it."""

    pci: str
    record: Record
    moment: Moment
    has: bool = False
    """Whether a line of it says `has`, behind which another says what."""
    before: bool = False
    """Whether it was named before the window."""


@dataclass(frozen=True, slots=True)
class Line:
    """What a line says about a GPU that it may leave to another line to name."""

    verb: str | None
    """Word behind `installed in this system`: with any but `has` the GPU is there, and not supported."""
    installed: bool
    gone: bool


def read_name(text: str) -> tuple[str, Line] | None:
    """Address on the first of these lines, and what else it says."""
    found = _NAMED.match(text)
    pci = pci_address(found[1]) if found else None
    return (pci, _line(text)) if pci else None


def read_rest(text: str) -> Line | None:
    """One of the lines behind the first; None for any other."""
    return _line(text) if _REST.match(text) else None


def _line(text: str) -> Line:
    installed = _INSTALLED.search(text)
    return Line(installed[1] if installed else None, installed is not None, _GONE in text)


class Probes:
    """GPUs that were named and of which nothing more was said yet, oldest first."""

    def __init__(self) -> None:
        self._named: list[Named] = []

    def unsaid(self) -> Iterator[str]:
        """Addresses of those that were named within the window."""
        return (named.pci for named in self._named if not named.before)

    def begin_window(self) -> None:
        for named in self._named:
            named.before = True

    def name(self, pci: str, line: Line, record: Record, moment: Moment) -> None:
        self._pass_over_line()
        self._named.append(Named(pci, record, moment, has=line.verb == "has"))

    def names(self, record: Record) -> bool:
        """Whether the last GPU was named by this record, to which further lines may belong."""
        return bool(self._named) and self._named[-1].record is record

    def given_up(self, moment: Moment) -> list[str]:
        """Drop those that waited too long. Returns the addresses of those that count."""
        waits = [
            named.moment.near(moment, JOIN, lines=JOIN_LINES) and index < MOST_NAMED
            for index, named in enumerate(reversed(self._named))
        ][::-1]
        dropped = [
            named.pci
            for named, waiting in zip(self._named, waits, strict=True)
            if not (waiting or named.before)
        ]
        self._named = [named for named, waiting in zip(self._named, waits, strict=True) if waiting]
        return dropped

    def clear(self) -> list[str]:
        """Drop all. Returns the addresses of those that count."""
        dropped = list(self.unsaid())
        self._named.clear()
        return dropped

    def take(self, line: Line, *, last: bool) -> Named | None:
        """The GPU of which a line says that it is gone. `last`: the line belongs to the one named last."""
        named = self._which(line, last=last)
        self._pass_over_line()
        if named is None:
            return None
        if line.gone or line.verb not in {None, "has"}:
            self._named.remove(named)
            return named if line.gone else None
        named.has = named.has or line.verb == "has"
        return None

    def _pass_over_line(self) -> None:
        """A line about one of the GPUs does not stand between the lines about the others."""
        for named in self._named:
            named.moment = replace(named.moment, line=named.moment.line + 1)

    def _which(self, line: Line, *, last: bool) -> Named | None:
        if last:
            return self._named[-1] if self._named else None
        fitting = (named for named in self._named if named.has != line.installed)
        return next(fitting, self._named[0] if self._named else None)
