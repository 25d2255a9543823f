"""`FleetSweep`: finds what was left behind, by whatever end of a workflow, and mends what is safe to mend."""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel, Field, ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.activities.contracts import ClusterActivities
    from gpu_runbooks.activities.errors import BAD_INPUT, refusal
    from gpu_runbooks.activities.model.page import Page
    from gpu_runbooks.workflows.failures import in_words
    from gpu_runbooks.workflows.options import SWEEP_CLUSTER
    from gpu_runbooks.workflows.sweep_report import (
        MOST_UNREAD,
        SweepResult,
        counts,
        first,
        fitting,
        pages,
        stood,
        table,
    )
    from gpu_runbooks.workflows.sweeping import Sweep


class SweepStart(BaseModel):
    """Input of a sweep."""

    cluster: str = Field(min_length=1)
    interval_seconds: float = Field(default=600, gt=0)
    """Between two sweeps: an alert lasts for several of them."""


@workflow.defn
class FleetSweep:
    """Compares what a cluster carries of ours with what Temporal knows, by the Schedule `sweep/<cluster>`.

    It keeps nothing beside its result, which the next one reads: killed at any moment it does no harm.
    """

    @workflow.run
    async def run(self, raw: Any = None) -> SweepResult:
        start = read_sweep(raw)
        before = _last()
        sweep = Sweep(start.cluster, before.taken_up_to)
        await sweep.run()
        interval = timedelta(seconds=start.interval_seconds)
        listed = first(sweep.findings)
        result = fitting(
            SweepResult(
                nodes=sweep.nodes,
                incidents=len(sweep.incidents or ()),
                held=sweep.held,
                counts=counts(sweep.findings),
                findings=listed,
                unlisted=len(sweep.findings) - len(listed),
                unread=tuple(sweep.unread[:MOST_UNREAD]),
                stood=stood(
                    sweep.findings,
                    before.stood,
                    workflow.now(),
                    interval,
                    complete=not sweep.unread,
                ),
                taken_up_to=sweep.taken_up_to,
            )
        )
        workflow.set_current_details(table(result))
        texts = {each.key: each.text for each in sweep.findings}
        for page in pages(start.cluster, result.stood, before.stood, texts, workflow.now()):
            if not await _call(page):
                break
        return result


def read_sweep(raw: Any) -> SweepStart:
    """Read the input. Raises `BadInput`: a typed argument would leave the run stuck."""
    try:
        return SweepStart.model_validate(raw)
    except ValidationError as error:
        raise refusal(
            BAD_INPUT, f'bad input of FleetSweep, write for example {{"cluster": "default"}}: {error}'
        ) from None


def _last() -> SweepResult:
    """Result of the sweep before, by the same Schedule; an empty one where none can be read."""
    last: Any = workflow.get_last_completion_result() if workflow.has_last_completion_result() else None
    try:
        return SweepResult.model_validate(last or {})
    except ValidationError:
        return SweepResult()


async def _call(page: Page) -> bool:
    """Raise, repeat or take back an alert. False where nobody could do so: the result says all the same."""
    try:
        await workflow.execute_activity_method(
            ClusterActivities.page, page, summary=f"call a person: {page.summary}"[:200], **SWEEP_CLUSTER
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        workflow.logger.warning("nobody was called: %s", in_words(error))
        return False
    return True
