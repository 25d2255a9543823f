"""Rows of the tables of what is known of faults: CSV files beside this one, read and checked in one way.

Each row names its sources. A row that is there twice, or says one thing in one column and another in the
next, makes the whole table unusable: nobody could say which of them counts.
"""

import csv
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

FOLDER = Path(__file__).parent


class FirstRung(StrEnum):
    """Where the repair of a fault begins, mildest first."""

    NONE = "none"
    """Nothing to do on the node: the application is at fault, or it is a notice."""
    BLOCK = "block"
    """Keep work away and call a person."""
    DRAIN = "drain"
    """End the work on it and see whether it passes its test."""
    DRAIN_THEN_RESET = "drain_then_reset"
    DRAIN_THEN_REBOOT = "drain_then_reboot"
    REPLACE = "replace"


HARMLESS = frozenset({FirstRung.NONE})
REPAIRING = frozenset({FirstRung.DRAIN_THEN_RESET, FirstRung.DRAIN_THEN_REBOOT, FirstRung.REPLACE})


class Row(BaseModel):
    """What all tables have. An unknown column or value is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first_rung: FirstRung
    source: Annotated[str, Field(min_length=1)]
    """Where it is from, and who has another opinion."""

    def contradiction(self) -> str | None:
        """What the row says against itself; None where it says one thing."""
        return None


class Entry(Row):
    """A row of a table of codes."""

    code: Annotated[str, Field(min_length=1)]
    group: str
    """Which of its source's classes the code belongs to."""
    meaning: Annotated[str, Field(min_length=1)]


RowT = TypeVar("RowT", bound=Row)
KeyT = TypeVar("KeyT")


def read_rows(text: str, kind: type[RowT], key: Callable[[RowT], KeyT]) -> dict[KeyT, RowT]:
    """Parse a table; `key` tells its rows apart.

    Raises `ValueError` (pydantic's included) for an unknown column or value, a row that is there twice, and
    one that contradicts itself.
    """
    rows: dict[KeyT, RowT] = {}
    for written in csv.DictReader(text.splitlines(), strict=True):
        row = kind.model_validate(written)
        if key(row) in rows:
            raise ValueError(f"{key(row)} is listed twice")
        if problem := row.contradiction():
            raise ValueError(f"{key(row)} contradicts itself: {problem}")
        rows[key(row)] = row
    return rows


def load(name: str, kind: type[RowT], key: Callable[[RowT], KeyT]) -> dict[KeyT, RowT]:
    """Read the table of this name, as `read_rows`."""
    return read_rows((FOLDER / f"{name}.csv").read_text(encoding="utf-8"), kind, key)


def outside(row: Entry, permitted: Mapping[str, frozenset[FirstRung]]) -> str | None:
    """What is wrong with the group of a row, or with its first rung for that group."""
    if row.group not in permitted:
        return f"no group is named {row.group!r}: there are {', '.join(permitted)}"
    if row.first_rung not in permitted[row.group]:
        return f"{row.group}, and first rung {row.first_rung}"
    return None
