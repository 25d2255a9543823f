"""Mending what a sweep found: one activity each, which reads the state again before it acts."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.activities.model.sweep import LookAgain, Mended, TakenUp, TakeUp
from gpu_runbooks.activities.sweep.contract import SweepOfCluster, SweepOfTemporal
from gpu_runbooks.workflows.failures import in_words
from gpu_runbooks.workflows.options import SWEEP_CLUSTER, SWEEP_TEMPORAL
from gpu_runbooks.workflows.sweep_findings import (
    CALLS_A_PERSON,
    ClearLeftovers,
    DeleteWork,
    Found,
    ResumeServices,
)
from gpu_runbooks.workflows.sweep_report import Did, Finding, finding

TAKEN = frozenset({"started", "joined", "duplicate"})
"""Answers of the intake after which an open incident has the fault."""


async def mend(found: Found) -> Finding:
    """Mend what was found, where it can be mended."""
    if found.mend is None:
        return finding(found, Did.REPORTED if found.kind in CALLS_A_PERSON else Did.LEFT)
    try:
        did, more = await _mend(found)
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return finding(found, Did.FAILED, in_words(error))
    return finding(found, did, more)


async def _mend(found: Found) -> tuple[Did, str]:
    match found.mend:
        case ClearLeftovers(seen=seen):
            return _of(
                await workflow.execute_activity_method(
                    SweepOfCluster.clear_leftovers,
                    seen,
                    summary=f"take what is ours off {seen.name}",
                    **SWEEP_CLUSTER,
                )
            )
        case ResumeServices(seen=seen):
            return _of(
                await workflow.execute_activity_method(
                    SweepOfCluster.resume_left_services,
                    seen,
                    summary=f"have the GPU services of {seen.name} run again",
                    **SWEEP_CLUSTER,
                )
            )
        case DeleteWork(work=work):
            return _of(
                await workflow.execute_activity_method(
                    SweepOfCluster.delete_work,
                    work,
                    summary=f"delete {work.kind} {work.name}",
                    **SWEEP_CLUSTER,
                )
            )
        case TakeUp() as request:
            taken: TakenUp = await workflow.execute_activity_method(
                SweepOfCluster.take_up_condition,
                request,
                summary=f"take up {request.type} of {request.node}",
                **SWEEP_CLUSTER,
            )
            return _taken(taken)
        case LookAgain() as request:
            looked = await workflow.execute_activity_method(
                SweepOfTemporal.look_again,
                request,
                summary=f"have {request.incident} look at its node",
                **SWEEP_TEMPORAL,
            )
            return (Did.MENDED, "it looks at its node") if looked.told else (Did.LEFT, looked.why)
        case _:
            return Did.REPORTED, ""


def _of(mended: Mended) -> tuple[Did, str]:
    if mended.changed:
        return Did.CHANGED, "it was not as it had been seen, so nothing was done"
    return Did.MENDED, ", ".join(mended.done) or "nothing was left of it"


def _taken(taken: TakenUp) -> tuple[Did, str]:
    if taken.status in TAKEN:
        return Did.MENDED, f"an incident has it now ({taken.status})"
    if taken.status == "over":
        return Did.CHANGED, taken.reason
    if taken.status == "unavailable":
        return Did.LATER, taken.reason
    return Did.LEFT, f"{taken.status}: {taken.reason}"
