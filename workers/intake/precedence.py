"""News go before repeats: who waits for a slot or a block waits for no repeat of what is known already."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST = 5.0
"""Seconds that repeats give way for, from the first of the news that come together."""


class Precedence:
    """Lets repeats wait while news are handed over, though not for ever."""

    def __init__(self) -> None:
        self._under_way = 0
        self._clear = asyncio.Event()
        self._clear.set()

    @contextmanager
    def news(self) -> Iterator[None]:
        """Hand over something new."""
        if not self._under_way:
            self._clear.clear()
            self._over = asyncio.get_running_loop().call_later(LONGEST, self._clear.set)
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._over.cancel()
                self._clear.set()

    async def give_way(self) -> None:
        """Wait until no news are under way, or they have had their time."""
        await self._clear.wait()
