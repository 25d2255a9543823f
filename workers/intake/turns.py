"""Callers that wait for the same thing at the same moment share one answer, begun after all of them came.

So an answer is never older than its question: whoever comes while one is being worked out gets the next.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Turn(Generic[T]):
    """A piece of work that several callers wait for."""

    def __init__(self, begun: Callable[["Turn[T]"], None]) -> None:
        self.callers = 1
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._begun = begun

    def begin(self) -> int:
        """Close the turn to further callers, and tell how many there are. Work looks at things after it."""
        self._begun(self)
        return self.callers


class Turns(Generic[T]):
    """Turns by what they are about."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, Turn[T]] = {}

    async def share(self, key: Hashable, work: Callable[[Turn[T]], Awaitable[T]]) -> tuple[T, bool]:
        """The answer to `key`, and whether it was worked out for this caller first.

        `work` has to call `begin` when its wait is over. Its errors reach every caller; where the first is
        cancelled, the others get `TimeoutError`.
        """
        if (turn := self._waiting.get(key)) is not None:
            turn.callers += 1
            return await asyncio.shield(turn.answer), False

        def begun(of: Turn[T]) -> None:
            if self._waiting.get(key) is of:
                del self._waiting[key]

        turn = self._waiting[key] = Turn(begun)
        try:
            answer = await work(turn)
        except BaseException as error:
            given_up = TimeoutError("the caller that this one waited with gave up")
            turn.answer.set_exception(error if isinstance(error, Exception) else given_up)
            turn.answer.exception()  # nobody else may wait: then asyncio would log it as an error
            raise
        finally:
            begun(turn)
        turn.answer.set_result(answer)
        return answer, True
