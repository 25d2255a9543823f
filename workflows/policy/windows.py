"""Maintenance windows of a pool, as a person writes them."""

import re
from datetime import time, timedelta
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal
from zoneinfo import available_timezones

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator

from gpu_runbooks.activities.model.plan import MaintenanceWindow
from gpu_runbooks.workflows.policy.fields import Duration, Written

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

BEGINS = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", re.ASCII)

OF_THE_MACHINE = {"localtime", "Factory"}
"""No place's: what they are differs from machine to machine."""

MOST_SLIPS = 3
"""Letters too many or too few in the name of a time zone that is still guessed."""

SHORTEST, LONGEST = timedelta(minutes=1), timedelta(hours=24)


def _time_of_day(value: Any) -> time:
    parts = BEGINS.fullmatch(value) if isinstance(value, str) else None
    if parts is None:
        midnight = ": midnight is 00:00 of the day that begins" if str(value).startswith("24") else ""
        raise ValueError(f'write a time from 00:00 to 23:59, such as "22:00"; not {value!r}{midnight}')
    return time(int(parts[1]), int(parts[2]))


def _time_zone(value: str) -> str:
    if not _zones():
        raise ValueError("this machine has no time zones to look it up in: install its package tzdata")
    if value in _zones().values():
        return value
    likely = _likely(value.lower().replace(" ", "_"))
    guess = f"did you mean {likely}? " if likely else ""
    raise ValueError(f"no time zone has this name: {guess}Write an IANA name, such as Europe/Stockholm")


def _likely(written: str) -> str | None:
    """The time zone that was probably meant: of a city alone, in small letters, or with a slip in it."""
    zones = _zones()
    city = written.rpartition("/")[2]
    # A whole comparison with each of 600 names, for each window of a large file, would take a minute.
    near = [
        zone
        for zone in zones
        if zone.rpartition("/")[2][:1] == city[:1] and abs(len(zone) - len(written)) <= MOST_SLIPS
    ]
    same_city = (zone for zone in zones if zone.rpartition("/")[2] == city)
    found = written if written in zones else next(same_city, None)
    close = get_close_matches(written, near, n=1)
    return zones[found or close[0]] if found or close else None


@cache
def _zones() -> dict[str, str]:
    """Names of all time zones by their spelling in small letters."""
    return {zone.lower(): zone for zone in sorted(available_timezones() - OF_THE_MACHINE)}


class Window(Written):
    """When a pool may be disrupted, every week."""

    days: Annotated[tuple[Day, ...], Field(min_length=1)] = DAYS
    """Days on which it begins: mon, tue, wed, thu, fri, sat, sun."""
    begins: Annotated[
        time,
        BeforeValidator(_time_of_day),
        WithJsonSchema({"type": "string", "pattern": f"^{BEGINS.pattern}$"}),
    ]
    """Time at which it begins, such as "22:00"."""
    lasts: Duration
    """How long it lasts, at most 24h: it may end on the next day."""
    timezone: Annotated[str, Field(min_length=1)] = "UTC"
    """IANA name of the time zone, such as Europe/Stockholm."""

    @field_validator("days")
    @classmethod
    def _each_once(cls, value: tuple[Day, ...]) -> tuple[Day, ...]:
        twice = next((day for index, day in enumerate(value) if day in value[:index]), None)
        if twice is not None:
            raise ValueError(f"{twice} stands twice: keep one")
        return value

    @field_validator("lasts")
    @classmethod
    def _opens(cls, value: timedelta) -> timedelta:
        if not SHORTEST <= value <= LONGEST:
            raise ValueError(
                "write a time of at least 1m and at most 24h; a longer one is a window of each day"
            )
        return value

    @field_validator("timezone")
    @classmethod
    def _known(cls, value: str) -> str:
        return _time_zone(value)

    def wire(self) -> MaintenanceWindow:
        return MaintenanceWindow(
            days=tuple(sorted(map(DAYS.index, self.days))),
            begins=self.begins,
            lasts=self.lasts,
            timezone=self.timezone,
        )
