"""The step `needs-operator`: a person is asked, called, reminded, and in the end policy says what follows."""

from temporalio import workflow

from gpu_runbooks.workflows.asking import (
    after_deadline,
    escalate,
    is_overdue,
    next_turn,
    pages_now,
    what_is_asked,
)
from gpu_runbooks.workflows.blocking import clear
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder_steps import AskOperator
from gpu_runbooks.workflows.ledger import window_in_words
from gpu_runbooks.workflows.paging import call_louder, call_person
from gpu_runbooks.workflows.phases import Outcome, Phase
from gpu_runbooks.workflows.recording import enter, show
from gpu_runbooks.workflows.standing_by import stand_by


async def ask_operator(incident: Incident, step: AskOperator) -> None:
    """Wait for a person, with block and slot held, until something happens. Never silence."""
    incident.question, incident.asking, incident.escalates = step.question, step.approves, step.escalates
    now = workflow.now()
    if incident.asked_since is None:
        incident.asked_since, incident.overdue = now, False
        incident.asked = what_is_asked(incident, step.question)
        incident.remind_at = now + incident.plan.operator_reminder
    enter(incident, Phase.NEEDS_OPERATOR)
    if is_overdue(incident, now) and await _give_up_waiting(incident):
        return
    _remind(incident)
    if pages_now(incident, workflow.now()):
        await call_person(incident)
    if _stands(incident):  # else it was answered meanwhile
        await _wait(incident)


def _stands(incident: Incident) -> bool:
    return incident.question is not None and incident.outcome is None


async def _wait(incident: Incident) -> None:
    """Until somebody says something, or the next thing is due."""
    tolerated, now = incident.pending, workflow.now()
    turn = next_turn(incident, now)

    def news() -> bool:
        return not _stands(incident) or incident.looks_again or incident.pending is not tolerated

    heard = await stand_by(incident, news, turn.at - now, turn.what)
    if incident.due(workflow.now()):
        return
    if not heard and incident.unanswered:
        since = incident.asked_since
        incident.note(workflow.now(), f"trying again by itself: {incident.question}")
        incident.ask_nothing()
        incident.asked_since = since  # the same question, until something else follows
        return
    if incident.blocked and not incident.gone and incident.outcome is None:
        await clear(incident, "going on")  # a person may have given the node back meanwhile


def _remind(incident: Incident) -> None:
    now = workflow.now()
    if incident.remind_at is None or now < incident.remind_at:
        return
    incident.remind_at = now + incident.plan.operator_reminder
    incident.note(now, f"still waiting for a person: {incident.question}")
    workflow.logger.warning("node %s needs an operator: %s", incident.target.name, incident.question)
    show(incident)


async def _give_up_waiting(incident: Incident) -> bool:
    """Do what policy says after the deadline. Whether the question is over with that."""
    asked = incident.question
    nobody = f"nobody answered within {window_in_words(incident.plan.operator_deadline)}"
    follows = after_deadline(incident)
    if follows == "abort":
        incident.note(workflow.now(), f"{nobody}, so policy ends the incident: {asked}")
        block = "the block stays" if incident.blocked else "it is not blocked"
        incident.left_unanswered = True
        incident.end(Outcome.ABORTED, f"{nobody}, and policy says abort; {block}. It asked: {asked}")
        return True
    if follows == "page":
        incident.note(workflow.now(), f"{nobody}: called as critical, and still asking: {asked}")
        await call_louder(incident)
        return not _stands(incident)
    incident.note(workflow.now(), f"{nobody}, so policy goes on with {follows}: {asked}")
    escalate(incident, follows)
    return True
