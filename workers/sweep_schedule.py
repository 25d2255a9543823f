"""The Schedule of the sweep: made at the controller's start, or brought up to date.

Whether it is paused, and the note of whoever paused it, are a person's: both stay as they are.
"""

import logging
from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError

from gpu_runbooks.activities.names import REMEDIATION_QUEUE, sweep_id
from gpu_runbooks.workers.settings import Settings

CATCHUP = timedelta(minutes=5)
"""Sweeps that were missed for longer are left out: one sweep finds what all of them would have found."""

LONGEST = timedelta(hours=1)
"""A sweep that takes longer has nobody who works for it. The next one begins anew."""

JITTER_SHARE = 10
"""Part of the interval by which a sweep is late at random: clusters that share a server do not meet."""

log = logging.getLogger(__name__)


async def ensure_schedule(client: Client, settings: Settings) -> None:
    """Make the Schedule, or bring it up to date. Incidents go on without it, so a refusal is only logged."""
    name, wanted = sweep_id(settings.cluster), schedule(settings.cluster, settings.sweep_interval)
    try:
        try:
            await client.create_schedule(name, wanted)
        except ScheduleAlreadyRunningError:
            await client.get_schedule_handle(name).update(lambda old: _updated(old, wanted))
    except RPCError as error:
        log.error(  # noqa: TRY400 - a trace would say no more
            "there is no sweep: Temporal refused the Schedule %s (%s): %s. The next start tries again",
            name,
            error.status.name,
            error.message,
        )


def schedule(cluster: str, interval: timedelta) -> Schedule:
    """The Schedule as it should be."""
    return Schedule(
        action=ScheduleActionStartWorkflow(
            "FleetSweep",
            {"cluster": cluster, "interval_seconds": interval.total_seconds()},
            id=sweep_id(cluster),
            task_queue=REMEDIATION_QUEUE,
            execution_timeout=LONGEST,
            memo={"cluster": cluster},
            static_summary=f"sweep of cluster {cluster}: what was left behind, and what nobody took up",
        ),
        spec=ScheduleSpec(
            intervals=[ScheduleIntervalSpec(every=interval)],
            jitter=interval / JITTER_SHARE,
        ),
        policy=SchedulePolicy(
            overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCHUP, pause_on_failure=False
        ),
    )


def _updated(old: ScheduleUpdateInput, wanted: Schedule) -> ScheduleUpdate:
    wanted.state = old.description.schedule.state
    return ScheduleUpdate(wanted)
