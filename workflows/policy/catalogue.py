"""NVIDIA's Xids and the first rung that we recommend for each, from `xids.csv` beside this file.

Sources of codes, names and meanings: NV-XLSX is NVIDIA's Xid catalogue workbook of October 2025 (codes 1 to
172), OGKM-595 the header `nverror.h` of NVIDIA/open-gpu-kernel-modules 595.45.04. Severity and first rung
are our judgement, made from the workbook's resolution buckets, gpud, NVSentinel, the EKS node monitoring
agent and the EKS guide; the column `source` says where they disagree. A site's policy overrides any entry.
"""

import csv
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

TABLE = Path(__file__).with_name("xids.csv")


class FirstRung(StrEnum):
    """Where the repair of a fault begins."""

    NONE = "none"
    """Nothing to do on the node: the application is at fault, or it is a notice."""
    BLOCK = "block"
    """Keep work away and call a person."""
    DRAIN_THEN_RESET = "drain_then_reset"
    DRAIN_THEN_REBOOT = "drain_then_reboot"
    REPLACE = "replace"


class Xid(BaseModel):
    """One line of the catalogue."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: int
    name: str
    """Name in the driver's header."""
    meaning: str
    origin: Literal["app", "driver", "hardware", "memory", "nvlink", "thermal"]
    severity: Literal["info", "warn", "fatal"]
    first_rung: FirstRung
    source: str


class UnreadableXidError(ValueError):
    """The value is not one Xid: `Xid79`, `79,94`, `-1`."""


LONGEST_CODE = 6
"""Digits. The code becomes part of a taint, which holds 63 characters."""


def parse_code(value: object) -> int:
    """Xid in any spelling that exporters use: 79, 79.0, "79", " 79", "79.0". 0 means that there was none.

    Raises `UnreadableXidError` for all else. Of several codes in one value none is picked: each is a fault
    of its own, and guessing which one counts would hide the others.
    """
    text = "" if isinstance(value, bool) else str(value).strip()
    whole, _, fraction = text.partition(".")
    if not (whole.isascii() and whole.isdecimal() and len(whole) <= LONGEST_CODE) or fraction.strip("0"):
        raise UnreadableXidError(f"{value!r} is not an Xid: write one whole number, such as 79")
    return int(whole)


def find(code: object) -> Xid | None:
    """Entry of the catalogue, None for a code that it does not have.

    Raises `UnreadableXidError` for what is not an Xid.
    """
    return _xids().get(parse_code(code))


def first_rung(code: object) -> FirstRung:
    """First rung for an Xid, as `parse_code` reads it. Code 0 is no fault.

    A code that the catalogue does not have gets `block`: nothing destructive is done on a guess.
    Raises `UnreadableXidError` for what is not an Xid.
    """
    number = parse_code(code)
    if number == 0:
        return FirstRung.NONE
    entry = _xids().get(number)
    return entry.first_rung if entry else FirstRung.BLOCK


def read_table(text: str) -> dict[int, Xid]:
    """Parse the catalogue.

    Raises `ValueError` (pydantic's included) for a code that is listed twice, an unknown column or value.
    """
    rows = TypeAdapter(list[Xid]).validate_python(list(csv.DictReader(text.splitlines(), strict=True)))
    xids: dict[int, Xid] = {}
    for row in rows:
        if row.code in xids:
            raise ValueError(f"Xid {row.code} is listed twice, as {xids[row.code].name} and {row.name}")
        xids[row.code] = row
    return xids


@cache
def _xids() -> dict[int, Xid]:
    return read_table(TABLE.read_text(encoding="utf-8"))
