"""What stands before a step by policy: a person's word, an approval, a window. Pure: questions in words."""

from datetime import datetime, timedelta

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.plan import Rung, RungName
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ledger import cap_reached, loop_reached
from gpu_runbooks.workflows.phases import Runbook
from gpu_runbooks.workflows.severity import REPAIRS
from gpu_runbooks.workflows.windows import next_permitted


def loop_question(incident: Incident) -> str:
    """Why a person has to look before anything more is done to hardware that fails after each return."""
    before, known = incident.returned_before, incident.returns_known()
    if before is None or known <= incident.returns_answered:
        return ""
    return loop_reached(before, incident.returns_undone, incident.plan.repair.repeats)


def word_needed(incident: Incident, repair: Rung) -> str:
    """Why policy wants a person's word before this repair; empty where it does not."""
    if incident.runbook is not Runbook.REMEDIATE:
        return ""  # a person runs it
    before, own = incident.done_before.get(repair.name), incident.attempts(repair.name)
    if before and (reason := cap_reached(repair.name, before, own, incident.plan.repair.repeats)):
        return reason
    if repair.name is RungName.REPLACE and incident.plan.repair.replace == "ask":
        return "policy asks before an instance is replaced: say escalate_to replace, or abort"
    return ""


def approval_needed(incident: Incident, rung: Rung, now: datetime) -> str:
    """The question for a rung that policy wants approved, or only observes; empty where nothing is asked."""
    if not (rung.approval or rung.observe) or _is_approved(incident, rung.name, now):
        return ""
    if incident.runbook is not Runbook.REMEDIATE and not rung.approval_by_other:
        return ""  # a person runs it
    why = "wants a person's word before" if rung.approval else "only observes"
    drains = rung.name in REPAIRS and incident.drained is None and not incident.gone
    done = f"be done to {incident.target.name} {'once it is drained' if drains else 'now'}"
    return f"policy {why} {rung.name}, which would {done}: approve it, or abort"


def _is_approved(incident: Incident, rung: RungName, now: datetime) -> bool:
    """Whether a person approved the next attempt, not too long ago."""
    lasts = now < incident.approved_until.get(rung, now + timedelta(seconds=1))
    return lasts and incident.approved.get(rung, 0) > incident.attempts(rung)


def closed(incident: Incident, now: datetime) -> tuple[datetime, str] | None:
    """The end of what is waited for before pods may leave, and what it is: a window, or a change freeze.

    None where there is nothing to wait for, or a person asked.
    """
    plan = incident.plan
    opens = next_permitted(plan.windows, plan.freezes, now)
    if opens <= now or _by_person(incident):
        return None
    frozen = next((each for each in plan.freezes if each.begins <= now < each.ends), None)
    why = f"change freeze until {frozen.ends:%Y-%m-%d %H:%M} UTC: {frozen.why}" if frozen else ""
    return opens, why or f"closed until {opens:%Y-%m-%d %H:%M} UTC: the pool's maintenance windows"


def grouped(incident: Incident) -> datetime:
    """Until when its node is only blocked: others with the same cause may be a storm by then.

    It counts from the start, or from the fault that ended a probation.
    """
    wait = timedelta(0) if _by_person(incident) else incident.plan.storm.group_wait
    return (incident.resumed or incident.opened) + wait


def returns_unknown(incident: Incident) -> bool:
    """Whether the ledger is still to say how often this hardware was given back. Not on a person's order."""
    by_person = incident.runbook is not Runbook.REMEDIATE or incident.named_ladder
    asks = not by_person and incident.plan.repair.repeats.window > timedelta(0)
    # What it could lead to is a question that escalate_to answers, and that was said.
    return asks and incident.returned_before is None and not incident.ordered


def _by_person(incident: Incident) -> bool:
    return incident.runbook is not Runbook.REMEDIATE or incident.faults[0].source is FaultSource.MANUAL


def notice_due(incident: Incident) -> Rung | None:
    """The rung by which the owner of the workload is told, while there is something to tell."""
    rungs = incident.plan.treatment.rungs
    named = (rung for rung in rungs if rung.name is RungName.NOTIFY_OWNER and not rung.observe)
    return next(named, None) if incident.unnotified else None


def nothing_left(incident: Incident) -> str:
    """What was tried, and the last thing that went wrong."""
    tried = ", ".join(act.rung for act in incident.acts if act.rung in REPAIRS)
    left_out = ", ".join(incident.skipped)
    if not tried:
        begin = incident.begin_at
        without = "nothing was tried" if left_out else "it has no repair"
        tried = f"milder ones than {begin} did not last on this hardware" if begin else without
    tried += f"; left out by a person: {left_out}" if left_out else ""
    failed = [act for act in incident.acts if not act.proven and act.rung is not RungName.DRAIN]
    last = f"; last {failed[-1].rung}: {failed[-1].proof}" if failed else ""
    return f"ladder {incident.plan.treatment.ladder} has no rung left ({tried}){last}"
