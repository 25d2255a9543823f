"""What an incident asks of its pool's budget, and whether that is the first thing that it does. Pure."""

from datetime import datetime

from gpu_runbooks.activities.model.slot import PoolRules, SlotRequest
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder import next_step
from gpu_runbooks.workflows.ladder_steps import HoldSlot
from gpu_runbooks.workflows.severity import severity


def opens_waiting(incident: Incident, now: datetime) -> bool:
    """Whether an incident that opens now begins by asking for its slot.

    Then the intake asks for it, which spares the incident a message and a task of its workflow: in a burst
    those of all incidents come before the first block.
    """
    return isinstance(next_step(incident, now), HoldSlot)


def slot_request(incident: Incident) -> SlotRequest:
    """What the budget is to know of an incident."""
    return SlotRequest(
        incident=incident.workflow_id,
        run_id=incident.run_id,
        node=incident.plan.identity.name,
        severity=severity(incident.plan.treatment),
        since=incident.opened,
        turn=incident.slot_turn,
        rules=PoolRules(
            budget=incident.plan.budget, selector=incident.plan.pool_selector, storm=incident.plan.storm
        ),
    )
