"""NVIDIA's Xids and the first rung that we recommend for each, from `xids.csv` beside this file.

Sources of codes, names and meanings: NV-XLSX is NVIDIA's Xid catalogue workbook of October 2025 (codes 1 to
172), OGKM-595 the header `nverror.h` of NVIDIA/open-gpu-kernel-modules 595.45.04. Severity and first rung
are our judgement; four columns have what others do, empty where a source does not know the code:

    nvidia      the workbook's bucket for immediate action
    eks_agent   whether aws/eks-node-monitoring-agent@51af549 lets the code set its condition
    gpud        first action and event class of leptonai/gpud, August 2026
    nvsentinel  action of NVIDIA/NVSentinel, August 2026

A site's policy overrides any entry.
"""

from functools import cache
from typing import Literal

from gpu_runbooks.workflows.policy.rows import (
    HARMLESS,
    REPAIRING,
    FirstRung,
    Row,
    load,
    read_rows,
)

NVLINK5 = frozenset(range(144, 151))
"""Xids of which the driver writes into the line whether the one at hand is fatal."""


class Xid(Row):
    """One line of the catalogue."""

    code: int
    name: str
    """Name in the driver's header."""
    meaning: str
    origin: Literal["app", "driver", "hardware", "memory", "nvlink", "thermal"]
    severity: Literal["info", "warn", "fatal"]
    nvidia: str = ""
    eks_agent: Literal["", "event", "fatal"] = ""
    gpud: str = ""
    nvsentinel: str = ""

    def contradiction(self) -> str | None:
        """What the row says against itself: severity, origin and first rung must fit each other."""
        if self.severity == "fatal" and self.first_rung not in REPAIRING:
            return f"fatal, and first rung {self.first_rung}"
        if (self.severity == "info" or self.origin == "app") and self.first_rung not in HARMLESS:
            what = "the application's" if self.origin == "app" else "for information"
            return f"{what}, and first rung {self.first_rung}"
        if self.severity == "warn" and self.first_rung in REPAIRING - {FirstRung.DRAIN_THEN_RESET}:
            return f"a warning, and first rung {self.first_rung}"
        return None


class UnreadableXidError(ValueError):
    """The value is not one Xid: `Xid79`, `79,94`, `-1`."""


LONGEST_CODE = 6
"""Digits. The code becomes part of a taint, which holds 63 characters."""


def parse_code(value: object, what: str = "an Xid") -> int:
    """Xid in any spelling that exporters use: 79, 79.0, "79", " 79", "79.0". 0 means that there was none.

    SXids and DCGM's codes are read in the same way; `what` names them in the error. Raises
    `UnreadableXidError` for all else. Of several codes in one value none is picked: each is a fault of its
    own, and guessing which one counts would hide the others.
    """
    text = "" if isinstance(value, bool) else str(value).strip()
    whole, _, fraction = text.partition(".")
    if not (whole.isascii() and whole.isdecimal() and len(whole) <= LONGEST_CODE) or fraction.strip("0"):
        raise UnreadableXidError(f"{value!r} is not {what}: write one whole number, such as 79")
    return int(whole)


def find(code: object) -> Xid | None:
    """Entry of the catalogue, None for a code that it does not have.

    Raises `UnreadableXidError` for what is not an Xid.
    """
    return _xids().get(parse_code(code))


def first_rung(code: object, grade: str = "") -> FirstRung:
    """First rung for an Xid, as `parse_code` reads it. Code 0 is no fault.

    `grade` is the word of the line, `fatal` or `nonfatal`: it decides about NVLink's Xids 144 to 150.
    A code that the catalogue does not have gets `block`: nothing destructive is done on a guess.
    Raises `UnreadableXidError` for what is not an Xid.
    """
    number = parse_code(code)
    if number == 0:
        return FirstRung.NONE
    if number in NVLINK5 and grade:
        return FirstRung.DRAIN_THEN_RESET if grade == "fatal" else FirstRung.NONE
    entry = _xids().get(number)
    return entry.first_rung if entry else FirstRung.BLOCK


def is_applications(code: object) -> bool:
    """Whether an Xid is one that user code causes. Raises `UnreadableXidError` for what is not an Xid."""
    entry = find(code)
    return entry is not None and entry.origin == "app"


def read_table(text: str) -> dict[int, Xid]:
    """Parse the catalogue, as `read_rows`."""
    return read_rows(text, Xid, lambda row: row.code)


def xids() -> dict[int, Xid]:
    """The whole catalogue by code."""
    return dict(_xids())


@cache
def _xids() -> dict[int, Xid]:
    return load("xids", Xid, lambda row: row.code)
