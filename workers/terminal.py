"""What the commands write to a terminal: single lines, and a word while they wait."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from rich.console import Console

from gpu_runbooks.workers.printable import printable

QUIET = 3.0
"""Seconds without a word."""


def say(console: Console, text: str) -> None:
    """One line as it is: no markup, no colours of its own, and no break by the width of a terminal."""
    console.print(printable(text, 10_000), soft_wrap=True, markup=False, highlight=False)


@asynccontextmanager
async def progress(console: Console, text: Callable[[], str]) -> AsyncIterator[None]:
    """Say what takes so long, once it does."""

    async def show() -> None:
        await asyncio.sleep(QUIET)
        if not console.is_terminal:
            console.print(f"{text()} ...", markup=False, soft_wrap=True)
            return
        with console.status(text()) as status:
            while True:
                await asyncio.sleep(0.5)
                status.update(text())

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing
