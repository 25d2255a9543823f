"""The steps that keep the decision fresh: look at the node again, and plan for the faults that stand."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.activities.contracts import ClusterActivities
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.plan import FaultReport, Plan, PlanIncident
from gpu_runbooks.workflows.blocking import clear, present
from gpu_runbooks.workflows.failures import in_words
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.options import CLUSTER

ASK_AGAIN = timedelta(minutes=10)
"""After it policy is asked again about a fault that it could not say anything about."""


async def look(incident: Incident) -> bool:
    """Look whether the conditions that were reported still stand. False where something else is true now."""
    return await (clear if incident.blocked else present)(incident, "going on")


async def reconsider(incident: Incident) -> None:
    """Take in faults whose toleration is over; where the decisive one is over, decide by those that stand."""
    if not await look(incident):
        return
    if incident.plan_anew:
        standing = incident.standing()
        reports = [FaultReport(fault=fault, plan=await _plan(incident, fault)) for fault in standing]
        incident.decide_anew(reports, workflow.now())
        return
    for fault in incident.due(workflow.now()):
        try:
            report = FaultReport(fault=fault, plan=await _plan(incident, fault))
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            incident.note(workflow.now(), f"{fault.source} {fault.code} waits: {in_words(error)}")
            incident.postpone(fault, workflow.now() + ASK_AGAIN)
        else:
            incident.count(report, workflow.now())


async def _plan(incident: Incident, fault: Fault) -> Plan:
    plan: Plan = await workflow.execute_activity_method(
        ClusterActivities.plan_incident,
        PlanIncident(node=incident.target.name, fault=fault),
        summary=f"what policy says about {fault.source} {fault.code}",
        **CLUSTER,
    )
    return plan
