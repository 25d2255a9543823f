"""The alert of an incident that waits for a person: raised, repeated, and taken back."""

from datetime import timedelta
from typing import Any, Literal

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.activities.contracts import ClusterActivities
from gpu_runbooks.activities.model.page import Page, Paged
from gpu_runbooks.workflows.asking import KEPT_UP, NOT_REACHED, STANDS
from gpu_runbooks.workflows.failures import in_words
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.options import BRIEFLY, CLUSTER
from gpu_runbooks.workflows.recording import show

NEEDED = "GpuRunbookNeedsOperator"
"""A question stands."""

LEFT = "GpuRunbookLeftBlocked"
"""An incident ended without an answer, and the node keeps its block."""

LEFT_STANDS = timedelta(hours=24)

PROMPT: dict[str, Any] = {
    **CLUSTER,
    "schedule_to_close_timeout": timedelta(minutes=2),
    "start_to_close_timeout": timedelta(seconds=30),
    "retry_policy": BRIEFLY,
}
"""Nobody waits long for an alert: it is repeated anyway."""


async def call_person(incident: Incident) -> None:
    """Raise the alert of the question that stands, or repeat it. Who is not reached stops nothing."""
    first = not incident.paged
    incident.paged = True
    act = "call a person" if first else "repeat the alert that a person is needed"
    paged = await _send(_needed(incident, over=False), act)
    incident.page_reached, problem = paged.reached, paged.problem
    if problem != incident.page_problem:
        incident.page_problem = problem
        said = f"not everybody was called: {problem}" if problem else "everybody is called now"
        incident.note(workflow.now(), said)
    incident.page_again = workflow.now() + (NOT_REACHED if problem else KEPT_UP)
    show(incident)


async def call_louder(incident: Incident) -> None:
    """Have the alert raised anew as critical, and the milder one taken back."""
    await take_back(incident)
    incident.overdue = True


async def take_back(incident: Incident) -> None:
    """Take back the alert that stands; nothing where none does. One that cannot be reached ends by itself."""
    if not incident.paged:
        return
    incident.paged, incident.page_again, incident.page_problem = False, None, ""
    await _send(_needed(incident, over=True), "take back the alert that a person is needed")


async def say_left_blocked(incident: Incident) -> None:
    """Raise an alert for a node that keeps its block although nobody works on it any more."""
    now = workflow.now()
    name = incident.target.name
    page = Page(
        alert=LEFT,
        labels=_labels(incident),
        node=name,
        summary=f"node {name} stays blocked, and no incident is open for it: {incident.reason}",
        advice=f"Start the runbook ReturnNode for it, or ReplaceNode. {_where(incident)}",
        since=now,
        until=now + LEFT_STANDS,
    )
    await _send(page, "say that the node stays blocked")


async def _send(page: Page, summary: str) -> Paged:
    """Who was reached, and why somebody was not."""
    try:
        paged: Paged = await workflow.execute_activity_method(
            ClusterActivities.page, page, summary=summary, **PROMPT
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return Paged(problem=in_words(error))
    return paged


def _needed(incident: Incident, *, over: bool) -> Page:
    now = workflow.now()
    severity: Literal["warning", "critical"] = "critical" if incident.overdue else "warning"
    asked = incident.question or "it was answered, or is no longer asked"
    return Page(
        alert=NEEDED,
        severity=severity,
        labels=_labels(incident),
        node=incident.target.name,
        summary=f"node {incident.target.name} needs a person: {asked}",
        advice=_where(incident),
        since=incident.asked_since or now,
        until=now + STANDS,
        over=over,
    )


def _labels(incident: Incident) -> dict[str, str]:
    """What a site can route by. The same for as long as the question stands: other labels, another alert."""
    return {
        "cluster": incident.cluster,
        "pool": incident.plan.pool,
        "node": incident.plan.identity.name,
        "workflow": incident.workflow_id,
        "runbook": incident.runbook,
        **({"owners": incident.plan.owners} if incident.plan.owners else {}),
    }


def _where(incident: Incident) -> str:
    return (
        f"The details of workflow {incident.workflow_id} in Temporal have the commands to answer; on a "
        f"command line: temporal workflow query --workflow-id {incident.workflow_id} --type status"
    )
