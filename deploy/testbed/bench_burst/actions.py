"""What a workflow costs: events of its history, and the actions that Temporal Cloud bills for it.

Billed actions: https://docs.temporal.io/cloud/actions. Not in a history, so not counted: queries, heartbeats
of activities, and updates that were rejected.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

ACTIONS: dict[int, int] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: 1,
    EventType.EVENT_TYPE_TIMER_STARTED: 1,
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: 1,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: 1,
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: 1,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: 1,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED: 1,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: 2,
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: 1,
}
"""By type of event. A signal counts with who sends it from a workflow, and with who receives it: what an
incident is billed for is both, since a budget's answer exists for the incident's sake."""


@dataclass(frozen=True)
class Cost:
    events: int = 0
    actions: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.events + other.events, self.actions + other.actions)


def cost_of(events: Iterable[HistoryEvent]) -> Cost:
    """Cost of one run, by its history."""
    total = Cost()
    for event in events:
        actions = ACTIONS.get(event.event_type, 0)
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            actions = event.activity_task_started_event_attributes.attempt - 1  # each retry is one more
        total += Cost(1, actions)
    return total
