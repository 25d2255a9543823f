"""The steps of an incident: each does one thing to the node and writes into the incident what it showed."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.activities.errors import FOR_A_PERSON, INSTANCE_UNKNOWN, NODE_CHANGED, NODE_NOT_FOUND
from gpu_runbooks.activities.model.node import NodeObservation
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows import ladder, ladder_steps
from gpu_runbooks.workflows.asking import what_is_asked
from gpu_runbooks.workflows.asking_operator import ask_operator
from gpu_runbooks.workflows.blocking import (
    block,
    came_back,
    clear,
    conclude,
    may_act,
    observe,
    still_there,
    unblock,
)
from gpu_runbooks.workflows.draining import drain, restart_workload
from gpu_runbooks.workflows.examining import examine
from gpu_runbooks.workflows.failures import cause_type, had_no_answer, in_words
from gpu_runbooks.workflows.holding_slot import hold_slot, return_slot, withdraw
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.notifying import notify_owner
from gpu_runbooks.workflows.paging import take_back
from gpu_runbooks.workflows.phases import Outcome, Phase, Runbook
from gpu_runbooks.workflows.proof import CapacityLostError, NotSentError, Proof
from gpu_runbooks.workflows.rebooting import reboot
from gpu_runbooks.workflows.recalling import recall_returns
from gpu_runbooks.workflows.reconsidering import look, reconsider
from gpu_runbooks.workflows.recording import enter, record, remember, remember_return, show
from gpu_runbooks.workflows.replacing import replace
from gpu_runbooks.workflows.resetting import reset_gpu, resume_services
from gpu_runbooks.workflows.standing_by import stand_by
from gpu_runbooks.workflows.validating import validate
from gpu_runbooks.workflows.waits import wait_for

NOT_SENT_PAUSE = timedelta(seconds=15)
"""Before an act that could not be asked for is tried again, behind another look at the node."""

DRAIN_HOLDS = timedelta(minutes=5)
"""How long an empty node counts as empty for an act that could not be sent: a pod may land since."""

REPAIRS = {
    RungName.RESET_GPU: (Phase.RESETTING_GPU, reset_gpu),
    RungName.REBOOT: (Phase.REBOOTING, reboot),
    RungName.REPLACE: (Phase.REPLACING, replace),
}


READ_FIRST = (RungName.RESET_GPU, RungName.REPLACE)
"""May be asked for again after no answer: they take up the same NodeTask, or read the state first."""


KEEPS_PLACE = (ladder_steps.HoldSlot, ladder_steps.Look, ladder_steps.Reconsider, ladder_steps.Block)
"""Steps that lead back to the wait for a slot: the request stands meanwhile."""

WAITS = (ladder_steps.HoldSlot, ladder_steps.Tolerate, ladder_steps.StayPaused, ladder_steps.Watch)
"""Steps behind which a question, if it comes again, is a new one."""

NODE_LEFT = frozenset({NODE_NOT_FOUND, NODE_CHANGED})


async def take(incident: Incident, step: ladder_steps.Step) -> None:
    """Take one step. What an activity refuses for good becomes a question to a person."""
    if not isinstance(step, KEEPS_PLACE):
        await withdraw(incident)
    await _withdraw_call(incident, step)
    if ladder.next_step(incident, workflow.now()) != step:
        return  # a word came while the budget and the callers were told
    try:
        await STEPS[type(step)](incident, step)
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        if cause_type(error) in NODE_LEFT and await _is_explained(incident):
            return
        if incident.question is None:
            incident.question, incident.unanswered = in_words(error), had_no_answer(error)


async def _withdraw_call(incident: Incident, step: ladder_steps.Step) -> None:
    """Take back the alert of a question that is answered, withdrawn, or not the next one to be asked."""
    other = isinstance(step, ladder_steps.AskOperator) and incident.asked != what_is_asked(
        incident, step.question
    )
    if isinstance(step, WAITS) or other:
        incident.asked_since = None
    if incident.asked_since is None:
        await take_back(incident)


async def _is_explained(incident: Incident) -> bool:
    """Look at a node that an activity did not find any more. Whether what is there says how to go on."""
    look = clear if incident.blocked else still_there
    try:
        return not await look(incident, "going on")
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return False


async def tolerate(incident: Incident, step: ladder_steps.Tolerate) -> None:
    """Wait, unless news of the node or an operator's word changes what is right."""
    enter(incident, Phase.WAITING if incident.blocked else Phase.TOLERATING)
    latest, over, wait = incident.faults[-1], incident.cleared, step.until - workflow.now()

    def news() -> bool:
        return (
            incident.outcome is not None
            or incident.looks_again
            or incident.faults[-1] is not latest
            or incident.cleared is not over
        )

    if step.why:
        _say_once(incident, step.why)
    await stand_by(incident, news, wait, step.why or f"wait for {wait}")


def _say_once(incident: Incident, text: str) -> None:
    """Note and show what is waited for, unless that was said: a wait may be gone into again and again."""
    if all(note.text != text for note in incident.notes):
        incident.note(workflow.now(), text)
        show(incident)


async def stay_paused(incident: Incident, step: ladder_steps.StayPaused) -> None:
    """Wait for the person who paused it, or for the end of their pause."""
    enter(incident, Phase.PAUSED)

    def news() -> bool:
        over = isinstance(ladder.next_step(incident, workflow.now()), ladder_steps.Close)
        return over or incident.looks_again

    await stand_by(incident, news, step.until - workflow.now(), "paused by a person")
    incident.drained = incident.examined = None  # days may have passed


async def wait_for_slot(incident: Incident, _: ladder_steps.HoldSlot) -> None:
    """Ask for the slot. A node that is blocked already may be given back meanwhile."""
    await hold_slot(incident)
    waits = isinstance(ladder.next_step(incident, workflow.now()), ladder_steps.HoldSlot)
    if waits and incident.blocked and not incident.gone:
        await clear(incident, "waiting on for a slot")


async def wait_for_group(incident: Incident, step: ladder_steps.GroupWait) -> None:
    """Wait with the slot held. A storm or a halt that comes meanwhile is minded after."""
    if incident.phase is not Phase.BLOCKING:  # a change of the list costs the server more than all else
        enter(incident, Phase.WAITING)
    _say_once(
        incident, f"until {step.until:%H:%M:%S} UTC only the block: others with the same cause may report"
    )
    await wait_for(
        lambda: not isinstance(ladder.next_step(incident, workflow.now()), ladder_steps.GroupWait),
        step.until - workflow.now(),
        "others with the same cause may report",
    )


async def watch(incident: Incident, step: ladder_steps.Watch) -> None:
    """Watch the node that is back, without its slot: a fault that joins goes on where the ladder stood."""
    enter(incident, Phase.PROBATION)
    await wait_for(
        lambda: not isinstance(ladder.next_step(incident, workflow.now()), ladder_steps.Watch),
        step.until - workflow.now(),
        "probation after the return",
    )


async def look_again(incident: Incident, _: ladder_steps.Look) -> None:
    """Look whether what was reported still stands."""
    await look(incident)


async def repair(incident: Incident, step: ladder_steps.Repair) -> None:
    """Reset, reboot or replace, and record the proof or its absence."""
    looked = not await came_back(incident) if incident.gone else await may_act(incident, step.rung.name)
    if not looked or not ladder.is_still_next(incident, step, workflow.now()):
        return  # a word, a halt or a fault came while we looked: it is decided anew
    evidence = incident.examined.evidence if incident.examined else ""
    phase, act = REPAIRS[step.rung.name]
    enter(incident, phase)
    started = workflow.now()
    incident.repairing, incident.unexplained = step.rung.name, False
    try:
        proof = await act(incident, step)
    except NotSentError as error:
        await not_sent(incident, step, started, str(error))
        return
    except CapacityLostError as error:
        # No attempt is used up: asked again, it goes on waiting for the successor.
        incident.question, incident.unanswered = f"capacity lost: {error}", True
        return
    except ActivityError as error:
        if is_cancelled_exception(error) or cause_type(error) in FOR_A_PERSON:
            raise
        if step.rung.name in READ_FIRST and had_no_answer(error):
            raise  # it is asked for again, as the same attempt
        if step.rung.name is RungName.REPLACE and cause_type(error) == INSTANCE_UNKNOWN:
            raise  # nothing is stronger: a person finds out what the node's machine is
        proof = Proof(proven=False, text=in_words(error))
    finally:
        incident.repairing = None
    if proof.target is not None:
        incident.go_on_with(proof.target)
        # A successor never was in anybody's hands.
        incident.keeps_block = incident.keeps_block and step.rung.name is not RungName.REPLACE
    record(incident, step.rung.name, started, proven=proof.proven, proof=proof.text, evidence=evidence)
    if proof.tried:
        remember(incident)


async def not_sent(incident: Incident, step: ladder_steps.Repair, started: datetime, why: str) -> None:
    """Pause before the next look and attempt; after the rung's timeout ask a person. No act is recorded."""
    overtaken = not ladder.is_still_next(incident, step, workflow.now())
    if started - incident.last(RungName.DRAIN) > DRAIN_HOLDS:
        incident.drained = None
    if overtaken:
        incident.unsent = None
        incident.note(workflow.now(), f"{step.rung.name} was not asked for: {why}")
        return
    if incident.unsent is None:
        incident.unsent = started
        incident.note(workflow.now(), f"{step.rung.name} was not asked for, trying again: {why}")
    if workflow.now() - incident.unsent >= step.rung.timeout:
        incident.question, incident.unanswered, incident.unsent = why, True, None
        return
    await wait_for(
        lambda: incident.outcome is not None, NOT_SENT_PAUSE, f"before {step.rung.name} is tried again"
    )


async def validate_repair(incident: Incident, step: ladder_steps.Validate) -> None:
    """Validate the node. The result counts only if no newer fault refuted the repair meanwhile."""
    enter(incident, Phase.VALIDATING)
    started, repaired = workflow.now(), incident.repaired
    proof = await validate(incident, step.rung)
    if proof.inconclusive:
        incident.question = proof.text
    elif incident.repaired == repaired:
        incident.validated = proof.proven
        incident.validations += 0 if proof.proven else 1
    record(incident, RungName.VALIDATE, started, proven=proof.proven, proof=proof.text)
    if proof.seen is not None and isinstance(ladder.next_step(incident, workflow.now()), ladder_steps.Return):
        await give_back(incident, proof.seen)


async def return_node(incident: Incident) -> None:
    """Look at the node, and give it back."""
    await give_back(
        incident, await observe(incident, "before return: same machine and boot, our block in place?")
    )


async def give_back(incident: Incident, seen: NodeObservation) -> None:
    """Remove what is ours from the node that was just seen, where it is the one that was validated."""
    if not await conclude(incident, seen):
        return
    if not isinstance(ladder.next_step(incident, workflow.now()), ladder_steps.Return):
        return  # a word or a fault came while we looked
    enter(incident, Phase.RETURNING)
    started = workflow.now()
    undone = await unblock(incident)
    incident.blocked = False
    if undone.node_gone:
        incident.end(Outcome.EXPIRED, f"node {incident.target.name} went away before it could be returned")
        return
    # A fault that came while we unblocked has taken that back, or is to be waited for.
    incident.returned = bool(incident.validated or incident.vouched) and not incident.pending
    incident.drained = incident.examined = None  # pods come again
    if incident.returned and incident.runbook is Runbook.REMEDIATE:
        incident.watched_until = workflow.now() + incident.plan.probation
    removed = f"removed {', '.join(undone.removed) or 'nothing'}"
    proof = f"{incident.vouched}; {removed}" if incident.vouched else removed
    if undone.kept:
        proof += f"; kept {', '.join(undone.kept)}"
    if incident.bad_conditions:
        proof += f"; the node still shows {', '.join(incident.bad_conditions)}"
    record(incident, RungName.RETURN, started, proven=True, proof=proof)
    if incident.returned and incident.runbook is Runbook.REMEDIATE:
        remember_return(incident)
    if incident.returned:
        await return_slot(incident)


STEPS: dict[type[ladder_steps.Step], Callable[[Incident, Any], Awaitable[None]]] = {
    ladder_steps.Tolerate: tolerate,
    ladder_steps.Look: look_again,
    ladder_steps.Reconsider: lambda incident, _: reconsider(incident),
    ladder_steps.StayPaused: stay_paused,
    ladder_steps.Watch: watch,
    ladder_steps.HoldSlot: wait_for_slot,
    ladder_steps.Block: lambda incident, _: block(incident),
    ladder_steps.GroupWait: wait_for_group,
    ladder_steps.Recall: lambda incident, _: recall_returns(incident),
    ladder_steps.Examine: examine,
    ladder_steps.Drain: drain,
    ladder_steps.NotifyOwner: lambda incident, step: notify_owner(incident, step.rung),
    ladder_steps.RestartWorkload: lambda incident, step: restart_workload(incident, step.rung),
    ladder_steps.Repair: repair,
    ladder_steps.ResumeServices: lambda incident, _: resume_services(incident),
    ladder_steps.Validate: validate_repair,
    ladder_steps.Return: lambda incident, _: return_node(incident),
    ladder_steps.AskOperator: ask_operator,
}
