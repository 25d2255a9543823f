"""How long incidents waited for their slot, and how fast slots were granted, by the histories of both."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from gpu_runbooks.workflows.phases import Phase
from gpu_runbooks.workflows.search_attributes import RUNBOOK_PHASE

WAITING = json.dumps(Phase.WAITING_FOR_SLOT).encode()
"""As the phase stands in a history."""


@dataclass(frozen=True)
class SlotWait:
    """From the first request of an incident to its grant. One that still waits has no grant.

    An incident that opens with the phase `waiting-for-slot` is asked for by its intake from then on.
    """

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
        if asked is None:
            asked = moment if _asks(event) else None
        elif _is_grant(event):
            return SlotWait(asked, moment)
    return SlotWait(asked, None) if asked else None


def grants_per_second(waits: Sequence[SlotWait]) -> float:
    """Grants of all pools together, over the time from the first request to the last grant."""
    granted = [wait.granted for wait in waits if wait.granted]
    if not granted:
        return 0.0
    took = (max(granted) - min(wait.asked for wait in waits)).total_seconds()
    return len(granted) / took if took else 0.0


def _asks(event: HistoryEvent) -> bool:
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        shown = event.workflow_execution_started_event_attributes.search_attributes.indexed_fields
        return shown[RUNBOOK_PHASE.name].data == WAITING if RUNBOOK_PHASE.name in shown else False
    sent = event.signal_external_workflow_execution_initiated_event_attributes
    return sent.signal_name == "request_slot"


def _is_grant(event: HistoryEvent) -> bool:
    signalled = event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    return signalled and event.workflow_execution_signaled_event_attributes.signal_name == "slot_granted"
