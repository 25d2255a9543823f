"""What an incident shows of itself: its phase in the UI's list, and each act with its proof."""

from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate

from gpu_runbooks.activities.history.recorded_repairs import MEMO, indexed, repairs_memo, repairs_of_memo
from gpu_runbooks.activities.model.ledger import PastRepair
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows import audit, ledger
from gpu_runbooks.workflows.acts import Act
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.phases import Phase
from gpu_runbooks.workflows.search_attributes import RUNBOOK_HARDWARE, RUNBOOK_PHASE


def enter(incident: Incident, phase: Phase, *also: SearchAttributeUpdate[Any]) -> None:
    """Show the phase in the UI's list and in the details, and what else the list is to show with it.

    All of it is one event; none where nothing changed.
    """
    updates = [*also]
    if incident.phase is not phase:
        incident.phase = phase
        updates.append(RUNBOOK_PHASE.value_set(phase))
    if incident.hardware_due:
        incident.hardware_due = False
        updates.append(RUNBOOK_HARDWARE.value_set(incident.hardware))
    if updates:
        workflow.upsert_search_attributes(updates)
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
        incident.know([incident.target.instance_id])
    show(incident)


def remember(incident: Incident) -> None:
    """Leave the last repair in the memo, for later incidents of the same hardware."""
    act = incident.acts[-1]
    facts_of = ledger.Suspect(machine=tuple(incident.machine), faulty=tuple(incident.faulty))
    one = incident.faulty if incident.reset_gpu != (None, None) else ()
    repair = PastRepair(
        rung=act.rung,
        proven=act.proven,
        ended=act.ended,
        hardware=ledger.hardware_of(act.rung, facts_of, one),
        incident=incident.workflow_id,
        run_id=incident.run_id,
    )
    workflow.upsert_memo(repairs_memo([*remembered(), repair]))


def remember_return(incident: Incident) -> None:
    """Leave a return in the memo: a fault that comes back after each is no case for one more repair."""
    act, same = incident.acts[-1], incident.target.provider_id == incident.plan.identity.provider_id
    gpus = incident.faulty_gpus() if same else []
    names = ledger.suspect(incident.target, None, gpus).machine
    known = indexed([*names, *(incident.machine if same else ())])
    returned = PastRepair(
        rung=act.rung,
        proven=True,
        ended=act.ended,
        hardware=tuple(known),
        signs=ledger.signs_of(incident.faults),
        incident=incident.workflow_id,
        run_id=incident.run_id,
    )
    incident.know(known)
    workflow.upsert_memo(repairs_memo([*remembered(), returned]))


def remembered() -> tuple[PastRepair, ...]:
    """The repairs in this run's memo."""
    return repairs_of_memo(workflow.memo_value(MEMO, default=[]))


def show(incident: Incident) -> None:
    """Bring the live details up to date."""
    workflow.set_current_details(audit.live_details(incident))
