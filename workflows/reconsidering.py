"""The steps that keep the decision fresh: look at the node again, and plan for the faults that count now."""

from collections.abc import Iterable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.activities.contracts import ClusterActivities
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.plan import FaultReport, Plan, PlanIncident
from gpu_runbooks.workflows.blocking import clear, present
from gpu_runbooks.workflows.failures import had_no_answer, in_words
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.options import CLUSTER

ASK_AGAIN = timedelta(minutes=10)
"""After it a fault is taken up again that nobody could say anything about."""


async def look(incident: Incident) -> bool:
    """Look whether the conditions that were reported still stand. False where something else is true now."""
    return await (clear if incident.blocked else present)(incident, "going on")


async def reconsider(incident: Incident) -> None:
    """Take in the faults whose toleration is over, if they still stand.

    Each is counted here, or tolerated for longer: no way leads back to this step without a wait.
    """
    due = incident.due(workflow.now())
    if incident.gone:
        _postpone(incident, due, "the machine is away")
        return
    try:
        if not await look(incident):
            return
        for fault in due:
            plan = await _plan(incident, fault)
            if incident.tolerates(fault):  # else it is over by now
                incident.count(FaultReport(fault=fault, plan=plan), workflow.now())
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        _postpone(incident, due, in_words(error))
        if not had_no_answer(error):
            raise  # a person has to mend it


def _postpone(incident: Incident, faults: Iterable[Fault], why: str) -> None:
    for fault in faults:
        if incident.tolerates(fault):
            incident.note(workflow.now(), f"{fault.source} {fault.code} waits: {why}")
            incident.tolerate(fault, workflow.now() + ASK_AGAIN)


async def _plan(incident: Incident, fault: Fault) -> Plan:
    plan: Plan = await workflow.execute_activity_method(
        ClusterActivities.plan_incident,
        PlanIncident(node=incident.target.name, fault=fault),
        summary=f"what policy says about {fault.source} {fault.code}",
        **CLUSTER,
    )
    return plan
