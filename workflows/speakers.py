"""Who said what a workflow was told: the identity that the server saw stands in the history."""

from collections.abc import Iterable
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.activities.contracts import TemporalActivities
from gpu_runbooks.activities.model.speakers import FindSpeakers, Speakers
from gpu_runbooks.activities.names import TEMPORAL_QUEUE
from gpu_runbooks.workflows.failures import in_words
from gpu_runbooks.workflows.heard import Heard
from gpu_runbooks.workflows.operator import Signed

PATIENCE = timedelta(seconds=20)
"""For one reading of the history, a retry included."""


def heard(word: Signed, note: str) -> list[Heard]:
    """What the update orders that is handled now, if one is. The note names its operator behind `by`."""
    update = workflow.current_update_info()
    if update is None:
        return []
    return [Heard(update=update.id, operator=word.operator, at=workflow.now(), note=note)]


async def find_identities(run_id: str, updates: Iterable[str]) -> dict[str, str]:
    """Identities by the id of the update, of a run of this workflow; what is not found is left out.

    Raises `ActivityError`.
    """
    speakers: Speakers = await workflow.execute_activity_method(
        TemporalActivities.find_speakers,
        FindSpeakers(workflow_id=workflow.info().workflow_id, run_id=run_id, updates=tuple(updates)),
        task_queue=TEMPORAL_QUEUE,
        start_to_close_timeout=PATIENCE / 2,
        schedule_to_close_timeout=PATIENCE,
        retry_policy=RetryPolicy(maximum_attempts=3),
        summary="whose words these were, by the history",
    )
    return speakers.identities


async def identities_of(words: Iterable[Heard]) -> dict[str, str]:
    """The same for words of this run. Empty without an answer: the order counts all the same."""
    try:
        return await find_identities(workflow.info().run_id, [word.update for word in words])
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        workflow.logger.warning("the server's identity of who spoke is not known: %s", in_words(error))
        return {}
