"""When an incident is over, and how it is called then. Pure."""

from datetime import datetime

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.acts import DrainScope
from gpu_runbooks.workflows.gates import notice_due
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder_steps import Close
from gpu_runbooks.workflows.opting_out import OWNERS_WORD
from gpu_runbooks.workflows.phases import Outcome, Runbook
from gpu_runbooks.workflows.severity import restarts_workload, severity


def end_of(incident: Incident, now: datetime) -> Close | None:
    """The end of the incident, once there is nothing left to do."""
    treatment = incident.plan.treatment
    if incident.outcome is not None:
        return Close(incident.outcome, incident.reason)
    over = not incident.pending and notice_due(incident) is None
    if not incident.begun and severity(treatment) == 0 and over:
        return _told(incident)
    if incident.opted_out and not incident.begun and incident.runbook is Runbook.REMEDIATE:
        return Close(Outcome.LEFT_ALONE, f"{OWNERS_WORD}: nothing was done")
    if incident.returned and not (incident.watched_until and now < incident.watched_until):
        return back_in_service(incident)
    if incident.runbook is Runbook.DRAIN and incident.drained is DrainScope.NODE:
        left = f"empty but for {incident.left} abandoned pods" if incident.left else "empty"
        return Close(Outcome.DRAINED, f"{left}; blocked until a runbook ReturnNode gives it back")
    if incident.validated and incident.keeps_block:
        return Close(Outcome.VALIDATED, "the hardware passed; the block that stood before stands")
    if incident.gone and not any(rung.name is RungName.REPLACE for rung in treatment.rungs):
        return Close(Outcome.EXPIRED, f"the machine of node {incident.target.name} went away")
    if restarts_workload(treatment) and not incident.workload_faults and not incident.pending:
        left = f", but for {incident.left} that were abandoned" if incident.left else ""
        return Close(
            Outcome.RESTARTED, f"the pods that held the GPU have ended{left}; the node was not touched"
        )
    return None


def back_in_service(incident: Incident) -> Close:
    """The end of an incident whose node is back."""
    replaced = incident.target.provider_id != incident.plan.identity.provider_id
    back = incident.vouched or "validated and back in service"
    return Close(Outcome.REPLACED if replaced else Outcome.RETURNED, back)


def _told(incident: Incident) -> Close:
    """The end of an incident that touches nothing: whether an owner was told of it."""
    treatment = incident.plan.treatment
    if incident.unnotified:
        return Close(Outcome.OBSERVED, observed(incident))
    notices = [act for act in incident.acts if act.rung is RungName.NOTIFY_OWNER]
    told = [act for act in notices if act.proven]
    said = f"; {(told or notices)[-1].proof}" if notices else ""
    outcome = Outcome.NOTIFIED if told else Outcome.LEFT_ALONE
    return Close(outcome, f"rule {treatment.rule}: the node is not touched{said}")


def observed(incident: Incident) -> str:
    """What would have been done, for the audit."""
    treatment = incident.plan.treatment
    rungs = " → ".join(rung.name for rung in treatment.rungs)
    return f"mode observe: rule {treatment.rule} would begin ladder {treatment.ladder} now: {rungs}"
