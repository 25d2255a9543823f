"""What an incident shows of itself: its phase in the UI's list, and each act with its proof."""

from datetime import datetime

from temporalio import workflow

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows import audit
from gpu_runbooks.workflows.incident import Act, Incident
from gpu_runbooks.workflows.phases import Phase
from gpu_runbooks.workflows.search_attributes import RUNBOOK_HARDWARE, RUNBOOK_PHASE


def enter(incident: Incident, phase: Phase) -> None:
    """Show the phase in the UI's list and in the details. Each change costs one event."""
    if incident.phase is not phase:
        incident.phase = phase
        workflow.upsert_search_attributes([RUNBOOK_PHASE.value_set(phase)])
    show(incident)


def record(
    incident: Incident, rung: RungName, started: datetime, *, proven: bool, proof: str, evidence: str = ""
) -> None:
    """Record an act, and show it."""
    incident.record(
        Act(
            rung=rung,
            attempt=incident.attempts(rung) + 1,
            proven=proven,
            proof=proof,
            evidence=evidence,
            started=started,
            ended=workflow.now(),
        )
    )
    if rung is RungName.REPLACE:
        workflow.upsert_search_attributes([RUNBOOK_HARDWARE.value_set(incident.hardware())])
    show(incident)


def show(incident: Incident) -> None:
    """Bring the live details up to date."""
    workflow.set_current_details(audit.live_details(incident))
