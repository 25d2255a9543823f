"""One record of the kernel log: its text, and what the log says about it."""

from datetime import UTC, datetime
from typing import NamedTuple

LONGEST_MESSAGE = 2048
"""Bytes of a record's text. The kernel's own limit is about one KiB."""


class Record(NamedTuple):
    text: str
    kernel: bool
    """Whether the kernel itself wrote it, as far as the log tells. Anybody may write the others."""
    sequence: int | None = None
    microseconds: int | None = None
    """Since the boot."""
    time: datetime | None = None
    """In UTC."""
    moment: str = ""
    """The log's own words for when, where it has neither sequence nor uptime."""
    boot_id: str = ""
    continues: bool = False
    """Whether it is a later line of the record before."""


def utc(moment: datetime, like: datetime | None) -> datetime | None:
    """The moment in UTC. One without zone has that of `like`; None for what no calendar can hold."""
    try:
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=like.tzinfo if like and like.tzinfo else UTC)
        return moment.astimezone(UTC)
    except (OverflowError, ValueError):
        return None


def of_epoch(microseconds: int) -> datetime | None:
    """Moment of so many microseconds since 1970."""
    try:
        return datetime.fromtimestamp(microseconds / 1_000_000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
