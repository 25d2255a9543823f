"""What a node is asked to do through its agent: one NodeTask, and its result."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.activities.contracts import ClusterActivities
from gpu_runbooks.activities.model.node_task import DeleteNodeTask, NodeTaskKind, NodeTaskResult, RunNodeTask
from gpu_runbooks.workflows.failures import in_words
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.options import CLUSTER, until

AGENT_START_LIMIT = timedelta(seconds=60)
"""An agent takes a task within seconds; one that has not after this is gone."""

ACTS = frozenset({NodeTaskKind.RESET_GPU, NodeTaskKind.REBOOT})
"""Kinds that must not be done twice."""


async def run_node_task(
    incident: Incident,
    kind: NodeTaskKind,
    *,
    attempt: int,
    timeout: timedelta,
    summary: str,
    gpu: tuple[str | None, str | None] = (None, None),
) -> NodeTaskResult:
    """Have the agent of the incident's node do something; `gpu` is UUID and PCI address of the one to reset.

    The task of an act is deleted by an activity of its own, after its result is in the history: a death in
    between can then never cause a second reset. One that only measures is gone when its result is here.
    """
    now = workflow.now()
    result: NodeTaskResult = await workflow.execute_activity_method(
        ClusterActivities.run_node_task,
        RunNodeTask(
            identity=incident.target,
            incident=incident.workflow_id,
            run_id=incident.run_id,
            kind=kind,
            attempt=attempt,
            gpu_uuid=gpu[0],
            gpu_pci_address=gpu[1],
            start_deadline=now + min(AGENT_START_LIMIT, timeout / 2),
            deadline=now + timeout,
        ),
        summary=summary,
        **until(now + timeout, now),
    )
    if kind in ACTS:
        await _delete(incident, result.task)
    return result


async def _delete(incident: Incident, task: str) -> None:
    """Delete a task. What it did counts also where it stays: nobody carries it out again."""
    try:
        await workflow.execute_activity_method(
            ClusterActivities.delete_node_task,
            DeleteNodeTask(task=task),
            summary=f"remove the finished task {task}",
            **CLUSTER,
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        incident.note(workflow.now(), f"NodeTask {task} is left behind: {in_words(error)}")
