"""What the incidents of a node make of a fault, before any of them is told of it."""

from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus

from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.workers.intake.closed_incidents import Known, is_first_fault, known_before
from gpu_runbooks.workers.intake.delivered import Delivered
from gpu_runbooks.workers.intake.handover import latest
from gpu_runbooks.workers.intake.openings import Arrival
from gpu_runbooks.workers.intake.repeats import Repeats
from gpu_runbooks.workers.intake.staleness import Decision, decide
from gpu_runbooks.workflows.opting_out import OWNERS_WORD, how_to_opt_in
from gpu_runbooks.workflows.phases import Phase
from gpu_runbooks.workflows.search_attributes import RUNBOOK_PHASE
from gpu_runbooks.workflows.severity import notifies_owner, severity

REPAIRING = frozenset({Phase.RESETTING_GPU, Phase.REBOOTING, Phase.REPLACING})


@dataclass(frozen=True)
class Judged:
    """How a fault stands to the incidents of its node."""

    running: bool
    run_id: str
    decision: Decision
    episode: str
    """Of the node, for the guard of the fleet."""
    answer: Delivered | None = None
    """What became of it already."""
    by_repair: bool = False
    """A repair of ours explains it: a node that boots is not Ready."""


async def judge(client: Client, repeats: Repeats, workflow_id: str, arrival: Arrival) -> Judged:
    """What the incidents of the node make of a fault without being told of it."""
    fault = arrival.report.fault
    last = await latest(client, workflow_id)
    running = last is not None and last.status is WorkflowExecutionStatus.RUNNING
    run_id = (last.run_id or "") if last is not None else ""
    episode = _episode(last, fault)
    if not running and _is_left_to_owners(arrival.report):
        name = arrival.report.plan.identity.name
        answer = Delivered("ignored", "", "", f"{OWNERS_WORD}. {how_to_opt_in(name)}")
        return Judged(running, run_id, Decision(), episode, answer)
    if last is not None and running:
        known = repeats.knows(workflow_id, run_id, fault.fingerprint)
        if known or await is_first_fault(last, arrival.report):
            duplicate = Delivered("duplicate", workflow_id, run_id)
            return Judged(running, run_id, Decision(), episode, duplicate)
    before = Known() if last is None else await known_before(client, last, arrival.report)
    decision = decide(
        fault,
        now=datetime.now(UTC),
        max_age=arrival.max_age,
        boot_id=arrival.report.plan.identity.boot_id,
        wrong=arrival.wrong,
        dealt=before.dealt,
        unsettled=before.unsettled,
    )
    if not decision.ignored:
        return Judged(running, run_id, decision, episode, by_repair=_is_by_repair(last, fault))
    dealt = before.dealt.run_id if before.dealt else ""
    ignored = Delivered("ignored", workflow_id if dealt else "", dealt, decision.ignored)
    return Judged(running, run_id, decision, episode, ignored)


def _is_left_to_owners(report: FaultReport) -> bool:
    """Whether an incident would end at once, since the node's owners opted out. Telling them is no touch."""
    treatment = report.plan.treatment
    only_tells = notifies_owner(treatment) and severity(treatment) == 0
    return report.plan.opted_out and not only_tells


def _is_by_repair(last: WorkflowExecutionDescription | None, fault: Fault) -> bool:
    """Whether a condition changes under a repair that the node's own incident does at this moment."""
    if last is None or last.status is not WorkflowExecutionStatus.RUNNING:
        return False
    phase = last.typed_search_attributes.get(RUNBOOK_PHASE)
    return fault.source is FaultSource.CONDITION and phase in REPAIRING


def _episode(last: WorkflowExecutionDescription | None, fault: Fault) -> str:
    """Time of a node in which a signature says nothing new to the guard of the fleet.

    One of an open incident. On a node that is back, though it is watched, each fault is one of its own.
    """
    if last is None or last.status is not WorkflowExecutionStatus.RUNNING:
        return fault.fingerprint
    watched = last.typed_search_attributes.get(RUNBOOK_PHASE) == Phase.PROBATION
    return fault.fingerprint if watched else last.raw_info.first_run_id
