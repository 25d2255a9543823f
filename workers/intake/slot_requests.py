"""Asking the pools' budgets for the slots of the incidents that were just opened.

An incident asks by itself where this fails, so nobody waits for it and nothing is tried again. Of a burst
each pool gets a few signals, in place of one from every incident.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator

from temporalio.client import Client, RPCTimeoutOrCancelledError
from temporalio.service import RPCError

from gpu_runbooks.activities.model.slot import SlotRequest
from gpu_runbooks.activities.temporal import Temporal

GATHER_SECONDS = 0.1
"""How long a request waits for others to go with it."""

LONGEST_SIGNAL = 12 * 1024
"""Bytes of the requests of one signal: a payload stays under 16 KiB with all that is around them."""

SEND_SECONDS = 5.0
"""Time limit of one signal, with the start of the budget where it does not run."""

UNSENT = (RPCError, RPCTimeoutOrCancelledError, TimeoutError, RuntimeError)

log = logging.getLogger(__name__)


def signals(requests: Iterable[SlotRequest]) -> Iterator[list[SlotRequest]]:
    """As few signals as can be, each short enough."""
    together: list[SlotRequest] = []
    room = LONGEST_SIGNAL
    for request in requests:
        length = len(request.model_dump_json().encode()) + 1
        if together and length > room:
            yield together
            together, room = [], LONGEST_SIGNAL
        together.append(request)
        room -= length
    if together:
        yield together


class SlotRequests:
    """Requests of the incidents of one cluster, over one client. One signal is under way per pool."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._temporal = Temporal(client)
        self._cluster = cluster
        self._gathered: dict[str, list[SlotRequest]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}

    def ask(self, pool: str, request: SlotRequest) -> None:
        """Send a request soon, with others of its pool."""
        self._gathered.setdefault(pool, []).append(request)
        if pool not in self._sending:
            self._sending[pool] = asyncio.create_task(self._send(pool))

    async def _send(self, pool: str) -> None:
        """Send what is asked for in a pool until nothing more comes."""
        try:
            while True:
                await asyncio.sleep(GATHER_SECONDS)
                if not (requests := self._gathered.pop(pool, [])):
                    return
                for together in signals(requests):
                    await self._signal(pool, together)
        finally:
            del self._sending[pool]

    async def _signal(self, pool: str, requests: list[SlotRequest]) -> None:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._temporal.request_slots(self._cluster, pool, requests)
        except UNSENT as error:
            log.warning(
                "%d incidents of pool %s ask for their slots by themselves: %r", len(requests), pool, error
            )
