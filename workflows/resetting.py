"""The rung `reset_gpu`: GPU services out of the way, the reset by the node's agent, its proof by NVML."""

from temporalio import workflow
from temporalio.exceptions import ActivityError

from gpu_runbooks.activities.contracts import ClusterActivities
from gpu_runbooks.activities.model.node_task import NodeTaskKind, NodeTaskResult, ResetOutcome
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.model.repair import PauseGpuServices, ResumedGpuServices, ResumeGpuServices
from gpu_runbooks.workflows.asking_agent import run_node_task
from gpu_runbooks.workflows.failures import in_words
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder_steps import Repair
from gpu_runbooks.workflows.options import CLUSTER, until
from gpu_runbooks.workflows.proof import NotSentError, Proof, refuse_overtaken

HOPELESS = frozenset({ResetOutcome.UNSUPPORTED, ResetOutcome.LOST, ResetOutcome.UNRESPONSIVE})
"""Outcomes after which another reset would end the same way."""

UNTOUCHED = frozenset({ResetOutcome.BUSY, ResetOutcome.NEEDS_PEERS, ResetOutcome.UNSUPPORTED})
"""Outcomes that leave the GPU as it was."""


async def reset_gpu(incident: Incident, step: Repair) -> Proof:
    """Reset the faulty GPU, or all of the node where it cannot be reset by itself.

    Raises `NotSentError` where somebody else is at work on the GPU services. Whatever comes of the reset,
    they are resumed by the step that the ladder gives next.
    """
    # Taken before anything is awaited: a fault of another GPU that joins now must not widen this reset.
    gpu = incident.examined.gpu if incident.examined else incident.faulty_gpu()
    incident.reset_gpu = gpu
    if impossible := await _pause_services(incident, step):
        incident.skip_to(RungName.REBOOT)
        return Proof(proven=False, text=f"nothing was reset: {impossible}", tried=False)
    refuse_overtaken(incident, step)
    incident.reset_began = workflow.now()
    result = await run_node_task(
        incident,
        NodeTaskKind.RESET_GPU,
        attempt=step.attempt,
        timeout=step.rung.timeout,
        summary=f"reset {gpu[0] or gpu[1] or 'all GPUs'} of {incident.target.name}",
        gpu=gpu,
    )
    _conclude(incident, result)
    message = result.message.partition("\n")[0][:200]
    return Proof(
        proven=result.outcome == "succeeded",
        text=f"{result.outcome}: {message}",
        tried=result.outcome != "not_started" and result.reset not in UNTOUCHED,
    )


async def resume_services(incident: Incident) -> None:
    """Put the GPU services back as they were seen."""
    resumed: ResumedGpuServices = await workflow.execute_activity_method(
        ClusterActivities.resume_gpu_services,
        ResumeGpuServices(identity=incident.target, incident=incident.workflow_id, run_id=incident.run_id),
        summary=f"have the GPU services of {incident.target.name} run again",
        **CLUSTER,
    )
    incident.services_paused = False
    if resumed.kept:
        kept = ", ".join(resumed.kept)
        incident.note(workflow.now(), f"GPU services that somebody else changed meanwhile, left so: {kept}")


async def resume_before_leaving(incident: Incident) -> None:
    """Resume what is paused as the incident ends. What does not work is said, and left to the sweep."""
    if not incident.services_paused:
        return
    try:
        await resume_services(incident)
    except ActivityError as error:
        incident.note(workflow.now(), f"the GPU services are still paused: {in_words(error)}")


async def _pause_services(incident: Incident, step: Repair) -> str:
    """Have stopped what holds the GPUs open. Returns why that is impossible here; empty where it is not."""
    now = workflow.now()
    deadline = now + step.rung.timeout / 2
    incident.services_paused = True
    paused = await workflow.execute_activity_method(
        ClusterActivities.pause_gpu_services,
        PauseGpuServices(
            identity=incident.target,
            incident=incident.workflow_id,
            run_id=incident.run_id,
            deadline=deadline,
        ),
        summary=f"stop the GPU services of {incident.target.name} that hold handles",
        **until(deadline, now),
    )
    if paused.outcome not in {"paused", "failed"}:
        incident.services_paused = False
    if paused.outcome == "deferred":
        raise NotSentError(f"nothing was reset: {paused.message}")
    if paused.outcome == "failed":
        incident.note(now, f"GPU services did not stop in time, resetting all the same: {paused.message}")
    return paused.message if paused.outcome == "impossible" else ""


def _conclude(incident: Incident, result: NodeTaskResult) -> None:
    """What the outcome means for the next attempt."""
    if result.reset is ResetOutcome.NEEDS_PEERS and not incident.all_gpus:
        # Nothing was reset: once more with all of them, behind a drain of the whole node.
        incident.all_gpus = True
        granted = incident.granted.get(RungName.RESET_GPU, 0)
        incident.granted = {**incident.granted, RungName.RESET_GPU: granted + 1}
    elif result.reset in HOPELESS:
        incident.skip_to(RungName.REBOOT)
