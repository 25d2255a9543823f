"""Places to work at: a source has so many of its signals in work at the same time.

An application's fault that is held, to see whether other nodes of its job have it, is not in work, nor is a
repeat that waits for news: it gives its place up, so that nothing waits behind it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar


class _Place:
    """A place that one signal has, until it is given up."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free: asyncio.Semaphore | None = free

    def give_up(self) -> None:
        if self._free is not None:
            self._free.release()
            self._free = None


_TAKEN: ContextVar[_Place | None] = ContextVar("place", default=None)


class Places:
    """A number of places, taken in the order in which they were asked for."""

    def __init__(self, number: int) -> None:
        self._free = asyncio.Semaphore(number)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Have a place for as long as the block lasts, unless `give_up_place` is called in it."""
        await self._free.acquire()
        place = _Place(self._free)
        outer = _TAKEN.set(place)
        try:
            yield
        finally:
            _TAKEN.reset(outer)
            place.give_up()


def give_up_place() -> None:
    """Give the place of this task to another signal, for good. What comes after a wait is little."""
    if (place := _TAKEN.get()) is not None:
        place.give_up()
