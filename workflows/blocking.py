"""The steps around our block: put it on the node, look whether it stands, and take it off."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType

from gpu_runbooks.activities.contracts import ClusterActivities
from gpu_runbooks.activities.errors import (
    BLOCKED_BY_OTHER,
    HELD,
    NODE_CHANGED,
    NODE_NOT_FOUND,
    NOT_BLOCKED,
    OPTED_OUT,
    refusal,
)
from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.node import (
    BlockNode,
    BlockResult,
    NodeIdentity,
    NodeObservation,
    ObserveNode,
    UnblockNode,
    UnblockResult,
)
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.names import BLOCK_ANNOTATION, REPLACES_ANNOTATION
from gpu_runbooks.workflows.failures import cause_type, in_words, said
from gpu_runbooks.workflows.guard import Gone, Rebooted, Registered, Released, inspect
from gpu_runbooks.workflows.holding_slot import return_slot
from gpu_runbooks.workflows.incident import BY_HAND, Incident
from gpu_runbooks.workflows.options import CLUSTER
from gpu_runbooks.workflows.phases import Outcome, Phase, Runbook
from gpu_runbooks.workflows.recording import enter, record
from gpu_runbooks.workflows.standing import conditions_in

BREAKING_OFF = {"schedule_to_close_timeout": timedelta(seconds=30)}
"""Limits of the last look of an incident that was cancelled or failed."""

OTHER_OWNER_WAIT = timedelta(minutes=1)
"""How long to leave a node alone that another incident has blocked, before asking again."""


async def block(incident: Incident) -> None:
    """Taint and cordon the node, unless it is another machine by now, or somebody else's."""
    if incident.marker_due:
        await _mark(incident)
        return
    enter(incident, Phase.BLOCKING)
    started = workflow.now()
    try:
        # A node that registers again during its return has lost a block that was ours: it is put back.
        first = not incident.attempts(RungName.BLOCK)
        blocked = await _put_block(incident, only_adopt=incident.runbook is Runbook.RETURN and first)
    except ActivityError as error:
        kind = cause_type(error)
        if kind in {NODE_NOT_FOUND, NODE_CHANGED}:
            incident.end(Outcome.EXPIRED, in_words(error))
        elif kind == HELD:
            incident.end(Outcome.HELD, said(error))
        elif kind == OPTED_OUT and incident.runbook is Runbook.REMEDIATE and not _by_person(incident):
            incident.opted_out = True
        elif kind == OPTED_OUT:
            raise refusal(OPTED_OUT, f"{said(error)}; nothing was changed") from None
        elif kind == NOT_BLOCKED:
            raise refusal(NOT_BLOCKED, f"{said(error)}; nothing was changed") from None
        elif kind == BLOCKED_BY_OTHER:
            await return_slot(incident)
            incident.not_before = workflow.now() + OTHER_OWNER_WAIT
            incident.note(workflow.now(), f"waiting for the owner of the node: {in_words(error)}")
        else:
            raise
        return
    incident.blocked = True
    stood_before = blocked.adopted and blocked.marker.since < incident.opened
    if incident.runbook is Runbook.VALIDATE:
        incident.keeps_block = incident.keeps_block or stood_before
    elif incident.runbook in BY_HAND:  # one repair for whoever holds the node: it stays theirs
        incident.keeps_block = blocked.marker.held
    before = (
        "somebody had cordoned it before" if blocked.marker.was_unschedulable else "it was schedulable before"
    )
    stood = "our block stood already" if blocked.adopted else "taint, marker and cordon read back"
    record(incident, RungName.BLOCK, started, proven=True, proof=f"{stood}; {before}")


def _by_person(incident: Incident) -> bool:
    return incident.faults[0].source is FaultSource.MANUAL


async def _mark(incident: Incident) -> None:
    """Add the reason of a fault that joined to the marker of the block that stands."""
    if not await clear(incident, "adding a reason to the block"):
        return
    incident.marker_due = False
    try:
        await _put_block(incident, only_adopt=True)
    except ActivityError as error:
        if cause_type(error) != NOT_BLOCKED:  # given back this very moment: the next look says so
            raise


async def _put_block(incident: Incident, *, only_adopt: bool) -> BlockResult:
    by_hand = incident.runbook is not Runbook.REMEDIATE
    return await workflow.execute_activity_method(
        ClusterActivities.block_node,
        BlockNode(
            identity=incident.target,
            incident=incident.workflow_id,
            run_id=incident.run_id,
            rule=incident.plan.treatment.rule,
            reason=incident.why(),
            since=workflow.now(),
            hold=incident.runbook is Runbook.DRAIN,
            take_held=by_hand or incident.take_held,
            only_adopt=only_adopt,
            take_opted_out=incident.runbook in {Runbook.VALIDATE, Runbook.RETURN}
            or incident.attempts(RungName.BLOCK) > 0,
        ),
        summary=f"taint and cordon {incident.target.name}: {incident.why()}"[:200],
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        **CLUSTER,
    )


async def unblock(incident: Incident) -> UnblockResult:
    """Remove what our marker says is ours."""
    return await workflow.execute_activity_method(
        ClusterActivities.unblock_node,
        UnblockNode(identity=incident.target, incident=incident.workflow_id, run_id=incident.run_id),
        summary=f"remove our block from {incident.target.name}, and only ours",
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        **CLUSTER,
    )


async def remove_block(incident: Incident) -> None:
    """Remove our block at the end, on a person's word. What does not go is said in the reason of the end."""
    if not incident.blocked:
        return
    if incident.keeps_block:
        incident.reason += "; the block stood before and stays"
        return
    try:
        undone = await unblock(incident)
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        incident.reason += f"; the block could not be removed and may stand: {in_words(error)}"
        return
    incident.blocked = False
    removed = ", ".join(undone.removed) or "nothing of ours was there"
    incident.reason += f"; the block was removed without a validation ({removed})"
    if undone.kept:
        incident.reason += f"; kept {', '.join(undone.kept)}"


async def may_act(incident: Incident, act: str) -> bool:
    """Look at the node before an act that its owners may not want: also whether they opted out.

    A halt or a storm may have come while we looked: then nothing begins any more.
    """
    return await clear(incident, act) and not incident.opted_out and not incident.stopped


async def clear(incident: Incident, act: str) -> bool:
    """Look at the node before an act: same machine, same boot, our block in place.

    Returns False where something else is true, and has the incident say what follows from it.
    """
    return await conclude(
        incident, await observe(incident, f"before {act}: same machine, same boot, block in place?")
    )


async def observe(incident: Incident, question: str) -> NodeObservation:
    """Look at the node that the incident has blocked."""
    seen = await _look(incident, question)
    incident.gpus_seen, incident.karpenter = seen.gpus or 0, seen.karpenter
    return seen


async def conclude(incident: Incident, seen: NodeObservation) -> bool:
    """What follows from a look, as `clear` says it."""
    now = workflow.now()
    match inspect(incident.target, seen):
        case Gone(reason=reason) if incident.terminating:
            incident.note(now, f"{reason}, as its owner was asked to terminate it: its successor is to come")
            incident.refute_repair()
            incident.gone = True
        case Gone(reason=reason):
            incident.end(Outcome.EXPIRED, reason)
        case Registered(identity=identity):
            _block_again(incident, identity)
        case Rebooted(identity=identity):
            incident.note(now, "somebody else rebooted the node: its hardware is validated before any act")
            incident.refute_repair()
            incident.target, incident.repaired, incident.drained = identity, now, None
            incident.examined = None
        case Released() if incident.is_going:
            return incident.outcome is None  # its owner terminates it: there is nothing to give back
        case Released(reason=reason):
            await unblock(incident)
            incident.blocked = False
            incident.end(Outcome.RELEASED, reason)
            incident.note(now, reason)
        case _:
            return incident.outcome is None  # an abort may have come while we looked
    return False


async def what_stands(incident: Incident) -> str:
    """Whether the node of an incident that breaks off has our block, in words.

    It is looked at where the block was being written. That has ended by now: a cancellation waits for it.
    Nothing waits for the claim of a successor, which writes a block too, on a node that has no name yet.
    """
    if incident.gone and incident.terminated is not None:
        return (
            "is gone, and the node that replaces it may carry our block or not: it is the one whose "
            f"annotation {REPLACES_ANNOTATION} is {incident.workflow_id}"
        )
    if incident.phase in {Phase.BLOCKING, Phase.RETURNING}:
        try:
            seen = await _look(incident, "breaking off: does our block stand?", **BREAKING_OFF)
        except ActivityError:
            return f"may carry our block or not, see its annotation {BLOCK_ANNOTATION}"
        incident.blocked = seen.blocked
        return "has our block, and keeps it" if seen.blocked else "has no block of ours"
    return "had our block when last seen, and keeps it" if incident.blocked else "was not blocked"


async def came_back(incident: Incident) -> bool:
    """Look whether a machine that went away in its reboot registered again: then nothing replaces it unseen.

    One that its owner has terminated does not come back, whatever a dying kubelet registers.
    """
    if incident.is_going:
        return False
    seen = await _look(incident, "before replace: is the machine still away?")
    identity, before = seen.identity, incident.target
    if identity is None or identity.provider_id != before.provider_id:
        return False
    _block_again(incident, identity)
    incident.gone = False
    if identity.boot_id != before.boot_id:
        incident.refute_repair()
        incident.repaired = workflow.now()  # by its new boot: validated, before any stronger act
    return True


def _block_again(incident: Incident, identity: NodeIdentity) -> None:
    incident.note(workflow.now(), "the node registered again and lost the block; blocking it again")
    incident.target, incident.blocked = identity, False
    incident.drained = incident.examined = None  # any pod may have come


async def still_there(incident: Incident, act: str) -> bool:
    """Look whether a node that is not to be touched is still the machine and the boot of the fault."""
    seen = await _look(incident, f"before {act}: same machine, same boot?")
    match inspect(incident.target, seen, blocked=False):
        case Gone(reason=reason):
            incident.end(Outcome.EXPIRED, reason)
        case Registered(identity=identity):
            incident.target = identity
        case Rebooted():
            incident.end(Outcome.EXPIRED, "the node was rebooted since: what hung there is over")
        case _:
            return incident.outcome is None and not incident.opted_out
    return False


async def present(incident: Incident, act: str) -> bool:
    """Look at a node on which nothing was done yet. What stands after a reboot stands in the new boot."""
    seen = await _look(incident, f"before {act}: same machine, and do the reported conditions stand?")
    match inspect(incident.target, seen, blocked=False):
        case Gone(reason=reason):
            incident.end(Outcome.EXPIRED, reason)
            return False
        case Registered(identity=identity) | Rebooted(identity=identity):
            incident.target = identity
            return False
    return incident.outcome is None


async def _look(incident: Incident, question: str, **limits: Any) -> NodeObservation:
    asked, incident.looked = incident.standing(), True  # a fault that joins meanwhile wants another look
    incident.look_due = False
    try:
        seen: NodeObservation = await workflow.execute_activity_method(
            ClusterActivities.observe_node,
            ObserveNode(
                name=incident.target.name,
                incident=incident.workflow_id,
                run_id=incident.run_id,
                conditions=conditions_in(asked),
            ),
            summary=question,
            **(CLUSTER | limits),
        )
    except ActivityError:
        incident.looked = False
        raise
    if seen.identity is not None and seen.identity.uid == incident.target.uid:
        incident.opted_out = seen.opted_out
        incident.look_at(asked, seen.conditions, workflow.now())
    return seen
