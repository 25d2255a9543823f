"""Why a person's word cannot be taken now. Pure: each raises what the person reads, and changes nothing."""

from datetime import datetime

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities.errors import BAD_INPUT, refusal
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.operator import Abort, Word
from gpu_runbooks.workflows.phases import Phase, Runbook
from gpu_runbooks.workflows.severity import REPAIRS
from gpu_runbooks.workflows.step_token import is_asked, step_of

NOT_NOW = "NotNow"
"""Rejection of a person's message that does not fit what the incident is doing."""

STALE = "Stale"
"""Rejection of a person's message that was for another step, or another incident of the node."""

NEVER_SKIPPED = {
    RungName.BLOCK: "nothing is done to a node that still takes pods",
    RungName.VALIDATE: "an unknown node is never healthy; once it asks a person, return_anyway gives it back "
    "on their word",
    RungName.RETURN: "the node would be blocked for ever; abort ends the incident with the block kept",
    RungName.NOTIFY_OWNER: "the owner would never hear of it; abort ends the incident",
    RungName.RESTART_WORKLOAD: "nothing else would be done; abort ends the incident",
}
"""Why a rung cannot be left out."""


def not_now(message: str) -> ApplicationError:
    return ApplicationError(message, type=NOT_NOW)


def refuse_stale(word: Word, incident: Incident, run_id: str) -> None:
    """Raise `Stale` for a word that was meant for another incident of the node, or another step of this."""
    if word.incident is not None and word.incident not in {incident.run_id, run_id}:
        raise ApplicationError(
            f"this was for incident {word.incident}, and node {incident.target.name} has another one now: "
            f"{incident.run_id}; {is_asked(incident)}",
            type=STALE,
        )
    if word.step is not None and word.step != step_of(incident):
        raise ApplicationError(f"this was for step {word.step}: {is_asked(incident)}", type=STALE)


def refuse_ending(incident: Incident) -> None:
    if incident.outcome is not None or incident.phase in {Phase.RETURNING, Phase.CLOSED}:
        raise not_now(f"too late: the incident is in phase {incident.phase} and ends")


def refuse_unless_asked(incident: Incident) -> None:
    if incident.phase is Phase.PAUSED and incident.question is not None:
        raise not_now("the incident is paused: resume it first, then answer")
    if incident.phase is not Phase.NEEDS_OPERATOR or incident.question is None:
        raise not_now(f"the incident does not wait for a person, it is in phase {incident.phase}")


def refuse_unasked(rung: RungName, incident: Incident) -> None:
    """Raise `NotNow` for an answer about a rung that the incident does not ask about."""
    refuse_unless_asked(incident)
    if rung is not incident.asking:
        asked = f"approval of {incident.asking}" if incident.asking else "something else, see its details"
        raise not_now(f"the incident does not ask for {rung}, but for {asked}")


def refuse_own_approval(word: Word, incident: Incident) -> None:
    """Raise `NotNow` where policy wants another person's approval than that of whoever asked."""
    rung = next((each for each in incident.plan.treatment.rungs if each.name is incident.asking), None)
    if rung is None or not rung.approval_by_other:
        return
    if any(is_same(word.operator, asked.operator) for asked in incident.requesters):
        raise not_now(
            f"{word.operator} asked for this, and policy wants somebody else to approve {rung.name}: "
            "have another person approve it"
        )


def is_same(name: str, other: str) -> bool:
    """Whether two names that people wrote are one person's."""
    return name.strip().casefold() == other.strip().casefold()


def refuse_impossible(rung: RungName, incident: Incident) -> None:
    """Raise `BadInput` for a repair that cannot be the next one: another would be done in its place."""
    _refuse_lacking(rung, incident)
    if incident.gone and rung is not RungName.REPLACE:
        raise refusal(
            BAD_INPUT, f"the machine of node {incident.target.name} is gone, and nothing is left for {rung}"
        )
    floors = [act.rung for act in incident.acts if act.rung in REPAIRS]
    floor = max(floors, key=REPAIRS.index, default=rung)
    if REPAIRS.index(rung) < REPAIRS.index(floor):
        raise refusal(
            BAD_INPUT,
            f"this incident is at {floor} already and does nothing milder any more: abort it and start a "
            f"runbook that does {rung}",
        )


def refuse_unskippable(rung: RungName, incident: Incident) -> None:
    """Raise `BadInput` or `NotNow` for a rung that cannot be left out, or not any more."""
    refuse_ending(incident)
    if rung in NEVER_SKIPPED:
        raise refusal(BAD_INPUT, f"{rung} cannot be left out: {NEVER_SKIPPED[rung]}")
    repairs = [known.name for known in incident.plan.treatment.rungs if known.name in REPAIRS]
    if rung is RungName.DRAIN:
        _refuse_drain(repairs, incident)
        return
    _refuse_lacking(rung, incident)
    if incident.repairing is rung:
        raise not_now(f"{rung} is under way and cannot be taken back: its proof, or its deadline, ends it")
    if incident.gone or incident.terminating:
        raise not_now(
            f"the machine of node {incident.target.name} is gone or going, and its successor is to come: "
            "abort ends the incident"
        )
    if rung in incident.skipped:
        raise not_now(f"{rung} is left out already")
    tried = [act.rung for act in incident.acts if act.rung in REPAIRS]
    if any(REPAIRS.index(each) > REPAIRS.index(rung) for each in tried):
        raise not_now(f"{rung} is behind: the incident is at {tried[-1]}, and does nothing milder any more")


def _refuse_drain(repairs: list[RungName], incident: Incident) -> None:
    if repairs:
        raise refusal(
            BAD_INPUT,
            f"drain cannot be left out before {', '.join(repairs)}: the pods of the node would die with it; "
            "override_drain orders what happens to each pod in the way",
        )
    if incident.runbook is not Runbook.REMEDIATE:
        raise refusal(BAD_INPUT, f"a person runs {incident.runbook} for its drain: abort ends it")
    if not any(known.name is RungName.DRAIN for known in incident.plan.treatment.rungs):
        raise refusal(BAD_INPUT, f"ladder {incident.plan.treatment.ladder} has no drain")
    if incident.drained is not None:
        raise not_now("drain is behind: the node is empty")


def _refuse_lacking(rung: RungName, incident: Incident) -> None:
    """Raise `BadInput` for a repair that the ladder lacks."""
    ladder = incident.plan.treatment
    repairs = [known.name for known in ladder.rungs if known.name in REPAIRS]
    if rung in repairs:
        return
    has = f"has the repairs {', '.join(repairs)}, not {rung}" if repairs else "has no repair"
    raise refusal(
        BAD_INPUT,
        f"ladder {ladder.ladder} {has}: abort this incident and start one with a ladder that has it",
    )


def refuse_return(incident: Incident) -> None:
    """Raise `NotNow` where a node cannot be given back on a person's word."""
    refuse_unless_asked(incident)
    if not incident.blocked or incident.gone or incident.terminating:
        raise not_now(f"node {incident.target.name} has no block of this incident, or its machine is going")
    if not any(rung.name is RungName.RETURN for rung in incident.plan.treatment.rungs):
        raise not_now(
            f"{incident.runbook} returns no node: abort it with the block removed, or start a ReturnNode"
        )


def refuse_abort(word: Abort, incident: Incident) -> None:
    """Raise `NotNow` where the incident ends already, or its block cannot go."""
    refuse_ending(incident)
    if word.block == "keep":
        return
    if incident.repairing is not None:
        raise not_now(
            f"{incident.repairing} is under way: the block stays until its end. Say abort with block keep, "
            "or wait"
        )
    if incident.gone or incident.terminating:
        raise not_now(
            f"the machine of node {incident.target.name} is gone or going: there is no block to remove"
        )
    if incident.keeps_block:
        raise not_now("the block stood before this runbook and is not its to remove: start a ReturnNode")


def refuse_resume(incident: Incident, now: datetime) -> None:
    if incident.paused is None or now >= incident.paused.until:
        raise not_now(f"the incident is not paused, it is in phase {incident.phase}")
