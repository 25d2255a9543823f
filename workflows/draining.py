"""The two steps that have pods leave: of the whole node, or those that hold one GPU."""

import asyncio
import contextlib
from datetime import datetime

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType

from gpu_runbooks.activities.contracts import ClusterActivities
from gpu_runbooks.activities.model.drain import LONGEST_GRACE, DrainPods, DrainResult
from gpu_runbooks.activities.model.node_task import NodeTaskKind
from gpu_runbooks.activities.model.plan import Rung, RungName
from gpu_runbooks.workflows.acts import DrainScope
from gpu_runbooks.workflows.asking_agent import run_node_task
from gpu_runbooks.workflows.blocking import may_act, still_there
from gpu_runbooks.workflows.examining import in_words
from gpu_runbooks.workflows.holders import HoldersUnknownError, pods_holding
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder_steps import Drain
from gpu_runbooks.workflows.options import until
from gpu_runbooks.workflows.phases import Phase
from gpu_runbooks.workflows.policy.drain import longest_wait
from gpu_runbooks.workflows.recording import enter, record


async def drain(incident: Incident, step: Drain) -> None:
    """Have all pods leave the node, or those of one GPU, as policy says for each, and see them gone."""
    rung, pods = step.rung, step.pods
    if pods != ():  # where none has to leave, nothing is done, and the repair looks at the node itself
        if not await may_act(incident, "drain"):
            return
        enter(incident, Phase.DRAINING)
    started = workflow.now()
    scope = DrainScope.NODE if pods is None else DrainScope.GPU
    if scope is DrainScope.NODE:
        drained = await _have_pods_leave(incident, rung, f"drain {incident.target.name}")
    elif pods:
        drained = await _have_pods_leave(incident, rung, f"drain the {len(pods)} pods of the GPU", pods)
    else:
        drained = DrainResult(outcome="drained", message="no pod has the GPU; the others of the node work on")
    incident.drained = scope if drained.outcome == "drained" else None
    _record(incident, RungName.DRAIN, started, drained)


async def restart_workload(incident: Incident, rung: Rung) -> None:
    """End the pods that hold the GPUs of the faults, with the care of a drain, and leave all others."""
    if not await still_there(incident, "restarting a workload"):
        return
    enter(incident, Phase.RESTARTING_WORKLOAD)
    started, faults = workflow.now(), list(incident.workload_faults)
    measured = await run_node_task(
        incident,
        NodeTaskKind.MEASURE,
        attempt=incident.measurements(),
        timeout=rung.timeout,
        summary=f"ask the agent of {incident.target.name} which pods hold the GPU",
    )
    try:
        pods = pods_holding(measured.facts, faults)
    except HoldersUnknownError as error:
        incident.question = f"{error} (measurement {measured.outcome}: {measured.message})"
        return
    if incident.stopped:  # by a halt or a storm that came while we asked
        return
    drained = DrainResult(outcome="drained", message="no pod holds the GPU any more")
    if pods:
        drained = await _have_pods_leave(incident, rung, f"restart the {len(pods)} pods on the GPU", pods)
    if drained.outcome == "drained":
        incident.workload_faults = [fault for fault in incident.workload_faults if fault not in faults]
    _record(incident, RungName.RESTART_WORKLOAD, started, drained)


async def _have_pods_leave(
    incident: Incident, rung: Rung, what: str, only: tuple[str, ...] | None = None
) -> DrainResult:
    """The drain's result; `cancelled` where a person's word cut it short: an abort, or an order for a pod."""
    now, orders = workflow.now(), incident.orders
    incident.draining = True
    started = incident.drain_began = incident.drain_began or now
    waits_end = started + longest_wait(incident.plan.drain)
    deadline = max(now, waits_end) + rung.timeout
    draining = workflow.start_activity_method(
        ClusterActivities.drain_pods,
        DrainPods(
            identity=incident.target,
            incident=incident.workflow_id,
            run_id=incident.run_id,
            started=started,
            deadline=deadline,
            policy=incident.plan.drain,
            overrides=tuple(incident.overrides),
            only=only,
            restart=rung.name is RungName.RESTART_WORKLOAD,
            seen_until=max((fault.last_seen for fault in incident.workload_faults), default=None),
        ),
        summary=f"{what}, and see the pods gone by {deadline:%H:%M:%S} UTC",
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        **until(deadline + LONGEST_GRACE, now),
    )

    def interrupted() -> bool:
        return (
            incident.outcome is not None
            or incident.orders > orders
            or (incident.paused is not None and now < incident.paused.until)
        )

    # A cancellation of the incident itself is taken up by its next step, when this one is on record.
    with contextlib.suppress(asyncio.CancelledError):
        await workflow.wait_condition(lambda: draining.done() or interrupted())
    if not draining.done():
        draining.cancel()
    try:
        result: DrainResult = await draining
    except (ActivityError, asyncio.CancelledError) as error:
        if not is_cancelled_exception(error):
            raise
        return DrainResult(outcome="cancelled", message="cut short; its worker did not say what was done")
    finally:
        incident.draining = False
        if incident.orders == orders:  # else an order cut it short: the pods' waits go on
            incident.drain_began = None
    return result


def _record(incident: Incident, rung: RungName, started: datetime, drained: DrainResult) -> None:
    """Count the drain, and put it on record with its proof."""
    proven = drained.outcome == "drained"
    incident.left = drained.abandoned
    incident.blockers, incident.blockers_seen = list(drained.blockers), workflow.now()
    if drained.outcome != "cancelled":  # the block or the node went away: the next look says which
        incident.drains = 0 if proven else incident.drains + 1
    record(incident, rung, started, proven=proven, proof=_proof(drained), evidence=_evidence(drained))


def _proof(drained: DrainResult) -> str:
    """What the drain showed: counts, and where pods are left, how many and why."""
    ways = {
        "evicted": drained.evicted,
        "completed by themselves": drained.completed,
        "checkpointed first": drained.checkpointed,
        "deleted by order": drained.deleted,
    }
    how = ", ".join(f"{count} {way}" for way, count in ways.items() if count)
    text = f"{drained.outcome}: {drained.gone} pods gone" + (f" ({how})" if how else "")
    if drained.skipped:
        text += f", {drained.skipped} belong to the node"
    if drained.abandoned:
        text += f", {drained.abandoned} abandoned by order"
    if drained.outcome != "drained":
        text += f", {drained.blocked_total} left"
    return f"{text}. {drained.message}" if drained.message else text


def _evidence(drained: DrainResult) -> str:
    return "" if drained.evidence is None else in_words(drained.evidence)
