"""The step before each repair: the evidence is kept, and what is known of the hardware decides with it."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.activities.contracts import ClusterActivities, TemporalActivities
from gpu_runbooks.activities.errors import NODE_CHANGED, NODE_NOT_FOUND
from gpu_runbooks.activities.model.drain import EvidenceReference
from gpu_runbooks.activities.model.ledger import HardwareHistory
from gpu_runbooks.activities.model.node_task import Examination, ExamineNode
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows import ledger
from gpu_runbooks.workflows.acts import DrainScope, Examined
from gpu_runbooks.workflows.asking_agent import AGENT_START_LIMIT
from gpu_runbooks.workflows.blocking import clear
from gpu_runbooks.workflows.failures import cause_type
from gpu_runbooks.workflows.holders import one_gpu, pods_of, reset_alone, sees
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder_steps import Examine
from gpu_runbooks.workflows.options import RECALL, until
from gpu_runbooks.workflows.phases import Phase, Runbook
from gpu_runbooks.workflows.recording import enter, record
from gpu_runbooks.workflows.severity import REPAIRS

SILENT_LIMIT = timedelta(seconds=10)
"""For an agent that was silent before, in the same boot."""

LIMIT = timedelta(minutes=3)
"""For the whole bundle: what is not had by then is left out, and said."""


async def examine(incident: Incident, step: Examine) -> None:
    """Keep the evidence for the coming repair, and ask the ledger what this hardware has behind it."""
    enter(incident, Phase.EXAMINING)
    started = workflow.now()
    try:
        seen = await _gather(incident, step)
    except ActivityError as error:
        if is_cancelled_exception(error) or cause_type(error) not in {NODE_NOT_FOUND, NODE_CHANGED}:
            raise
        await clear(incident, "evidence")  # says what follows
        return
    kept = in_words(seen.evidence)
    for part in seen.missing:
        incident.note(workflow.now(), f"evidence without {part}")
    insisted = step.repair.name in incident.insisted
    if seen.other_repairer and not insisted:
        incident.question, incident.unanswered = seen.other_repairer, True
        return
    if not seen.evidence.location and incident.plan.repair.without_evidence == "stop" and not insisted:
        incident.question, incident.unanswered = f"the evidence is not kept, as policy demands: {kept}", True
        return
    gpu = one_gpu(seen.facts, incident.faulty_gpus()) if incident.names_only_gpus() else (None, None)
    unseen = gpu != (None, None) and not sees(seen.facts, gpu)
    if incident.all_gpus or (not unseen and reset_alone(seen.facts, gpu) is False):
        if incident.runbook is Runbook.RESET and gpu != (None, None) and not insisted:
            alone = (
                f"{gpu[0] or gpu[1]} cannot be reset by itself: all GPUs would be, behind a drain of the node"
            )
            incident.question = f"{alone}. Say escalate_to reset_gpu, or abort"
            return
        gpu = (None, None)
    examined = Examined(evidence=kept, gpu=gpu, pods=pods_of(seen.facts, gpu))
    incident.agent_silent = seen.agent_silent
    if step.repair.name is RungName.RESET_GPU and (seen.agent_silent or unseen):
        incident.skip_to(RungName.REBOOT)
        text = "not tried: no agent took the examination, and a reset needs one"
        if not seen.agent_silent:
            text = f"not tried: the driver does not see {gpu[0] or gpu[1]}, and no other GPU is reset for it"
        record(incident, RungName.RESET_GPU, started, proven=False, proof=text, evidence=kept)
    incident.examined = examined
    if incident.drained is DrainScope.GPU:
        incident.drained = None  # of the pods that had it before this look
    suspect = ledger.suspect(incident.target, seen.facts, incident.faulty_gpus())
    incident.machine, incident.faulty = list(suspect.machine), list(suspect.faulty)
    incident.know([*suspect.faulty, *suspect.machine])
    if not incident.recalled and incident.runbook is Runbook.REMEDIATE and not insisted:
        await _recall(incident, suspect)


async def _gather(incident: Incident, step: Examine) -> Examination:
    incident.examinations += 1
    now = workflow.now()
    patience = SILENT_LIMIT if incident.agent_silent else AGENT_START_LIMIT
    gathered: Examination = await workflow.execute_activity_method(
        ClusterActivities.examine_node,
        ExamineNode(
            identity=incident.target,
            incident=incident.workflow_id,
            run_id=incident.run_id,
            attempt=incident.examinations,
            reason=f"before {step.repair.name}: {incident.why()}",
            start_deadline=now + patience,
            deadline=now + LIMIT,
        ),
        summary=f"evidence of {incident.target.name} before {step.repair.name}",
        **until(now + LIMIT, now),
    )
    return gathered


async def _recall(incident: Incident, suspect: ledger.Suspect) -> None:
    """Begin where the ladder has not failed on this hardware before, and mind the caps."""
    repeats, now = incident.plan.repair.repeats, workflow.now()
    question = ledger.recall(suspect, repeats, incident.run_id, now)
    if question is None:
        return
    history: HardwareHistory = await workflow.execute_activity_method(
        TemporalActivities.recall_hardware,
        question,
        summary="what was done to this hardware before",
        **RECALL,
    )
    incident.recalled = True
    incident.begin_at = ledger.floor(history, suspect, repeats, now)
    incident.done_before = {rung: ledger.done(history, suspect, rung, repeats, now) for rung in REPAIRS}
    begins = "" if incident.named_ladder else ledger.floor_reason(history, suspect, repeats, now)
    for said in (begins, ledger.unknown_past(history, repeats, now)):
        if said:
            incident.note(now, said)


def in_words(kept: EvidenceReference) -> str:
    """Digest, size and place of evidence, or why it has no place."""
    return f"{kept.digest} ({kept.size} bytes) " + (kept.location or f"not kept: {kept.problem}")
