"""When a pool may be disrupted: the maintenance windows and change freezes of the policy. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from gpu_runbooks.activities.model.plan import ChangeFreeze, MaintenanceWindow

A_WEEK = range(-1, 8)
"""Days from today on which a window can begin that is open now, or opens next."""


def next_open(windows: Sequence[MaintenanceWindow], now: datetime) -> datetime:
    """`now` where a window is open, or where there are none; else when the next one opens.

    A window begins by the clock of its time zone, and lasts as long as it says also when that clock is put
    forward or back meanwhile.
    """
    if not windows:
        return now
    return max(now, min(_opens(window, now) for window in windows))


def next_permitted(
    windows: Sequence[MaintenanceWindow], freezes: Sequence[ChangeFreeze], now: datetime
) -> datetime:
    """`now` where a window is open and no freeze is on; else the next moment at which both is so."""
    moment = next_open(windows, now)
    while frozen := [each.ends for each in freezes if each.begins <= moment < each.ends]:
        moment = next_open(windows, max(frozen))
    return moment


def _opens(window: MaintenanceWindow, now: datetime) -> datetime:
    """When the window opens next; a moment that is not after `now` where it is open."""
    zone = ZoneInfo(window.timezone)
    today = now.astimezone(zone).date()
    days = (today + timedelta(days=each) for each in A_WEEK)
    begins = [
        datetime.combine(day, window.begins, tzinfo=zone).astimezone(UTC)
        for day in days
        if day.weekday() in window.days
    ]
    return min(each for each in begins if each + window.lasts > now)
