"""Live Nodes for the alerts of one notification: each asked for once, when the first alert needs it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

from gpu_runbooks.activities.kubernetes.client import KubernetesError, Object

AT_ONCE = 50
"""Nodes that are asked for at the same time: an alert may name several."""

Find = Callable[[str], Awaitable[Object | None]]


class LiveNodes:
    """What was asked for, by name. At the end of the block nobody is asked any more."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._limit = asyncio.Semaphore(AT_ONCE)
        self._asked: dict[str, asyncio.Task[Object | KubernetesError | None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)

    async def found(self, names: Iterable[str]) -> dict[str, Object | KubernetesError]:
        """Nodes of these names, and why one could not be asked for. Names that no Node has are missing."""
        asked = {name: self._ask(name) for name in names}
        if asked:
            await asyncio.wait(asked.values())  # whoever gives up leaves the answers to the others
        answers = {name: task.result() for name, task in asked.items()}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def _ask(self, name: str) -> asyncio.Task[Object | KubernetesError | None]:
        if name not in self._asked:
            self._asked[name] = asyncio.create_task(self._one(name))
        return self._asked[name]

    async def _one(self, name: str) -> Object | KubernetesError | None:
        async with self._limit:
            try:
                return await self._find(name)
            except KubernetesError as error:
                return error
