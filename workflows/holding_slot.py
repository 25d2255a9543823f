"""The steps around the slot: ask the pool's budget for it, and give it back."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

from gpu_runbooks.activities.contracts import TemporalActivities
from gpu_runbooks.activities.model.slot import EnsureBudget, SlotRequest
from gpu_runbooks.activities.names import budget_id
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder import next_step
from gpu_runbooks.workflows.ladder_steps import HoldSlot
from gpu_runbooks.workflows.options import TEMPORAL
from gpu_runbooks.workflows.phases import Phase
from gpu_runbooks.workflows.recording import enter, show
from gpu_runbooks.workflows.slot_request import slot_request
from gpu_runbooks.workflows.waits import wait_for

ASK_AGAIN = timedelta(minutes=5)
"""A slot request is sent again so often: the budget may have been restarted since."""

INTAKE_ASKS = timedelta(seconds=30)
"""How long to wait for a slot that the intake asks for: its request may never have been sent."""


async def hold_slot(incident: Incident) -> None:
    """Ask the pool's budget and wait for a while. The next step asks again: either side may be away."""
    phase = Phase.STOPPED if incident.stopped else Phase.WAITING_FOR_SLOT
    if incident.phase is not phase:
        incident.remind_at = workflow.now() + incident.plan.operator_reminder
    enter(incident, phase)
    _remind(incident)
    asked, incident.slot_asked = incident.slot_asked, False
    if not asked:
        await _request_slot(incident)
    await wait_for(
        lambda: not isinstance(next_step(incident, workflow.now()), HoldSlot),
        INTAKE_ASKS if asked else ASK_AGAIN,
        f"slot of pool {incident.plan.pool}",
    )


async def _request_slot(incident: Incident) -> None:
    pool, request = incident.plan.pool, slot_request(incident)
    incident.slot_wanted = True
    try:
        await _tell_budget(incident, "request_slot", request)
    except (ApplicationError, FailureError):
        await workflow.execute_activity_method(
            TemporalActivities.ensure_budget,
            EnsureBudget(cluster=incident.cluster, pool=pool, request=request),
            summary=f"start the budget of pool {pool} and ask it for a slot",
            **TEMPORAL,
        )


def _remind(incident: Incident) -> None:
    """Say from time to time that nobody granted it: some budgets, such as 10 % of 5 nodes, never can."""
    now = workflow.now()
    if incident.remind_at is None or now < incident.remind_at:
        return
    incident.remind_at = now + incident.plan.operator_reminder
    budget = budget_id(incident.cluster, incident.plan.pool)
    text = f"still without a slot of pool {incident.plan.pool}: the query state of {budget} says why"
    incident.note(now, text)
    workflow.logger.warning("node %s is %s", incident.target.name, text)
    show(incident)


async def withdraw(incident: Incident) -> None:
    """Withdraw a request that was not granted: something else comes first now."""
    if incident.slot_wanted and not incident.slot_held:
        await return_slot(incident)


async def return_slot(incident: Incident) -> None:
    """Return the slot, or withdraw the request. A budget that is gone has none to return."""
    if not incident.slot_wanted:
        return
    incident.slot_wanted = incident.slot_held = incident.slot_asked = False
    incident.slot_turn += 1
    incident.stopped = ""
    await refuse_slot(incident)


async def refuse_slot(incident: Incident) -> None:
    """Tell the budget that this incident has no use for a slot."""
    try:
        await _tell_budget(incident, "return_slot", slot_request(incident))
    except (ApplicationError, FailureError) as error:
        workflow.logger.warning("slot not returned, the budget will find it: %s", error)


async def _tell_budget(incident: Incident, signal: str, request: SlotRequest) -> None:
    """Signal the budget, out of reach of a cancellation: the SDK loses one that meets a signal on its way."""
    budget = workflow.get_external_workflow_handle(budget_id(incident.cluster, incident.plan.pool))
    await asyncio.shield(asyncio.create_task(budget.signal(signal, request)))
