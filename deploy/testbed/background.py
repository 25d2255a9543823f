"""Work that runs beside other work, with plain errors instead of groups of them."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from testbed.processes import PartFailedError


async def together(*work: Coroutine[Any, Any, Any]) -> None:
    """Run all at once. The first that fails ends the others, and its error is raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


@asynccontextmanager
async def beside(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Run endless work while the body runs. If it fails, the body ends and `PartFailedError` is raised."""
    body = asyncio.current_task()
    failures: list[BaseException] = []

    def note(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()):
            failures.append(error)
            if body:
                body.cancel()

    tasks = [asyncio.create_task(one) for one in work]
    for task in tasks:
        task.add_done_callback(note)
    try:
        yield
    except asyncio.CancelledError:
        if not failures:
            raise
    finally:
        await _cancel(tasks)
    if failures:
        raise PartFailedError(f"a part of the testbed itself failed: {failures[0]!r}") from failures[0]


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
