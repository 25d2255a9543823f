"""The decision: what an incident does next. Pure: state and clock in, one step out."""

from dataclasses import dataclass
from datetime import datetime

from gpu_runbooks.activities.model.plan import Rung, RungName
from gpu_runbooks.workflows.incident import BLOCKS, REPAIRS, Incident, restarts_workload, severity
from gpu_runbooks.workflows.phases import Outcome, Runbook


@dataclass(frozen=True)
class Tolerate:
    """Wait: the fault may clear by itself, or another incident still owns the node."""

    until: datetime


@dataclass(frozen=True)
class HoldSlot:
    """Ask the pool's budget for permission to disrupt this node."""


@dataclass(frozen=True)
class Block:
    rung: Rung


@dataclass(frozen=True)
class Drain:
    rung: Rung


@dataclass(frozen=True)
class RestartWorkload:
    """End the pods that hold the GPU of the evidence, and leave the node alone."""

    rung: Rung


@dataclass(frozen=True)
class Repair:
    """Reset, reboot or replace, and wait for the proof."""

    rung: Rung
    attempt: int


@dataclass(frozen=True)
class Validate:
    rung: Rung


@dataclass(frozen=True)
class Return:
    rung: Rung


@dataclass(frozen=True)
class AskOperator:
    question: str


@dataclass(frozen=True)
class Close:
    outcome: Outcome
    reason: str


Step = (
    Tolerate | HoldSlot | Block | Drain | RestartWorkload | Repair | Validate | Return | AskOperator | Close
)


def next_step(incident: Incident, now: datetime) -> Step:
    """The next step of an incident.

    Escalates only on proof: a repair that took effect is validated before anything stronger is tried, and
    one that did not, or whose validation failed, leads to the next rung. When the ladder has no rung left,
    a person is asked; the block and the slot stay.
    """
    ended = _ended(incident)
    if ended is not None:
        return ended
    treatment = incident.plan.treatment
    rungs = {rung.name: rung for rung in treatment.rungs}
    if now < incident.not_before and not incident.blocked:
        return Tolerate(incident.not_before)
    if not incident.slot_held and incident.runbook is not Runbook.RETURN:
        return HoldSlot()
    if incident.question is not None:
        return AskOperator(incident.question)
    if restarts_workload(treatment):
        return _restart(incident, rungs[RungName.RESTART_WORKLOAD])
    if not incident.blocked or incident.marker_due:
        return Block(rungs[RungName.BLOCK])
    if severity(treatment) == BLOCKS and RungName.DRAIN in rungs and not incident.drained:
        return _drain(incident, rungs[RungName.DRAIN])
    if incident.validated:
        return Return(rungs[RungName.RETURN])
    if incident.repaired is not None and incident.validations < rungs[RungName.VALIDATE].attempts:
        return Validate(rungs[RungName.VALIDATE])
    return _climb(incident, rungs, now)


def _ended(incident: Incident) -> Close | None:
    """The end of the incident, once there is nothing left to do."""
    treatment = incident.plan.treatment
    if incident.outcome is not None:
        return Close(incident.outcome, incident.reason)
    if not incident.blocked and not incident.acts:
        if not treatment.rungs:
            return Close(Outcome.LEFT_ALONE, f"rule {treatment.rule}: the node is not touched")
        if not incident.plan.enforce:
            return Close(Outcome.OBSERVED, f"mode observe: ladder {treatment.ladder} would have begun")
    if incident.returned:
        replaced = incident.target.instance_id != incident.plan.identity.instance_id
        return Close(Outcome.REPLACED if replaced else Outcome.RETURNED, "validated and back in service")
    if incident.runbook is Runbook.DRAIN and incident.drained:
        left = f"empty but for {incident.left} abandoned pods" if incident.left else "empty"
        return Close(Outcome.DRAINED, f"{left}; blocked until a runbook ReturnNode gives it back")
    if restarts_workload(treatment) and not incident.workload_faults:
        left = f", but for {incident.left} that were abandoned" if incident.left else ""
        return Close(
            Outcome.RESTARTED, f"the pods that held the GPU have ended{left}; the node was not touched"
        )
    return None


def _climb(incident: Incident, rungs: dict[RungName, Rung], now: datetime) -> Step:
    """Drain, then the mildest repair that is not used up."""
    repair = _next_repair(incident, rungs)
    if repair is None:
        return AskOperator(_nothing_left(incident))
    ended = (act.ended for act in incident.acts if act.rung is not RungName.DRAIN)
    last = max(ended, default=incident.opened)
    if now < last + repair.wait:
        return Tolerate(last + repair.wait)
    if not incident.drained:
        return _drain(incident, rungs[RungName.DRAIN])
    return Repair(repair, incident.attempts(repair.name) + 1)


def _restart(incident: Incident, rung: Rung) -> Step:
    if incident.drains >= rung.attempts:
        return AskOperator(f"the workload could not be restarted in {incident.drains} attempts")
    return RestartWorkload(rung)


def _drain(incident: Incident, rung: Rung) -> Step:
    if incident.drains >= rung.attempts:
        return AskOperator(f"the node could not be drained in {incident.drains} attempts")
    return Drain(rung)


def _nothing_left(incident: Incident) -> str:
    """What was tried, and the last thing that went wrong."""
    tried = ", ".join(act.rung for act in incident.acts if act.rung in REPAIRS) or "it has no repair"
    failed = [act for act in incident.acts if not act.proven and act.rung is not RungName.DRAIN]
    last = f"; last {failed[-1].rung}: {failed[-1].proof}" if failed else ""
    return f"ladder {incident.plan.treatment.ladder} has no rung left ({tried}){last}"


def _next_repair(incident: Incident, rungs: dict[RungName, Rung]) -> Rung | None:
    """The mildest repair with attempts left, never milder than one already tried or asked for."""
    tried = [REPAIRS.index(act.rung) for act in incident.acts if act.rung in REPAIRS]
    floor = max([*tried, REPAIRS.index(incident.floor) if incident.floor else 0])
    for name in REPAIRS[floor:]:
        rung = rungs.get(name)
        if rung is not None and incident.attempts(name) < rung.attempts + incident.granted.get(name, 0):
            return rung
    return None
