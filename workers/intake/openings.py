"""How a fault opens an incident: the input, and what the Temporal UI shows of its origin."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from temporalio.client import WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy

from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.activities.model.seen import seen_of
from gpu_runbooks.activities.names import REMEDIATION_QUEUE
from gpu_runbooks.workers.intake.closed_incidents import AGAIN, FIRST_FAULT
from gpu_runbooks.workflows.audit import origin
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.search_attributes import opening
from gpu_runbooks.workflows.slot_request import opens_waiting

SEEN = "seen"
"""Memo of an incident: place of the GPU that the fault in its input names, as `model.seen.Seen`."""


@dataclass(frozen=True)
class Arrival:
    """A fault that is to be handed over, with what the node shows at this moment."""

    report: FaultReport
    note: str
    wrong: tuple[str, ...]
    """What the live Node itself shows wrong."""
    max_age: timedelta | None
    """Age of a fault from which on the node has to show something wrong."""


def incident_of(cluster: str, workflow_id: str, report: FaultReport, now: datetime) -> Incident:
    """The incident that a fault would open now, but for its run id."""
    incident = Incident.open(cluster, workflow_id, "", report, now)
    if opens_waiting(incident, now):
        incident.let_intake_ask(now)
    return incident


def start(incident: Incident, arrival: Arrival, *, again: bool) -> WithStartWorkflowOperation[object, object]:
    """Start an incident by a fault, unless one is open. `again`: an earlier one dealt with the fault."""
    fault, plan = arrival.report.fault, arrival.report.plan
    evidence = f"**Dealt with before**, and the node shows: {'; '.join(arrival.wrong)}"
    notes = [each for each in (arrival.note, evidence if again else "") if each]
    return WithStartWorkflowOperation(
        "NodeRemediation",
        {"report": arrival.report.model_dump(mode="json")}
        | ({"slot_asked": True} if incident.slot_asked else {}),
        id=incident.workflow_id,
        task_queue=REMEDIATION_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=f"{fault.source} {fault.code}: ladder {plan.treatment.ladder}",
        static_details="\n\n".join([origin(fault, plan), *notes]),
        search_attributes=opening(incident.cluster, plan, fault, incident.phase),
        memo={FIRST_FAULT: fault.fingerprint}
        | ({SEEN: seen.model_dump(mode="json")} if (seen := seen_of(fault)) else {})
        | ({AGAIN: True} if again else {}),
    )
