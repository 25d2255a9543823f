"""Telling the guard of the fleet what is wrong with this node: it knows when many nodes have the same."""

import asyncio
from collections.abc import Iterator

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

from gpu_runbooks.activities.contracts import TemporalActivities
from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.activities.model.fleet import EnsureGuard, FaultSeen
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.names import fleet_id
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.options import TEMPORAL
from gpu_runbooks.workflows.traits import fault_traits, signature

MOST_TOLD = 30
"""Signatures that one incident tells: by then its node alone says nothing new about the fleet."""


async def tell_guard(incident: Incident) -> None:
    """Tell each signature of this node once, before anything is asked of the budget.

    What is tolerated, only notified or only observed counts as well: a detector that errs makes all of these.
    """
    for fault, told in list(_untold(incident)):
        incident.told = [*incident.told, told]
        seen = FaultSeen(
            incident=incident.workflow_id,
            run_id=incident.run_id,
            node=incident.plan.identity.name,
            pool=incident.plan.pool,
            signature=signature(fault),
            traits={**incident.plan.traits, **fault_traits(fault)},
            rule=incident.plan.storm,
        )
        guard = workflow.get_external_workflow_handle(fleet_id(incident.cluster))
        try:
            # Out of reach of a cancellation: the SDK loses one that meets a signal on its way.
            await asyncio.shield(asyncio.create_task(guard.signal("fault_seen", seen)))
        except (ApplicationError, FailureError):
            await workflow.execute_activity_method(
                TemporalActivities.ensure_guard,
                EnsureGuard(cluster=incident.cluster, signal="fault_seen", argument=seen),
                summary=f"start the guard of the fleet and tell it of {signature(fault)}",
                **TEMPORAL,
            )


def _untold(incident: Incident) -> Iterator[tuple[Fault, str]]:
    """Faults whose signature the guard does not know of this node yet, with what to remember.

    One that comes again after the node was back in service is told again: the cause is still there.
    """
    returns = [act.ended for act in incident.acts if act.rung is RungName.RETURN]
    known = set(incident.told)
    for fault in incident.faults:
        lasted = sum(ended < fault.first_seen for ended in returns)
        told = f"{signature(fault)} #{lasted}" if lasted else signature(fault)
        if fault.source is not FaultSource.MANUAL and told not in known and len(known) < MOST_TOLD:
            known.add(told)
            yield fault, told
