"""Heartbeats of an activity, so that the death of its worker is noticed and cancellation reaches it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from temporalio import activity

Beat = Callable[[object], None]
"""Tell how far the work is. Details replace the earlier ones and must stay small."""

SHARE_OF_TIMEOUT = 1 / 3
"""Two beats may be lost before the server takes the worker for dead."""


@asynccontextmanager
async def beating() -> AsyncIterator[Beat]:
    """Heartbeat every third of the activity's heartbeat timeout while the body runs.

    The last details are sent again each time: a beat without details would erase them. Outside an activity,
    and for an activity without a heartbeat timeout, nothing is sent.
    """
    timeout = activity.info().heartbeat_timeout if activity.in_activity() else None
    if not timeout:
        yield lambda _: None
        return
    details: tuple[object, ...] = ()

    def beat(progress: object) -> None:
        nonlocal details
        details = (progress,)
        activity.heartbeat(*details)

    async def keep_beating() -> None:
        while True:  # the start counts as the first beat: most activities end before they need another
            await asyncio.sleep(timeout.total_seconds() * SHARE_OF_TIMEOUT)
            activity.heartbeat(*details)

    beats = asyncio.create_task(keep_beating())
    try:
        yield beat
    finally:
        beats.cancel()
