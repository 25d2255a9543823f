"""Handing a fault to Temporal: it opens the incident of its node, or joins the one that is open.

The answer is given only when the fault is durable: in the input of a running incident, or in an update that
its workflow accepted. Every path may be taken again with the same fault. A repeat costs one description of
the incident and no event; those that wait at the same moment for the same fault share one answer.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from weakref import WeakValueDictionary

from temporalio.client import Client, RPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.activities.model.fault import ConditionCleared
from gpu_runbooks.activities.model.fleet import AlertsTruncated
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.activities.names import fleet_id, incident_id
from gpu_runbooks.workers.intake.closed_incidents import READ_TIMEOUT, is_first_fault
from gpu_runbooks.workers.intake.delivered import UNREACHABLE, Delivered, TemporalUnavailableError
from gpu_runbooks.workers.intake.handover import HandedOver, hand_over
from gpu_runbooks.workers.intake.judging import Judged, judge
from gpu_runbooks.workers.intake.openings import Arrival, incident_of, start
from gpu_runbooks.workers.intake.places import give_up_place
from gpu_runbooks.workers.intake.precedence import Precedence
from gpu_runbooks.workers.intake.repeats import Repeats
from gpu_runbooks.workers.intake.slot_requests import SlotRequests
from gpu_runbooks.workers.intake.telling_guard import GuardNews
from gpu_runbooks.workers.intake.turns import Turn, Turns
from gpu_runbooks.workflows.messages import ENDING, EXPIRED, KNOWN, OTHER_MACHINE
from gpu_runbooks.workflows.slot_request import slot_request

AT_ONCE = 16
"""Deliveries at the same time. More of them end no sooner: each only takes longer, up to its time limit."""

log = logging.getLogger(__name__)


class Incidents:
    """Incidents of one cluster, over one client. One update is in flight per incident."""

    def __init__(self, client: Client, cluster: str) -> None:
        self.client = client
        self.cluster = cluster
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._limit = asyncio.Semaphore(AT_ONCE)
        self._turns: Turns[Delivered] = Turns()
        self._repeats = Repeats()
        self._precedence = Precedence()
        self._guard = GuardNews(client, cluster)
        self._slots = SlotRequests(client, cluster)

    async def deliver(
        self, report: FaultReport, note: str = "", *, wrong: Sequence[str], max_age: timedelta | None
    ) -> Delivered:
        """Make sure that the incident of the fault's node knows the fault, unless it is stale evidence.

        `note` is shown in the static details of an incident that this fault opens; `wrong` is what the live
        Node shows, and `max_age` the age from which on it has to show something.
        Raises `TemporalUnavailableError`.
        """
        workflow_id = incident_id(self.cluster, report.plan.identity.name)
        arrival = Arrival(report, note, tuple(wrong), max_age)
        if self._repeats.has(workflow_id, report.fault.fingerprint):
            give_up_place()  # news of the same notification may be behind it
            await self._precedence.give_way()
            return await self._share(workflow_id, arrival)
        with self._precedence.news():
            return await self._share(workflow_id, arrival)

    async def standing(
        self, report: FaultReport, *, wrong: Sequence[str], max_age: timedelta | None
    ) -> tuple[Delivered | None, bool]:
        """What the fault's node has to say of it before it is delivered: an answer, and an open incident.

        Raises `TemporalUnavailableError`.
        """
        workflow_id = incident_id(self.cluster, report.plan.identity.name)
        try:
            async with self._limit:
                judged = await judge(
                    self.client, self._repeats, workflow_id, Arrival(report, "", tuple(wrong), max_age)
                )
        except UNREACHABLE as error:
            raise TemporalUnavailableError(f"{workflow_id}: {error!r}") from error
        return judged.answer, judged.running

    async def clear(self, node: str, cleared: ConditionCleared) -> None:
        """Tell the node's open incident that a condition became good again; nobody where there is none.

        A hint only: one that is lost costs a look at the node. Raises `TemporalUnavailableError`.
        """
        workflow_id = incident_id(self.cluster, node)
        try:
            handle = self.client.get_workflow_handle(workflow_id)
            await handle.signal("condition_cleared", cleared, rpc_timeout=READ_TIMEOUT)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise TemporalUnavailableError(f"{workflow_id}: {error!r}") from error
        except (RPCTimeoutOrCancelledError, TimeoutError, RuntimeError) as error:
            raise TemporalUnavailableError(f"{workflow_id}: {error!r}") from error

    async def tell_guard(self, hidden: AlertsTruncated) -> None:
        """Tell the guard of the fleet of alerts that were cut off. Raises `TemporalUnavailableError`."""
        try:
            await self._guard.tell_truncated(hidden)
        except UNREACHABLE as error:
            raise TemporalUnavailableError(f"{fleet_id(self.cluster)}: {error!r}") from error

    async def _share(self, workflow_id: str, arrival: Arrival) -> Delivered:
        """The answer, together with those that wait for the same. Raises `TemporalUnavailableError`."""
        try:
            delivered, first = await self._turns.share(
                (workflow_id, arrival.report.fault.fingerprint),
                lambda turn: self._in_turn(workflow_id, turn, arrival),
            )
        except ApplicationError as error:
            raise TemporalUnavailableError(f"{workflow_id}: {error.message}") from error
        except UNREACHABLE as error:
            raise TemporalUnavailableError(f"{workflow_id}: {error!r}") from error
        if not first and delivered.status in {"started", "joined"}:
            return replace(delivered, status="duplicate")
        return delivered

    async def _in_turn(self, workflow_id: str, turn: Turn[Delivered], arrival: Arrival) -> Delivered:
        lock = self._locks.setdefault(workflow_id, asyncio.Lock())
        async with lock:
            async with self._limit:
                callers = turn.begin()
                judged = await judge(self.client, self._repeats, workflow_id, arrival)
            delivered, open_now = await self._deliver(workflow_id, arrival, judged)
            if open_now:
                repeats = callers - (delivered.status != "duplicate")
                await self._count(delivered, arrival.report.fault.fingerprint, repeats)
            return delivered

    async def _deliver(self, workflow_id: str, arrival: Arrival, judged: Judged) -> tuple[Delivered, bool]:
        """What became of a fault, and whether it is with an open incident now."""
        fault = arrival.report.fault
        if judged.answer is not None:
            return judged.answer, judged.answer.status == "duplicate"
        clock = asyncio.get_running_loop().time
        if judged.running:
            verdict = self._repeats.judge(workflow_id, judged.run_id, arrival.report, clock())
            if verdict.same_as:
                self._repeats.fold(workflow_id, judged.run_id, fault.fingerprint, verdict.same_as)
                reason = f"{fault.source} {fault.code} is known there, under other fingerprints"
                return Delivered("duplicate", workflow_id, judged.run_id, reason), True
            if verdict.wait:
                raise TemporalUnavailableError(
                    f"{workflow_id} was told of faults many times by now: {fault.source} {fault.code} of "
                    f"this onset is taken in {verdict.wait:.0f} s or later"
                )
        # Where nothing is done there is nothing to brake, and what we do ourselves has no cause in common.
        tells = not (arrival.report.plan.opted_out or judged.by_repair)
        if tells:
            await self._guard.tell(arrival.report, judged.episode)
        async with self._limit:
            delivered = await self._report(workflow_id, arrival, judged)
        if tells and delivered.status == "started":
            self._guard.remember(arrival.report, delivered.run_id)
        self._repeats.told(workflow_id, delivered.run_id, arrival.report, clock())
        return delivered, True

    async def _report(self, workflow_id: str, arrival: Arrival, judged: Judged) -> Delivered:
        report = arrival.report
        opens = incident_of(self.cluster, workflow_id, report, datetime.now(UTC))
        handed = await hand_over(
            self.client,
            report,
            start(opens, arrival, again=judged.decision.again),
            workflow_id=workflow_id,
            update_id=report.fault.fingerprint,
            running=judged.running,
            is_ours=lambda run: is_first_fault(run, report),
        )
        if not _opened(handed, judged):
            if handed.rejected is None and handed.answer == EXPIRED:
                raise TemporalUnavailableError(
                    f"{workflow_id} is not about this fault and ends now, such as for an earlier machine of "
                    "that name; the fault is taken when it is sent again"
                )
            return Delivered("duplicate" if handed.rejected else "joined", workflow_id, handed.run_id)
        if opens.slot_asked:
            opens.run_id = handed.run_id
            self._slots.ask(report.plan.pool, slot_request(opens))
        reason = "" if handed.taken_up else "no worker has taken it up yet"
        return Delivered("started", workflow_id, handed.run_id, reason)

    async def _count(self, delivered: Delivered, fingerprint: str, repeats: int) -> None:
        """Count repeats, and tell the incident where it is time. A lost word leaves it short."""
        workflow_id, run_id = delivered.workflow_id, delivered.run_id
        if not self._repeats.count(workflow_id, run_id, fingerprint, repeats):
            return
        word = self._repeats.word(workflow_id, run_id, datetime.now(UTC))
        try:
            handle = self.client.get_workflow_handle(workflow_id, run_id=run_id)
            await handle.signal("repeated", word, rpc_timeout=READ_TIMEOUT)
        except UNREACHABLE as error:
            log.info("%s was not told of repeats: %r", workflow_id, error)


def _opened(handed: HandedOver, judged: Judged) -> bool:
    """Whether a fault has opened an incident that was not there when it was judged.

    Raises where the incident does not take it.
    """
    if not handed.taken_up:
        return True
    if handed.rejected is None:
        return False  # it joined, though it may be one that somebody else has opened a moment ago
    cause = handed.rejected.cause
    if not isinstance(cause, ApplicationError):
        raise TimeoutError(f"the update did not end: {cause!r}")
    if cause.type == KNOWN:
        return not (judged.running and handed.run_id == judged.run_id)
    if cause.type in {OTHER_MACHINE, ENDING}:
        raise TemporalUnavailableError(f"to be sent again when that incident is over: {cause.message}")
    raise cause
