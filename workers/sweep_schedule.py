"""The Schedule of the sweep: made or brought up to date by the controller, and made again where it is gone.

Whether it is paused, and the note of whoever paused it, are a person's: both stay as they are.
"""

import asyncio
import logging
from datetime import timedelta

from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
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

AGAIN_SECONDS = 30.0
LOOK_SECONDS = 600.0
"""Between two looks for the Schedule: where the last one failed, and else."""

UNREACHABLE = (RPCError, RPCTimeoutOrCancelledError, TimeoutError, RuntimeError)
"""RuntimeError is what the SDK's client raises that cannot connect."""

log = logging.getLogger(__name__)


async def keep_schedule(client: Client, settings: Settings, stop: asyncio.Event) -> None:
    """Have the Schedule there until `stop` is set: incidents go on without it, so nothing else waits for it.

    Brought up to date once: of two versions side by side during an upgrade, the newer one began last.
    """
    up_to_date = False
    while not stop.is_set():
        made = await ensure_schedule(client, settings, update=not up_to_date)
        up_to_date = up_to_date or made
        try:
            async with asyncio.timeout(LOOK_SECONDS if made else AGAIN_SECONDS):
                await stop.wait()
        except TimeoutError:
            continue


async def ensure_schedule(client: Client, settings: Settings, *, update: bool = True) -> bool:
    """Make the Schedule, or bring it up to date. False, with a line in the log, where it fails."""
    name, wanted = sweep_id(settings.cluster), schedule(settings.cluster, settings.sweep_interval)
    try:
        try:
            await client.create_schedule(name, wanted)
        except ScheduleAlreadyRunningError:
            if update:
                await client.get_schedule_handle(name).update(lambda old: _updated(old, wanted))
    except UNREACHABLE as error:
        log.error(  # noqa: TRY400 - a trace would say no more
            "there may be no sweep: Temporal did not make the Schedule %s, which is tried again in %g s: %r",
            name,
            AGAIN_SECONDS,
            error,
        )
        return False
    return True


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
