"""Which faults of an incident still stand, and from when each of them counts.

A fault counts from the end of its toleration, unless it is over before: so a condition that flaps while a
node reboots refutes nothing, and two that overlap never reset each other's clock. Only conditions can be
over: they say so themselves. What was logged once, such as an Xid, stands until it is repaired.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from pydantic import BaseModel

from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.activities.model.plan import FaultReport


class Pending(BaseModel):
    """A fault that is tolerated for now."""

    fault: Fault
    until: datetime


def counts_from(report: FaultReport) -> datetime:
    """End of the toleration of a fault."""
    return report.fault.first_seen + report.plan.treatment.toleration


def conditions_in(faults: Iterable[Fault]) -> tuple[str, ...]:
    """Types of the conditions that faults are about, to be asked for at the next look."""
    return tuple(dict.fromkeys(fault.code for fault in faults if fault.source is FaultSource.CONDITION))


def over_by_look(faults: Iterable[Fault], conditions: Mapping[str, str]) -> list[Fault]:
    """Faults whose condition is good by what the Node shows. One that is missing is not known to be good."""
    return [
        fault
        for fault in faults
        if fault.source is FaultSource.CONDITION
        and fault.good_status
        and conditions.get(fault.code) == fault.good_status
    ]


def over_by_word(faults: Iterable[Fault], condition: str, at: datetime) -> list[Fault]:
    """Faults of a condition that was good at this moment."""
    return [
        fault
        for fault in faults
        if fault.source is FaultSource.CONDITION and fault.code == condition and fault.first_seen <= at
    ]
