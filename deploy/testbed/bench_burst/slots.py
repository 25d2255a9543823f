"""How long incidents waited for their slot, and how fast slots were granted, by the histories of both."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent


@dataclass(frozen=True)
class SlotWait:
    """From the first request of an incident to its grant. One that still waits has no grant."""

    asked: datetime
    granted: datetime | None

    @property
    def seconds(self) -> float | None:
        return (self.granted - self.asked).total_seconds() if self.granted else None


def slot_wait(events: Iterable[HistoryEvent]) -> SlotWait | None:
    """The wait of one incident; None where it never asked."""
    asked: datetime | None = None
    for event in events:
        moment = event.event_time.ToDatetime(UTC)
        if event.event_type == EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED:
            sent = event.signal_external_workflow_execution_initiated_event_attributes
            if sent.signal_name == "request_slot" and asked is None:
                asked = moment
        elif asked is not None and _is_grant(event):
            return SlotWait(asked, moment)
    return SlotWait(asked, None) if asked else None


def grants_per_second(waits: Sequence[SlotWait]) -> float:
    """Grants of all pools together, over the time from the first request to the last grant."""
    granted = [wait.granted for wait in waits if wait.granted]
    if not granted:
        return 0.0
    took = (max(granted) - min(wait.asked for wait in waits)).total_seconds()
    return len(granted) / took if took else 0.0


def _is_grant(event: HistoryEvent) -> bool:
    signalled = event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    return signalled and event.workflow_execution_signaled_event_attributes.signal_name == "slot_granted"
