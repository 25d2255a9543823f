"""Questions to the driver from the event loop, with a limit that holds when the driver never answers.

A call that blocks inside the kernel cannot be cancelled or killed. It is left alone in its thread; while it
is there no second one is started, and every further question is answered at once: unresponsive.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from gpu_runbooks.workers.node_agent.nvml import DriverUnavailable, Measurement

ANSWER_LIMIT = 10.0
"""Seconds for a whole measurement. A healthy driver needs a fraction of one."""

Answer = TypeVar("Answer")


class DriverUnresponsive(DriverUnavailable):
    """The driver did not answer in time: a reset would hang as well, only a reboot helps."""


class Driver(Protocol):
    """The blocking side: `nvml.Nvml`."""

    def measure(self) -> Measurement: ...

    def within(self, question: Callable[[], Answer]) -> Answer: ...

    def close(self) -> None: ...


class Probe:
    """The one way to the driver. Measurements wait for each other, and for a reset."""

    def __init__(self, driver: Driver, limit: float = ANSWER_LIMIT) -> None:
        self._driver = driver
        self._limit = limit
        self._turn = asyncio.Lock()
        self._asked: Future[Any] | None = None

    async def measure(self) -> Measurement:
        """Raises `DriverUnavailable`, or its case `DriverUnresponsive` after the limit."""
        async with self._turn:
            return await self._ask(self._driver.measure)

    async def ask(self, question: Callable[[], Answer], *, limit: float | None = None) -> Answer:
        """Call NVML in the driver's session, with a limit in seconds of its own where that is given.

        Raises `DriverUnavailable`, or its case `DriverUnresponsive` after the limit.
        """
        async with self._turn:
            return await self._ask(lambda: self._driver.within(question), limit)

    @asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        """Let go of the devices, and keep off them until the block ends.

        Raises `DriverUnresponsive` where the driver does not even let go.
        """
        async with self._turn:
            await self._ask(self._driver.close)
            yield

    async def _ask(self, question: Callable[[], Answer], limit: float | None = None) -> Answer:
        if self._asked is not None and not self._asked.done():
            raise DriverUnresponsive("an earlier call into the driver has still not returned")
        promise: Future[Answer] = Future()
        # Marked as running: giving up below must not cancel it under the thread that will fill it in.
        promise.set_running_or_notify_cancel()
        self._asked = promise
        threading.Thread(target=_fulfil, args=(promise, question), name="nvml", daemon=True).start()
        answer = asyncio.wrap_future(promise)
        answered, _ = await asyncio.wait({answer}, timeout=limit or self._limit)
        if not answered:
            answer.cancel()
            raise DriverUnresponsive(f"no answer from the driver within {limit or self._limit:g} s")
        return answer.result()


def _fulfil(promise: Future[Answer], question: Callable[[], Answer]) -> None:
    try:
        promise.set_result(question())
    except BaseException as error:  # noqa: BLE001 - whatever it was, it is the answer
        promise.set_exception(error)
