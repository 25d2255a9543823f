"""How a fault opens an incident: the input, and what the Temporal UI shows of its origin."""

from dataclasses import dataclass
from datetime import timedelta

from temporalio.client import WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy

from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.activities.model.seen import seen_of
from gpu_runbooks.activities.names import REMEDIATION_QUEUE
from gpu_runbooks.workers.intake.closed_incidents import AGAIN, FIRST_FAULT
from gpu_runbooks.workflows.audit import origin
from gpu_runbooks.workflows.search_attributes import opening

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


def start(
    cluster: str, workflow_id: str, arrival: Arrival, *, again: bool
) -> WithStartWorkflowOperation[object, object]:
    """Start an incident by a fault, unless one is open. `again`: an earlier one dealt with the fault."""
    fault, plan = arrival.report.fault, arrival.report.plan
    evidence = f"**Dealt with before**, and the node shows: {'; '.join(arrival.wrong)}"
    notes = [each for each in (arrival.note, evidence if again else "") if each]
    return WithStartWorkflowOperation(
        "NodeRemediation",
        {"report": arrival.report.model_dump(mode="json")},
        id=workflow_id,
        task_queue=REMEDIATION_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=f"{fault.source} {fault.code}: ladder {plan.treatment.ladder}",
        static_details="\n\n".join([origin(fault, plan), *notes]),
        search_attributes=opening(cluster, plan, fault),
        memo={FIRST_FAULT: fault.fingerprint}
        | ({SEEN: seen.model_dump(mode="json")} if (seen := seen_of(fault)) else {})
        | ({AGAIN: True} if again else {}),
    )
