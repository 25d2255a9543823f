"""What the ledger knows of a machine's returns to service, asked before a blocked node is disrupted."""

from temporalio import workflow

from gpu_runbooks.activities.contracts import TemporalActivities
from gpu_runbooks.activities.model.ledger import HardwareHistory
from gpu_runbooks.workflows import ledger
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.options import RECALL


async def recall_returns(incident: Incident) -> None:
    """Learn how often the same fault came back after a return.

    The machine is known by its instance and the GPUs that the faults name: nothing was asked of the node yet.
    """
    repeats, now = incident.plan.repair.repeats, workflow.now()
    suspect = ledger.suspect(incident.target, None, incident.faulty_gpus())
    question = ledger.recall(suspect, repeats, incident.run_id, now)
    if question is None:
        incident.returned_before = ledger.Done(0, "")
        return
    history: HardwareHistory = await workflow.execute_activity_method(
        TemporalActivities.recall_hardware,
        question,
        summary="how often this hardware was given back with the same fault",
        **RECALL,
    )
    incident.returned_before = ledger.undone(history, suspect, ledger.signs_of(incident.faults), repeats, now)
