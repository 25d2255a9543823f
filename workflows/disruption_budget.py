"""`DisruptionBudget`: the one holder of a pool's slots."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.activities.contracts import TemporalActivities
    from gpu_runbooks.activities.model.slot import FindClosedIncidents, FindHolders, SlotRequest
    from gpu_runbooks.workflows.options import TEMPORAL
    from gpu_runbooks.workflows.slots import Slots, read_request

HOLDER_CHECK = timedelta(minutes=1)
"""How often holders and waiters are checked to be alive: a terminated incident returns no slot."""

HOLDERS_AT_ONCE = 50
"""Holders in one question: a payload stays under 16 KiB."""


@workflow.defn
class DisruptionBudget:
    """Grants the slots of one pool, serialised. Lives as long as the pool; continues as new.

    Incidents signal `request_slot` (idempotent, sent again on a timer) and `return_slot`; a grant is the
    signal `slot_granted` to the incident.
    """

    @workflow.init
    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._repeated: list[SlotRequest] = []
        self._news = False
        self._checked = workflow.now()

    @workflow.run
    async def run(self, slots: Slots) -> None:  # noqa: ARG002 - taken in by __init__
        if not self._slots.complete:
            await self._take_over()
        while True:
            await self._grant()
            if not (self._slots.holders or self._slots.waiters):
                await workflow.wait_condition(lambda: self._news)
                self._checked = workflow.now()
            elif (rest := self._checked + HOLDER_CHECK - workflow.now()) > timedelta(0):
                with contextlib.suppress(TimeoutError):
                    await workflow.wait_condition(
                        lambda: self._news, timeout=rest, timeout_summary="next check of the holders"
                    )
            else:
                await self._drop_closed()
            if workflow.info().is_continue_as_new_suggested():
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(self._slots)

    @workflow.signal(description="An incident asks for permission to disrupt its node")
    def request_slot(self, raw: Any = None, *_: Any) -> None:
        request = read_request(raw)
        if request is None:
            workflow.logger.warning("ignoring a request_slot that is none: %s", str(raw)[:200])
            return
        self._slots.request(request)
        if self._slots.holds(request):
            self._repeated.append(request)  # it asks again: the grant may not have reached it
        self._news = True

    @workflow.signal(description="An incident is done with its node, or withdraws its request")
    def return_slot(self, raw: Any = None, *_: Any) -> None:
        request = read_request(raw)
        if request is not None:
            self._slots.give_up(request)
            self._news = True

    @workflow.query(description="Holders, waiters and the limit")
    def state(self) -> Slots:
        return self._slots

    async def _grant(self) -> None:
        """Grant what is free and tell the incidents; one that is gone gives its slot up at once."""
        while self._news or self._slots.waiters:
            self._news = False
            granted = [*self._slots.grant(), *self._repeated]
            self._repeated = []
            workflow.set_current_details(self._details())
            if not granted:
                return
            await asyncio.gather(*(self._tell(holder) for holder in granted))

    async def _tell(self, holder: SlotRequest) -> None:
        try:
            await workflow.get_external_workflow_handle(holder.incident).signal("slot_granted", holder)
        except (ApplicationError, FailureError):
            self._slots.give_up(holder)
            self._news = True

    async def _take_over(self) -> None:
        """Somebody may have terminated the budget before this one; its holders still disrupt their nodes."""
        found = await workflow.execute_activity_method(
            TemporalActivities.find_holders,
            FindHolders(cluster=self._slots.cluster, pool=self._slots.pool),
            summary=f"which incidents of pool {self._slots.pool} disrupt a node already?",
            **TEMPORAL,
        )
        self._repeated += self._slots.take_over(found.holders)
        self._news = True

    async def _drop_closed(self) -> None:
        self._checked = workflow.now()
        known = (*self._slots.holders, *self._slots.waiters)
        for first in range(0, len(known), HOLDERS_AT_ONCE):
            await self._drop_closed_of(known[first : first + HOLDERS_AT_ONCE])

    async def _drop_closed_of(self, known: tuple[SlotRequest, ...]) -> None:
        found = await workflow.execute_activity_method(
            TemporalActivities.find_closed_incidents,
            FindClosedIncidents(incidents=known),
            summary=f"are the {len(known)} incidents with a slot or a request still open?",
            **TEMPORAL,
        )
        for closed in found.closed:
            self._slots.give_up(closed)

    def _details(self) -> str:
        holders = "\n".join(
            f"- {holder.node} ([incident]({holder.incident}))" for holder in self._slots.holders
        )
        waiters = "\n".join(f"- {waiter.node}" for waiter in self._slots.waiters)
        return (
            f"**{len(self._slots.holders)} of {self._slots.limit()} slots** of pool "
            f"`{self._slots.pool}` are held.\n\n"
            f"Holders\n{holders or '- none'}\n\nWaiting\n{waiters or '- none'}"
        )
