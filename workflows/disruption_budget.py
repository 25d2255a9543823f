"""`DisruptionBudget`: the one holder of a pool's slots."""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.activities.contracts import ClusterActivities, TemporalActivities
    from gpu_runbooks.activities.errors import BAD_INPUT, refusal
    from gpu_runbooks.activities.model.fleet import (
        Brake,
        BudgetOpened,
        CaughtUp,
        EnsureGuard,
        PoolUnhealthy,
    )
    from gpu_runbooks.activities.model.slot import (
        FindClosedIncidents,
        FindHolders,
        PoolSeen,
        SlotRequest,
        TellHolders,
    )
    from gpu_runbooks.activities.names import budget_id
    from gpu_runbooks.workflows.budget_details import details
    from gpu_runbooks.workflows.budget_orders import HaltOrder, LimitOrder, refuse_more
    from gpu_runbooks.workflows.failures import in_words
    from gpu_runbooks.workflows.heard import Heard
    from gpu_runbooks.workflows.operator import Signed, read
    from gpu_runbooks.workflows.options import MANY_ANSWERS, POOL, TEMPORAL
    from gpu_runbooks.workflows.refusals import NOT_NOW
    from gpu_runbooks.workflows.slots import Holder, Slots, as_request, packed, read_request, unpacked
    from gpu_runbooks.workflows.speakers import heard, identities_of
    from gpu_runbooks.workflows.waits import wait_for

CHECK = timedelta(minutes=1)
"""How often holders and waiters are checked to be alive (a terminated incident returns no slot), and the
cluster is looked at again while somebody waits (it changes without a message)."""

LONGEST_CHECK = timedelta(minutes=10)
"""While nothing happens the checks come to be rarer, a tenth of the quiet apart: an hour's wait becomes six
minutes longer at most, and a day of it stays a few thousand events."""

LOOK_AGAIN = timedelta(seconds=10)
"""After a look that had no answer."""

GUARD_ANSWERS = timedelta(seconds=10)
"""How long a budget that begins waits to hear of a storm, or of a halt everywhere, before it gives a slot."""

ASKED_AT_ONCE = 50
"""Incidents in one question: a payload stays under 16 KiB."""


@workflow.defn
class DisruptionBudget:
    """Grants the slots of one pool, serialised. Lives as long as the pool; continues as new.

    Incidents signal `request_slot` (idempotent, sent again on a timer; first by the intake that opens them)
    and `return_slot`, the guard of the fleet signals `brake`. A grant is the signal `slot_granted` to the
    incident; when a halt or a brake begins, those that have a slot get `disruption_stopped`, and
    `slot_granted` again when it is over.
    """

    @workflow.init
    def __init__(self, raw: Any = None) -> None:
        try:
            self._slots = unpacked(raw)
        except ValueError:
            self._slots = Slots(cluster="", pool="")  # said in run, where an error can fail the workflow
        self._news = False
        self._checked = self._last_news = workflow.now()
        self._telling = 0
        self._heard: list[Heard] = []
        """Orders of which it is not known yet whose they were."""

    @workflow.run
    async def run(self, raw: Any = None) -> None:  # noqa: ARG002 - taken in by __init__
        self._refuse_wrong_start()
        telling = [
            asyncio.create_task(each) for each in (self._tell_holders(), self._tell_guard(), self._sign())
        ]
        if not self._slots.complete:
            await self._take_over()
        if not self._slots.heard:
            await wait_for(lambda: self._slots.heard, GUARD_ANSWERS, "what the guard of the fleet says")
        while not any(task.done() for task in telling):
            self._last_news = workflow.now() if self._news else self._last_news
            self._news = False
            self._slots.expire(workflow.now())
            if workflow.now() >= self._checked + CHECK:
                await self._drop_closed()
            answered = await self._serve()
            self._show()
            if self._may_continue_as_new():
                workflow.continue_as_new(packed(self._slots))
            await self._rest(answered)
        await asyncio.gather(*telling)  # one has failed: so does the budget, and says why

    @workflow.signal(description="An incident asks for permission to disrupt its node")
    def request_slot(self, raw: Any = None, *_: Any) -> None:
        request = read_request(raw)
        if request is None:
            workflow.logger.warning("ignoring a request_slot that is none: %s", str(raw)[:200])
            return
        if request.since is not None:  # a clock that is fast makes nobody the youngest for ever
            request = request.model_copy(update={"since": min(request.since, workflow.now())})
        before = self._asked()
        self._slots.request(request)
        self._news = self._news or self._asked() != before  # most only say again what is known

    @workflow.signal(description="An incident is done with its node, or withdraws its request")
    def return_slot(self, raw: Any = None, *_: Any) -> None:
        request = read_request(raw)
        if request is None:
            workflow.logger.warning("ignoring a return_slot that is none: %s", str(raw)[:200])
            return
        self._slots.give_up(request, workflow.now())
        self._news = True

    @workflow.signal(description="The guard of the fleet stops the pool, paces it, or lets it go on")
    def brake(self, raw: Any = None, *_: Any) -> None:
        before = (self._slots.brake, self._slots.heard)
        try:
            self._slots.hear(Brake.model_validate(raw))
        except ValidationError:
            workflow.logger.warning("ignoring a brake that is none: %s", str(raw)[:200])
            return
        self._news = self._news or (self._slots.brake, self._slots.heard) != before

    @workflow.update(description="Begin no disruption in this pool for a time; who has a slot stops")
    def halt(self, raw: Any = None) -> str:
        order = read(HaltOrder, raw)
        halt = order.halt(workflow.now())
        self._slots.halts = [*self._slots.halts, halt]
        self._hear(order, f"halt by {order.operator}: {order.reason}")
        self._news = True
        self._show()
        last = max(each.until for each in self._slots.halts)
        stand = f"; {len(self._slots.halts)} halts stand" if len(self._slots.halts) > 1 else ""
        return (
            f"pool {self._slots.pool}: no disruption until {last:%Y-%m-%d %H:%M} UTC, or until resume"
            f"{stand}{self._unknown()}"
        )

    @workflow.update(description="End all halts of this pool")
    def resume(self, raw: Any = None) -> str:
        word = read(Signed, raw)
        self._slots.halts = []
        self._hear(word, f"halt ended by {word.operator}: {word.reason}")
        self._news = True
        self._show()
        still = self._slots.stopped(workflow.now())
        return f"pool {self._slots.pool}: " + (f"still {still}" if still else "goes on")

    @workflow.update(description="Another limit than the policy's, for a time")
    def set_limit(self, raw: Any = None) -> str:
        order = read(LimitOrder, raw)
        limit = self._slots.override = order.limit(workflow.now())
        most = order.max_unavailable or f"{order.percent} %"
        self._hear(order, f"limit {most} by {order.operator}: {order.reason}")
        self._news = True
        self._show()
        until = f"{limit.until:%Y-%m-%d %H:%M} UTC"
        said = f"pool {self._slots.pool}: at most {most} until {until}, then what the policy says"
        if self._slots.nodes is not None and limit.budget.limit(self._slots.nodes) == 0:
            said += f". Of its {self._slots.nodes} nodes that is none: nobody gets a slot"
        return f"{said}{self._unknown()}"

    @halt.validator
    def _validate_halt(self, raw: Any = None) -> None:
        self._refuse_wrong_start()
        read(HaltOrder, raw)
        refuse_more(self._slots.halts)

    @resume.validator
    def _validate_resume(self, raw: Any = None) -> None:
        self._refuse_wrong_start()
        read(Signed, raw)
        if not self._slots.halts:
            stopped = self._slots.stopped(workflow.now())
            why = f"; it is {stopped}, see the guard of the fleet" if stopped else ""
            if self._slots.override is not None:
                why += "; another set_limit replaces the limit that stands"
            raise ApplicationError(f"pool {self._slots.pool} has no halt to end{why}", type=NOT_NOW)

    @set_limit.validator
    def _validate_set_limit(self, raw: Any = None) -> None:
        self._refuse_wrong_start()
        read(LimitOrder, raw)

    @workflow.query(description="Holders, waiters, the limit, and why nobody gets a slot")
    def state(self) -> Slots:
        return self._slots

    def _refuse_wrong_start(self) -> None:
        """Raise `BadInput` where id and input name two pools: an order would be for neither."""
        if workflow.info().workflow_id != budget_id(self._slots.cluster, self._slots.pool):
            raise refusal(
                BAD_INPUT,
                "a budget has the id budget/CLUSTER/POOL and the input "
                '{"cluster": "CLUSTER", "pool": "POOL"}, with the same names in both',
            )

    def _unknown(self) -> str:
        """A doubt that belongs into an answer: only an incident's request says that there is such a pool."""
        if self._slots.rules is not None:
            return ""
        return f". No incident has asked for a slot of pool {self._slots.pool} yet: is the name right?"

    def _hear(self, word: Signed, note: str) -> None:
        """Note an order, and that the history is to say who it was."""
        self._slots.note(workflow.now(), note)
        self._heard = [*self._heard, *heard(word, note)]

    async def _sign(self) -> None:
        """Find out who ordered what, beside the rounds: the order counts at once."""
        while True:
            await workflow.wait_condition(lambda: bool(self._heard))
            self._telling += 1
            words, self._heard = self._heard, []
            identities = await identities_of(words)
            for word in words:
                if identity := identities.get(word.update):
                    self._slots.sign(word, identity)
            self._telling -= 1
            self._show()

    async def _serve(self) -> bool:
        """Give what is free, by two looks at the cluster. False: it gave no answer, and nobody a slot."""
        if not self._slots.waiters or self._slots.stopped(workflow.now()):
            return True
        seen = await self._look("which nodes are unavailable?")
        if seen is not None and self._slots.grant(seen, workflow.now()):
            seen = await self._look("are they still the same, with the slots held?")
            if seen is None:
                self._slots.put_back()
            else:
                self._slots.confirm(seen, workflow.now())
        return seen is not None

    async def _look(self, question: str) -> PoolSeen | None:
        request = self._slots.look()
        if request is None:
            return None
        try:
            return await workflow.execute_activity_method(
                ClusterActivities.observe_pool,
                request,
                summary=f"pool {self._slots.pool}: {question}",
                **POOL,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._slots.why = f"the cluster could not be looked at: {in_words(error)}"
            return None

    async def _rest(self, answered: bool) -> None:
        """Until there is news, or the clock alone changes what is right."""
        now = workflow.now()
        moments = [moment for moment in (self._slots.next_change(now),) if moment is not None]
        if self._slots.holders or self._slots.waiters:
            moments.append(self._checked + min(max(CHECK, (now - self._last_news) / 10), LONGEST_CHECK))
        else:
            self._checked = now
        if not answered:
            moments.append(now + max(LOOK_AGAIN, (now - self._last_news) / 60))
        rest = max(min(moments) - now, timedelta(seconds=1)) if moments else None
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._news or self._may_continue_as_new(),
                timeout=rest,
                timeout_summary="next look at the incidents and the cluster",
            )
        if not (self._slots.holders or self._slots.waiters):
            self._checked = workflow.now()

    def _asked(self) -> tuple[Any, ...]:
        """What a request may change, besides that a holder is to be told again."""
        return len(self._slots.holders), tuple(self._slots.waiters), self._slots.rules

    def _may_continue_as_new(self) -> bool:
        """Long enough, and nothing is on its way: what a run sends in its last moment is lost."""
        now = workflow.now()
        return (
            workflow.info().is_continue_as_new_suggested()
            and not self._telling
            and not self._heard
            and not self._slots.untold(now)
            and not self._slots.has_news_for_guard(now)
            and workflow.all_handlers_finished()
        )

    async def _tell_holders(self) -> None:
        """Tell holders what they have to know, beside the rounds: a look at the cluster may take its time."""
        while True:
            await workflow.wait_condition(
                lambda: self._slots.complete and bool(self._slots.untold(workflow.now()))
            )
            self._telling += 1
            why = self._slots.stopped(workflow.now())
            holders = self._slots.untold(workflow.now())[:ASKED_AT_ONCE]
            for holder in holders:
                self._slots.told(holder, why)
            await self._tell(holders, why)
            self._telling -= 1

    async def _tell(self, holders: Sequence[Holder], why: str) -> None:
        """Tell some, by an activity: signals of the budget's own would come back to its history one by one.

        An incident that is gone gives its slot up at once.
        """
        news = f"are stopped: {why}" if why else "have a slot"
        told = await workflow.execute_activity_method(
            TemporalActivities.tell_holders,
            TellHolders(holders=tuple(map(as_request, holders)), stopped=why),
            summary=f"tell {len(holders)} incidents that they {news}"[:200],
            **TEMPORAL,
        )
        for gone in told.closed:
            self._slots.give_up(gone, workflow.now())
            self._news = True

    async def _tell_guard(self) -> None:
        """Tell the guard of the fleet what it has to know; it is started where it does not run."""
        while True:
            await workflow.wait_condition(lambda: self._slots.has_news_for_guard(workflow.now()))
            self._telling += 1
            for word in self._slots.for_guard(workflow.now()):
                signal = GUARD_SIGNALS[type(word)]
                await workflow.execute_activity_method(
                    TemporalActivities.ensure_guard,
                    EnsureGuard.model_validate(
                        {"cluster": self._slots.cluster, "signal": signal, "argument": word}
                    ),
                    summary=f"tell the guard of the fleet: {signal}",
                    **TEMPORAL,
                )
            self._telling -= 1

    async def _take_over(self) -> None:
        """Somebody may have terminated the budget before this one; its holders still disrupt their nodes."""
        found = await workflow.execute_activity_method(
            TemporalActivities.find_holders,
            FindHolders(cluster=self._slots.cluster, pool=self._slots.pool),
            summary=f"which incidents of pool {self._slots.pool} disrupt a node already?",
            **MANY_ANSWERS,
        )
        self._slots.take_over(found.holders)

    async def _drop_closed(self) -> None:
        self._checked = workflow.now()
        known = (*self._slots.holders, *self._slots.waiters)
        for first in range(0, len(known), ASKED_AT_ONCE):
            await self._drop_closed_of(known[first : first + ASKED_AT_ONCE])

    async def _drop_closed_of(self, known: tuple[SlotRequest, ...]) -> None:
        found = await workflow.execute_activity_method(
            TemporalActivities.find_closed_incidents,
            FindClosedIncidents(incidents=tuple(map(as_request, known))),
            summary=f"are the {len(known)} incidents with a slot or a request still open?",
            **MANY_ANSWERS,
        )
        for closed in found.closed:
            self._slots.give_up(closed, workflow.now())

    def _show(self) -> None:
        workflow.set_current_details(details(self._slots, workflow.now()))


GUARD_SIGNALS = {BudgetOpened: "budget_opened", PoolUnhealthy: "pool_unhealthy", CaughtUp: "caught_up"}
