"""The steps of an incident: each does one thing to the node and writes into the incident what it showed."""

import asyncio
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

from gpu_runbooks.activities.contracts import ClusterActivities, TemporalActivities
from gpu_runbooks.activities.errors import (
    BLOCKED_BY_OTHER,
    FOR_A_PERSON,
    NODE_CHANGED,
    NODE_NOT_FOUND,
)
from gpu_runbooks.activities.model.drain import DrainPods
from gpu_runbooks.activities.model.node import BlockNode, ObserveNode, UnblockNode, UnblockResult
from gpu_runbooks.activities.model.plan import Rung, RungName
from gpu_runbooks.activities.model.slot import EnsureBudget, SlotRequest
from gpu_runbooks.activities.names import budget_id
from gpu_runbooks.workflows import audit, ladder, repairs
from gpu_runbooks.workflows.failures import cause_type, in_words
from gpu_runbooks.workflows.guard import Gone, Rebooted, Registered, Released, inspect
from gpu_runbooks.workflows.incident import Act, Incident, Outcome, Phase, severity
from gpu_runbooks.workflows.options import CLUSTER, TEMPORAL, until
from gpu_runbooks.workflows.search_attributes import RUNBOOK_HARDWARE, RUNBOOK_PHASE
from gpu_runbooks.workflows.validating import validate
from gpu_runbooks.workflows.waits import wait_for

ASK_AGAIN = timedelta(minutes=5)
"""A slot request is sent again so often: the budget may have been restarted since."""

NOT_SENT_PAUSE = timedelta(seconds=15)
"""Before an act that could not be asked for is tried again, behind another look at the node."""

OTHER_OWNER_WAIT = timedelta(minutes=1)
"""How long to leave a node alone that another incident has blocked, before asking again."""

REPAIRS = {
    RungName.RESET_GPU: (Phase.RESETTING_GPU, repairs.reset_gpu),
    RungName.REBOOT: (Phase.REBOOTING, repairs.reboot),
    RungName.REPLACE: (Phase.REPLACING, repairs.replace),
}


async def take(incident: Incident, step: ladder.Step) -> None:
    """Take one step. What an activity refuses for good becomes a question to a person."""
    try:
        match step:
            case ladder.Tolerate(until=moment):
                await tolerate(incident, moment)
            case ladder.HoldSlot():
                await hold_slot(incident)
            case ladder.Block():
                await block(incident)
            case ladder.Drain(rung=rung):
                await drain(incident, rung)
            case ladder.Repair():
                await repair(incident, step)
            case ladder.Validate(rung=rung):
                await validate_repair(incident, rung)
            case ladder.Return():
                await return_node(incident)
            case ladder.AskOperator():
                await ask_operator(incident, step)
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        incident.question = in_words(error)


async def tolerate(incident: Incident, moment: datetime) -> None:
    """Wait, unless news of the node or an operator's word changes what is right."""
    enter(incident, Phase.WAITING if incident.blocked else Phase.TOLERATING)
    known, wait = len(incident.faults), moment - workflow.now()
    await wait_for(
        lambda: incident.outcome is not None or len(incident.faults) > known, wait, f"wait for {wait}"
    )


async def hold_slot(incident: Incident) -> None:
    """Ask the pool's budget and wait for a while. The next step asks again: either side may be away."""
    enter(incident, Phase.WAITING_FOR_SLOT)
    pool, request = incident.plan.pool, slot_request(incident)
    incident.slot_wanted = True
    try:
        await _tell_budget(incident, "request_slot", request)
    except (ApplicationError, FailureError):
        await workflow.execute_activity_method(
            TemporalActivities.ensure_budget,
            EnsureBudget(cluster=incident.cluster, pool=pool, request=request),
            summary=f"start the budget of pool {pool} and ask it for a slot",
            **TEMPORAL,
        )
    await wait_for(
        lambda: incident.slot_held or incident.outcome is not None, ASK_AGAIN, f"slot of pool {pool}"
    )


async def return_slot(incident: Incident) -> None:
    """Return the slot, or withdraw the request. A budget that is gone has none to return."""
    if not incident.slot_wanted:
        return
    incident.slot_wanted = incident.slot_held = False
    try:
        await _tell_budget(incident, "return_slot", slot_request(incident))
    except (ApplicationError, FailureError) as error:
        workflow.logger.warning("slot not returned, the budget will find it: %s", error)


async def _tell_budget(incident: Incident, signal: str, request: SlotRequest) -> None:
    """Signal the budget, out of reach of a cancellation: the SDK loses one that meets a signal on its way."""
    budget = workflow.get_external_workflow_handle(budget_id(incident.cluster, incident.plan.pool))
    await asyncio.shield(asyncio.create_task(budget.signal(signal, request)))


async def block(incident: Incident) -> None:
    """Taint and cordon the node, unless it is another machine by now or another incident's."""
    enter(incident, Phase.BLOCKING)
    started = workflow.now()
    try:
        blocked = await workflow.execute_activity_method(
            ClusterActivities.block_node,
            BlockNode(
                identity=incident.target,
                incident=incident.workflow_id,
                run_id=incident.run_id,
                rule=incident.plan.treatment.rule,
                reason=incident.why(),
                since=started,
            ),
            summary=f"taint and cordon {incident.target.name}",
            **CLUSTER,
        )
    except ActivityError as error:
        kind = cause_type(error)
        if kind in {NODE_NOT_FOUND, NODE_CHANGED}:
            incident.end(Outcome.EXPIRED, in_words(error))
        elif kind == BLOCKED_BY_OTHER:
            await return_slot(incident)
            incident.not_before = workflow.now() + OTHER_OWNER_WAIT
            incident.note(workflow.now(), f"waiting for the owner of the node: {in_words(error)}")
        else:
            raise
        return
    incident.blocked = True
    before = (
        "somebody had cordoned it before" if blocked.marker.was_unschedulable else "it was schedulable before"
    )
    record(
        incident, RungName.BLOCK, started, proven=True, proof=f"taint, marker and cordon read back; {before}"
    )


async def drain(incident: Incident, rung: Rung) -> None:
    """Evict all pods of the node and see them gone."""
    if not await clear(incident, "drain"):
        return
    enter(incident, Phase.DRAINING)
    started = workflow.now()
    deadline = started + rung.timeout
    drained = await workflow.execute_activity_method(
        ClusterActivities.drain_pods,
        DrainPods(
            identity=incident.target,
            incident=incident.workflow_id,
            run_id=incident.run_id,
            started=started,
            deadline=deadline,
            policy=incident.plan.drain,
        ),
        summary=f"evict the pods of {incident.target.name} and see them gone by {deadline:%H:%M:%S} UTC",
        **until(deadline, started),
    )
    incident.drained = drained.outcome == "drained"
    if drained.outcome != "cancelled":  # the block or the node went away: the next look says which
        incident.drains = 0 if incident.drained else incident.drains + 1
    incident.blockers = list(drained.blockers)
    proof = f"{drained.outcome}: {drained.gone} pods gone, {drained.skipped} skipped"
    if not incident.drained:
        proof += f", {drained.blocked_total} left. {drained.message}"
    record(incident, RungName.DRAIN, started, proven=incident.drained, proof=proof)


async def repair(incident: Incident, step: ladder.Repair) -> None:
    """Reset, reboot or replace, and record the proof or its absence."""
    if not await clear(incident, step.rung.name):
        return
    phase, act = REPAIRS[step.rung.name]
    enter(incident, phase)
    started = workflow.now()
    try:
        proof = await act(incident, step)
    except repairs.NotSentError as error:
        await not_sent(incident, step, started, str(error))
        return
    except ActivityError as error:
        if is_cancelled_exception(error) or cause_type(error) in FOR_A_PERSON:
            raise
        proof = repairs.Proof(proven=False, text=in_words(error))
    if proof.target is not None:
        incident.target = proof.target
    record(incident, step.rung.name, started, proven=proof.proven, proof=proof.text)


async def not_sent(incident: Incident, step: ladder.Repair, started: datetime, why: str) -> None:
    """Pause before the next look and attempt; after the rung's timeout ask a person. No act is recorded."""
    if incident.unsent is None:
        incident.unsent = started
        incident.note(workflow.now(), f"{step.rung.name} was not asked for, trying again: {why}")
    if workflow.now() - incident.unsent >= step.rung.timeout:
        incident.question = why
        return
    await wait_for(
        lambda: incident.outcome is not None, NOT_SENT_PAUSE, f"before {step.rung.name} is tried again"
    )


async def validate_repair(incident: Incident, rung: Rung) -> None:
    """Validate the node. The result counts only if no newer fault refuted the repair meanwhile."""
    enter(incident, Phase.VALIDATING)
    started, repaired = workflow.now(), incident.repaired
    proof = await validate(incident, rung)
    if proof.inconclusive:
        incident.question = proof.text
    elif incident.repaired == repaired:
        incident.validated = proof.proven
        incident.validations += 0 if proof.proven else 1
    record(incident, RungName.VALIDATE, started, proven=proof.proven, proof=proof.text)


async def return_node(incident: Incident) -> None:
    """Remove what is ours from the validated node."""
    if not await clear(incident, "return"):
        return
    enter(incident, Phase.RETURNING)
    started = workflow.now()
    if not incident.validated:  # a fault came while we looked
        return
    undone = await unblock(incident)
    incident.blocked = False
    if undone.node_gone:
        incident.end(Outcome.EXPIRED, f"node {incident.target.name} went away before it could be returned")
        return
    incident.returned = incident.validated  # a fault that came while we unblocked has taken that back
    proof = f"removed {', '.join(undone.removed) or 'nothing'}"
    if undone.kept:
        proof += f"; kept {', '.join(undone.kept)}"
    record(incident, RungName.RETURN, started, proven=True, proof=proof)


async def ask_operator(incident: Incident, step: ladder.AskOperator) -> None:
    """Wait for a person, with block and slot held, and remind at intervals. Never silence."""
    incident.question = step.question
    enter(incident, Phase.NEEDS_OPERATOR)
    answered = await wait_for(
        lambda: incident.question is None or incident.outcome is not None,
        incident.plan.operator_reminder,
        "remind that a person is needed",
    )
    if not answered:
        incident.note(workflow.now(), f"still waiting for a person: {step.question}")
        workflow.logger.warning("node %s needs an operator: %s", incident.target.name, step.question)
        workflow.set_current_details(audit.live_details(incident))
    if incident.blocked and incident.outcome is None:
        await clear(incident, "going on")  # a person may have given the node back meanwhile


async def clear(incident: Incident, act: str) -> bool:
    """Look at the node before an act: same machine, same boot, our block in place.

    Returns False where something else is true, and has the incident say what follows from it.
    """
    seen = await workflow.execute_activity_method(
        ClusterActivities.observe_node,
        ObserveNode(name=incident.target.name, incident=incident.workflow_id),
        summary=f"before {act}: same machine, same boot, block in place?",
        **CLUSTER,
    )
    now = workflow.now()
    match inspect(incident.target, seen):
        case Gone(reason=reason):
            incident.end(Outcome.EXPIRED, reason)
        case Registered(identity=identity):
            incident.note(now, "the node registered again and lost the block; blocking it again")
            incident.target, incident.blocked, incident.drained = identity, False, False
        case Rebooted(identity=identity):
            incident.note(now, "somebody else rebooted the node: its hardware is validated before any act")
            incident.refute_repair()
            incident.target, incident.repaired, incident.drained = identity, now, False
        case Released(reason=reason):
            await unblock(incident)
            incident.blocked = False
            incident.end(Outcome.RELEASED, reason)
        case _:
            return True
    return False


async def unblock(incident: Incident) -> UnblockResult:
    """Remove what our marker says is ours."""
    return await workflow.execute_activity_method(
        ClusterActivities.unblock_node,
        UnblockNode(identity=incident.target, incident=incident.workflow_id, run_id=incident.run_id),
        summary=f"remove our block from {incident.target.name}, and only ours",
        **CLUSTER,
    )


def slot_request(incident: Incident) -> SlotRequest:
    """What the budget knows of this incident."""
    return SlotRequest(
        incident=incident.workflow_id,
        run_id=incident.run_id,
        node=incident.plan.identity.name,
        severity=severity(incident.plan.treatment),
        limit=incident.plan.budget,
    )


def enter(incident: Incident, phase: Phase) -> None:
    """Show the phase in the UI's list and in the details. Each change costs one event."""
    if incident.phase is not phase:
        incident.phase = phase
        workflow.upsert_search_attributes([RUNBOOK_PHASE.value_set(phase)])
    workflow.set_current_details(audit.live_details(incident))


def record(incident: Incident, rung: RungName, started: datetime, *, proven: bool, proof: str) -> None:
    """Record an act, and show it."""
    attempt = incident.attempts(rung) + 1
    incident.record(
        Act(rung=rung, attempt=attempt, proven=proven, proof=proof, started=started, ended=workflow.now())
    )
    if rung is RungName.REPLACE:
        workflow.upsert_search_attributes([RUNBOOK_HARDWARE.value_set(incident.hardware())])
    workflow.set_current_details(audit.live_details(incident))
