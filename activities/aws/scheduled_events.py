"""Scheduled events of an EC2 instance: what AWS is going to do to it or to its host."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

INSTANCE_RETIREMENT = "instance-retirement"
INSTANCE_STOP = "instance-stop"
INSTANCE_REBOOT = "instance-reboot"
SYSTEM_REBOOT = "system-reboot"
SYSTEM_MAINTENANCE = "system-maintenance"

RETIRING = frozenset({INSTANCE_RETIREMENT, INSTANCE_STOP})
"""Event codes by which the instance leaves its host for good: it is stopped, or terminated. The others leave
the machine where it is, or bring it back."""

CODE_OF_HEALTH = {
    "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED": INSTANCE_RETIREMENT,
    "AWS_EC2_INSTANCE_RETIREMENT_EXPEDITED": INSTANCE_RETIREMENT,
    "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED": INSTANCE_RETIREMENT,
    "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_EXPEDITED": INSTANCE_RETIREMENT,
    "AWS_EC2_INSTANCE_TERMINATION_SCHEDULED": INSTANCE_RETIREMENT,
    "AWS_EC2_INSTANCE_STOP_SCHEDULED": INSTANCE_STOP,
    "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED": INSTANCE_REBOOT,
    "AWS_EC2_INSTANCE_REBOOT_FLEXIBLE_MAINTENANCE_SCHEDULED": INSTANCE_REBOOT,
    "AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED": SYSTEM_REBOOT,
    "AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED": SYSTEM_MAINTENANCE,
    "AWS_EC2_INSTANCE_POWER_MAINTENANCE_SCHEDULED": SYSTEM_MAINTENANCE,
    "AWS_EC2_PERSISTENT_INSTANCE_POWER_MAINTENANCE_SCHEDULED": SYSTEM_MAINTENANCE,
}
"""How AWS Health names what DescribeInstanceStatus has under EC2's own code. "Persistent" are instances with
their root on EBS. A code of Health that is not here has no such twin, and keeps its name."""

OVER = ("[completed]", "[canceled]", "[cancelled]")
"""How the description of an event begins that EC2 still lists for up to a week after its end."""

LONGEST_DESCRIPTION = 200


@dataclass(frozen=True)
class ScheduledEvent:
    """An event that is still to come, or under way."""

    code: str
    words: str

    @property
    def retires(self) -> bool:
        return self.code in RETIRING


def pending_events(events: Iterable[Mapping[str, Any]]) -> list[ScheduledEvent]:
    """Of the events in an answer of DescribeInstanceStatus those not over, what takes the machine first."""
    pending = []
    for event in events:
        code, description = str(event.get("Code", "")), str(event.get("Description", "")).strip()
        if not description.lower().startswith(OVER):
            words = f"{code}: {description[:LONGEST_DESCRIPTION]}{_when(event.get('NotBefore'))}"
            pending.append(ScheduledEvent(code=code, words=words))
    return sorted(pending, key=lambda event: not event.retires)


def _when(not_before: datetime | None) -> str:
    return f", not before {not_before.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if not_before else ""
