"""The decision: what an incident does next. Pure: state and clock in, one step out."""

from datetime import datetime, timedelta

from gpu_runbooks.activities.model.plan import Rung, RungName
from gpu_runbooks.workflows.acts import DrainScope
from gpu_runbooks.workflows.endings import end_of, observed
from gpu_runbooks.workflows.gates import (
    approval_needed,
    closed,
    grouped,
    loop_question,
    nothing_left,
    notice_due,
    returns_unknown,
    word_needed,
)
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder_steps import (
    WITH_SLOT,
    AskOperator,
    Block,
    Close,
    Drain,
    Examine,
    GroupWait,
    HoldSlot,
    Look,
    NotifyOwner,
    Recall,
    Reconsider,
    Repair,
    RestartWorkload,
    ResumeServices,
    Return,
    StayPaused,
    Step,
    Tolerate,
    Validate,
    Watch,
)
from gpu_runbooks.workflows.opting_out import OPTED_OUT
from gpu_runbooks.workflows.phases import Outcome, Runbook
from gpu_runbooks.workflows.severity import BLOCKS, REPAIRS, restarts_workload, severity
from gpu_runbooks.workflows.standing import conditions_in

REGISTERS_WITHIN = timedelta(minutes=5)
"""How long a machine whose Node went away in its reboot has to register again."""


def next_step(incident: Incident, now: datetime) -> Step:
    """The next step of an incident.

    Escalates only on proof: a repair that took effect is validated before anything stronger is tried, and
    one that did not, or whose validation failed, leads to the next rung. When the ladder has no rung left,
    a person is asked; the block and the slot stay. Whatever disrupts needs a slot that no halt and no storm
    stops; finishing, validating and returning never need one.
    """
    step = _decide(incident, now)
    if incident.looks_again and not isinstance(step, Close):
        return Look()
    if incident.paused is not None and now < incident.paused.until and not _puts_back(incident, step):
        ends = [step.until] if isinstance(step, Watch) else []
        return StayPaused(min([incident.paused.until, *ends]))
    if incident.opted_out and not incident.gone and isinstance(step, WITH_SLOT):
        return AskOperator(OPTED_OUT)
    if _needs_slot(incident, step) and not (incident.slot_held and not incident.stopped):
        return HoldSlot()
    return step


def is_still_next(incident: Incident, step: Repair, now: datetime) -> bool:
    """Whether a repair is still right: a word, a halt or a fault may have come while its node was looked at.

    That GPU services are stopped for it does not speak against it.
    """
    return next_step(incident.model_copy(update={"services_paused": False}), now) == step


def _puts_back(incident: Incident, step: Step) -> bool:
    """Whether a step goes on in a pause: the end, and what of ours stood, or was stopped by us, before it."""
    again = isinstance(step, Block) and incident.taken_out
    return again or isinstance(step, Close | ResumeServices)


def _needs_slot(incident: Incident, step: Step) -> bool:
    """Whether a step needs permission. A block that was ours is put back without, and a successor claimed."""
    if isinstance(step, Repair) and (incident.is_going or (incident.gone and incident.terminating)):
        return False
    if isinstance(step, Block):
        free = incident.taken_out or incident.plan.budget.block_waiting
        return not free and incident.runbook is not Runbook.RETURN
    return isinstance(step, WITH_SLOT)


def _decide(incident: Incident, now: datetime) -> Step:
    """What would be next, were nobody to be asked for permission."""
    over = end_of(incident, now)
    if over is not None:
        return over
    if incident.returned and incident.watched_until is not None and not incident.due(now):
        return Watch(min([incident.watched_until, *(each.until for each in incident.pending)]))
    first = _decide_first(incident, now)
    if first is not None:
        return first
    treatment = incident.plan.treatment
    rungs = {rung.name: rung for rung in treatment.rungs}
    if restarts_workload(treatment):
        return _restart(incident, rungs[RungName.RESTART_WORKLOAD], now)
    if incident.services_paused:
        return ResumeServices()
    if not incident.gone and (not incident.blocked or incident.marker_due):
        return Block(rungs[RungName.BLOCK])
    if incident.vouched and not incident.gone:
        return _give_back(incident, rungs)
    if (first := _before_any_act(incident, now)) is not None:
        return first
    left_out = RungName.DRAIN not in rungs or RungName.DRAIN in incident.skipped
    if severity(treatment) == BLOCKS and not left_out and incident.drained is not DrainScope.NODE:
        return _drain(incident, rungs[RungName.DRAIN], now)
    if incident.validated:
        return _give_back(incident, rungs)
    if incident.repaired is not None and incident.validations < rungs[RungName.VALIDATE].attempts:
        return Validate(rungs[RungName.VALIDATE])
    return _climb(incident, rungs, now)


def _before_any_act(incident: Incident, now: datetime) -> Step | None:
    """What comes between the block and the first thing that is done to a blocked node."""
    if not incident.gone and now < (until := grouped(incident)):
        return _group_wait(incident, until)
    if returns_unknown(incident):
        return Recall()
    question = loop_question(incident)
    return AskOperator(question) if question else None


def _group_wait(incident: Incident, until: datetime) -> GroupWait:
    """To the end, or until a tolerated fault counts: it may want the node blocked."""
    return GroupWait(min([until, *(each.until for each in incident.pending)]))


def _give_back(incident: Incident, rungs: dict[RungName, Rung]) -> Step:
    """Return the node, once no tolerated fault may still count against it."""
    if incident.pending:
        return Tolerate(min(each.until for each in incident.pending))
    return Return(rungs[RungName.RETURN])


def _decide_first(incident: Incident, now: datetime) -> Step | None:
    """What comes before any rung: plan, tolerate, look, have the slot, and answers to what is asked."""
    if incident.due(now):
        return Reconsider()
    if not incident.blocked and now < (begins := _begins(incident)):
        return Tolerate(begins)
    unseen = not incident.looked and bool(conditions_in(incident.standing()))
    if not incident.plan.enforce and not incident.begun:
        return Look() if unseen else Close(Outcome.OBSERVED, observed(incident))
    notice = notice_due(incident)
    if notice is not None and incident.question is None:
        return _approval(incident, notice, now) or NotifyOwner(notice)
    if notice is None and _begins_with_slot(incident):
        return HoldSlot()  # before the look: what it shows is to be as fresh as can be
    if incident.question is not None:
        return AskOperator(incident.question, incident.asking, incident.escalates)
    return Look() if unseen and (not incident.begun or incident.validated) else None


def _begins_with_slot(incident: Incident) -> bool:
    """Whether the first thing that would be done needs permission."""
    first = not incident.taken_out and not incident.blocked
    free = incident.plan.budget.block_waiting and not restarts_workload(incident.plan.treatment)
    return first and not free and not incident.slot_held and incident.runbook is not Runbook.RETURN


def _begins(incident: Incident) -> datetime:
    """When the first of the faults counts."""
    tolerated = [each.until for each in incident.pending]
    nothing = severity(incident.plan.treatment) == 0 and notice_due(incident) is None
    if tolerated and (nothing or not incident.decisive):
        return min(tolerated)
    return min([incident.not_before, *tolerated])


def _climb(incident: Incident, rungs: dict[RungName, Rung], now: datetime) -> Step:
    """Drain, then the mildest repair that is not used up."""
    repair = _next_repair(incident, rungs)
    if repair is None:
        return AskOperator(nothing_left(incident))
    ended = (act.ended for act in incident.acts if act.rung is not RungName.DRAIN)
    last = max(ended, default=incident.opened)
    away = incident.gone and not incident.terminating
    wait = max(repair.wait, REGISTERS_WITHIN) if away else repair.wait
    if now < last + wait:
        return Tolerate(last + wait)
    if incident.terminating and incident.gone:
        return Repair(repair, incident.attempts(repair.name) + 1)
    ordered = incident.ordered.get(repair.name, 0) > incident.attempts(repair.name)
    if not ordered and (question := word_needed(incident, repair)):
        return AskOperator(question, escalates=True)
    if (not ordered or repair.approval_by_other) and (wanted := _approval(incident, repair, now)):
        empty = incident.gone or incident.drained is not None
        return wanted if empty else _closed(incident, now) or wanted
    if incident.gone:
        return Repair(repair, incident.attempts(repair.name) + 1)
    if incident.examined is None:
        return Examine(repair)
    scope = _scope(incident, repair)
    if incident.drained not in {scope, DrainScope.NODE}:
        pods = incident.examined.pods if scope is DrainScope.GPU else None
        return _drain(incident, rungs[RungName.DRAIN], now, pods)
    return Repair(repair, incident.attempts(repair.name) + 1)


def _approval(incident: Incident, rung: Rung, now: datetime) -> AskOperator | None:
    question = approval_needed(incident, rung, now)
    return AskOperator(question, approves=rung.name) if question else None


def _closed(incident: Incident, now: datetime) -> Tolerate | None:
    """The wait for a window. Approval is asked for behind it: given by day, it would be over by night."""
    wait = closed(incident, now)
    return Tolerate(*wait) if wait else None


def _scope(incident: Incident, repair: Rung) -> DrainScope:
    """What has to be empty before this repair: the GPU alone only where its pods are surely known."""
    alone = (
        repair.name is RungName.RESET_GPU
        and incident.plan.repair.reset_scope == "gpu"
        and not incident.all_gpus
        and incident.examined is not None
        and incident.examined.pods is not None
    )
    return DrainScope.GPU if alone else DrainScope.NODE


def _restart(incident: Incident, rung: Rung, now: datetime) -> Step:
    if not incident.workload_faults:  # done, and the end waits for what is tolerated
        return Tolerate(min(each.until for each in incident.pending))
    if now < (until := grouped(incident)):
        return _group_wait(incident, until)
    if incident.drains >= rung.attempts:
        return AskOperator(f"the workload could not be restarted in {incident.drains} attempts")
    return _closed(incident, now) or _approval(incident, rung, now) or RestartWorkload(rung)


def _drain(incident: Incident, rung: Rung, now: datetime, pods: tuple[str, ...] | None = None) -> Step:
    if incident.drains >= rung.attempts:
        return AskOperator(f"the node could not be drained in {incident.drains} attempts", escalates=True)
    return _closed(incident, now) or _approval(incident, rung, now) or Drain(rung, pods)


def _next_repair(incident: Incident, rungs: dict[RungName, Rung]) -> Rung | None:
    """The mildest repair with attempts left: none milder than one tried, asked for, or that failed before."""
    floors = [act.rung for act in incident.acts if act.rung in REPAIRS]
    floors += [incident.floor] if incident.floor else []
    by_person = incident.ordered or incident.named_ladder
    floors += [incident.begin_at] if incident.begin_at and not by_person else []
    for name in REPAIRS[max(map(REPAIRS.index, floors), default=0) :]:
        rung = rungs.get(name)
        if name in incident.skipped:
            continue
        if rung is not None and incident.attempts(name) < rung.attempts + incident.granted.get(name, 0):
            return rung
    return None
