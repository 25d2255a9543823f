"""How long a question to a person may stand, and what follows when nobody answers. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.gates import word_needed
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.phases import Runbook
from gpu_runbooks.workflows.severity import REPAIRS

ASK_AGAIN = timedelta(minutes=10)
"""After it an incident asks again by itself what an API that was away did not answer."""

QUIET = timedelta(minutes=30)
"""So long nobody is paged for what asks itself again: most of it is over by then."""

KEPT_UP = timedelta(minutes=30)
"""An alert is repeated so often: Alertmanager forgets all alerts when it restarts."""

STANDS = timedelta(hours=2)
"""How long an alert stands that is not repeated any more: then no worker has been there for long."""

NOT_REACHED = timedelta(minutes=5)
"""A page that reached nobody, or not all, is repeated after it."""


@dataclass(frozen=True)
class Turn:
    """When the next thing happens by itself while a question stands, and what."""

    at: datetime
    what: str


def next_turn(incident: Incident, now: datetime) -> Turn:
    """What happens first if nobody says anything."""
    turns = [Turn(each.until, "a tolerated fault counts") for each in incident.pending]
    if incident.unanswered:
        turns.append(Turn(now + ASK_AGAIN, "ask again what had no answer"))
    elif incident.asked_since is not None:
        page_at = incident.page_again or now + KEPT_UP
        turns.append(Turn(page_at, "repeat the alert that a person is needed"))
        turns.append(Turn(incident.remind_at or page_at, "remind that a person is needed"))
        if not incident.overdue:
            turns.append(Turn(incident.asked_since + incident.plan.operator_deadline, "nobody answered"))
    return min(turns, key=lambda each: each.at)


def what_is_asked(incident: Incident, question: str) -> str:
    """What tells one question from another. What had no answer is the same one until something is done."""
    return "" if incident.unanswered else question


def is_overdue(incident: Incident, now: datetime) -> bool:
    """Whether nobody answered in time, and nothing followed from it yet."""
    since = incident.asked_since
    return since is not None and not incident.overdue and now >= since + incident.plan.operator_deadline


def pages_now(incident: Incident, now: datetime) -> bool:
    """Whether the alert is to be raised, or repeated."""
    if incident.asked_since is None or (incident.page_again is not None and now < incident.page_again):
        return False
    return not incident.unanswered or now >= incident.asked_since + QUIET


def after_deadline(incident: Incident) -> RungName | Literal["page", "abort"]:
    """What policy says follows. To escalate is to do the next stronger repair; where there is none, to page.

    Silence gives no approval, and mends nothing that a stronger repair would meet as well: such a question
    waits for a person. Nor does it change what a person ordered by a runbook of their own.
    """
    then = incident.plan.after_deadline
    if then != "escalate":
        return then
    if not incident.escalates or incident.runbook is not Runbook.REMEDIATE:
        return "page"
    return stronger(incident) or "page"


def stronger(incident: Incident) -> RungName | None:
    """The mildest repair of the ladder that is stronger than all that was tried or asked about."""
    tried = [act.rung for act in incident.acts if act.rung in REPAIRS]
    tried += [each for each in (incident.floor, incident.begin_at) if each is not None]
    level = max(map(REPAIRS.index, tried), default=-1)
    rungs = {rung.name: rung for rung in incident.plan.treatment.rungs}
    for name in REPAIRS[level + 1 :]:
        rung = rungs.get(name)
        if rung is None or name in incident.skipped or word_needed(incident, rung):
            continue
        if incident.gone and name is not RungName.REPLACE:
            continue
        return None if rung.approval or rung.observe else name
    return None


def escalate(incident: Incident, rung: RungName) -> None:
    """Go on with a stronger repair. Caps, and policy's other questions, stand before it as before."""
    incident.ask_nothing()
    incident.drains = 0
    incident.drained = incident.examined = None
    incident.refute_repair()
    incident.skip_to(rung)
