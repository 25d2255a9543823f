"""Asking the pools' budgets for the slots of the incidents that were just opened.

An incident asks by itself where this fails, so nobody waits for it and nothing is tried again.
"""

import asyncio
import logging

from temporalio.client import Client

from gpu_runbooks.activities.model.slot import EnsureBudget, SlotRequest
from gpu_runbooks.activities.temporal import Temporal
from gpu_runbooks.workers.intake.delivered import UNREACHABLE

AT_ONCE = 8
"""Requests under way. More of them end no sooner: a budget takes one after the other."""

SEND_SECONDS = 5.0
"""Time limit of one request, with the start of the budget where it does not run."""

log = logging.getLogger(__name__)


class SlotRequests:
    """Requests of the incidents of one cluster, over one client."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._temporal = Temporal(client)
        self._cluster = cluster
        self._limit = asyncio.Semaphore(AT_ONCE)
        self._sending: set[asyncio.Task[None]] = set()

    def ask(self, pool: str, request: SlotRequest) -> None:
        """Send a request soon."""
        asked = EnsureBudget(cluster=self._cluster, pool=pool, request=request)
        task = asyncio.create_task(self._send(asked))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, request: EnsureBudget) -> None:
        async with self._limit:
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await self._temporal.ensure_budget(request)
            except UNREACHABLE as error:
                incident = request.request.incident
                log.warning("%s is to ask for its slot of pool %s itself: %r", incident, request.pool, error)
