"""Waiting with a block on the node: whoever takes it off, or changes the machine, is noticed meanwhile."""

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.workflows.blocking import clear
from gpu_runbooks.workflows.failures import in_words
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.waits import wait_for

LOOK_EVERY = timedelta(minutes=5)
"""How long a node can be given back without anybody noticing. Each look costs a timer and an activity."""


async def stand_by(
    incident: Incident, condition: Callable[[], bool], deadline: timedelta, summary: str
) -> bool:
    """Wait as `wait_for`, and look at a blocked node at intervals. True where either is news.

    The pause, its end, and a word that the incident is over are news as well.
    """
    ends, paused = workflow.now() + deadline, incident.paused

    def news() -> bool:
        return condition() or incident.outcome is not None or incident.paused is not paused

    while True:
        left = ends - workflow.now()
        looks = incident.blocked and not incident.gone and not incident.is_going
        if await wait_for(news, min(left, LOOK_EVERY) if looks else left, summary):
            return True
        if workflow.now() >= ends:
            return False
        if not await _is_as_before(incident):
            return True


async def _is_as_before(incident: Incident) -> bool:
    """Whether a look shows nothing new. One without an answer shows nothing."""
    try:
        return await clear(incident, "waiting on")
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        incident.note(workflow.now(), f"the node could not be looked at: {in_words(error)}")
        return True
