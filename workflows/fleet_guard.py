"""`FleetGuard`: the storm brake of a cluster, and the halts that count everywhere."""

import asyncio
import contextlib
from datetime import datetime, timedelta
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.activities.contracts import ClusterActivities
    from gpu_runbooks.activities.errors import BAD_INPUT, refusal
    from gpu_runbooks.activities.model.fleet import (
        AlertsTruncated,
        Brake,
        BudgetOpened,
        CaughtUp,
        FaultsSeen,
        PoolUnhealthy,
    )
    from gpu_runbooks.activities.names import budget_id, fleet_id
    from gpu_runbooks.workflows.budget_orders import HaltOrder, StormOrder, refuse_more
    from gpu_runbooks.workflows.failures import in_words
    from gpu_runbooks.workflows.fleet_details import details
    from gpu_runbooks.workflows.heard import Heard
    from gpu_runbooks.workflows.operator import Signed, read
    from gpu_runbooks.workflows.options import CLUSTER
    from gpu_runbooks.workflows.refusals import NOT_NOW
    from gpu_runbooks.workflows.speakers import heard, identities_of
    from gpu_runbooks.workflows.storm import Storm
    from gpu_runbooks.workflows.storm_page import page_for
    from gpu_runbooks.workflows.storms import Fleet, packed, unpacked

PAGE_STANDS = timedelta(hours=2)
"""How long an alert stands that nobody repeats."""

TOLD_BY_NAME = 10
"""Pools that the answer to a halt names."""

PAGE_AGAIN = timedelta(hours=1)
"""So long before its end it is repeated, and stays one alert."""

Told = TypeVar("Told", bound=BaseModel)


@workflow.defn
class FleetGuard:
    """Counts faults of all nodes, and brakes the budgets of all pools. One a cluster; continues as new.

    Told by intakes (`faults_seen`, `alerts_truncated`) and budgets (`pool_unhealthy`, `budget_opened`,
    `caught_up`). It tells each budget by the signal `brake` what its grants have to mind.
    """

    @workflow.init
    def __init__(self, raw: Any) -> None:
        self._news = False
        self._braked: dict[str, Brake] = {}
        """What each budget was told last."""
        self._paging: asyncio.Task[None] | None = None
        self._heard: list[Heard] = []
        """Orders of which it is not known yet whose they were."""
        self._signing: asyncio.Task[None] | None = None
        self._wrong = ""
        self._fleet = Fleet(cluster="")
        try:
            self._fleet = unpacked(raw)
        except ValueError as error:
            self._wrong = str(error)  # said by run, where an error can fail the workflow

    @workflow.run
    async def run(self, raw: Any) -> None:  # noqa: ARG002 - taken in by __init__
        self._refuse_wrong_start()
        while not self._is_long():
            self._news = False
            self._fleet.pass_time(workflow.now())
            await self._brake()
            self._page()
            self._sign()
            workflow.set_current_details(details(self._fleet, workflow.now()))
            await self._wait()
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(packed(self._fleet))

    @workflow.signal(description="An intake tells what is wrong with which nodes")
    def faults_seen(self, raw: Any = None, *_: Any) -> None:
        if (told := _read(FaultsSeen, raw, "faults_seen")) is not None:
            for fault in told.faults:
                self._fleet.see(fault, told.rule, workflow.now())
            self._news = bool(self._fleet.storms) or self._news

    @workflow.signal(description="An intake tells of alerts that were cut off a delivery")
    def alerts_truncated(self, raw: Any = None, *_: Any) -> None:
        if (alerts := _read(AlertsTruncated, raw, "alerts_truncated")) is not None:
            self._fleet.see_truncated(alerts, workflow.now())
            self._news = bool(self._fleet.storms) or self._news

    @workflow.signal(description="A budget saw more of its pool unhealthy than policy allows")
    def pool_unhealthy(self, raw: Any = None, *_: Any) -> None:
        if (pool := _read(PoolUnhealthy, raw, "pool_unhealthy")) is not None:
            self._fleet.see_pool(pool, workflow.now())
            self._news = True

    @workflow.signal(description="A budget wants to be told of brakes, and what stands now")
    def budget_opened(self, raw: Any = None, *_: Any) -> None:
        if (opened := _read(BudgetOpened, raw, "budget_opened")) is not None:
            self._fleet.open_budget(opened.pool, workflow.now())
            self._braked.pop(opened.pool, None)
            self._news = True

    @workflow.signal(description="After a storm, nobody waits in this pool any more")
    def caught_up(self, raw: Any = None, *_: Any) -> None:
        if (word := _read(CaughtUp, raw, "caught_up")) is not None:
            self._fleet.catch_up(word)
            self._news = True

    @workflow.update(description="Halt everywhere: nothing new is disrupted until it ends")
    def halt(self, raw: Any = None) -> str:
        order = read(HaltOrder, raw)
        halt = order.halt(workflow.now())
        self._fleet.halt(halt)
        self._hear(
            order, f"halt everywhere by {halt.operator} until {halt.until:%Y-%m-%d %H:%M} UTC: {halt.reason}"
        )
        last = max(each.until for each in self._fleet.halts)
        told = ", ".join(sorted(self._fleet.budgets)[:TOLD_BY_NAME])
        said = f"halted everywhere until {last:%Y-%m-%d %H:%M:%S} UTC"
        if not told:
            return f"{said}. No budget of {self._fleet.cluster} runs: is the name of the cluster right?"
        return f"{said}, in {len(self._fleet.budgets)} pool(s): {told}"

    @workflow.update(description="End all halts everywhere before their time; storms brake on")
    def resume(self, raw: Any = None) -> str:
        word = read(Signed, raw)
        ended = len(self._fleet.halts)
        self._fleet.resume()
        self._hear(word, f"{ended} halts ended by {word.operator}: {word.reason}")
        storms = [storm.id for storm in self._fleet.storms]
        rest = f"; storms brake on: {', '.join(storms)}" if storms else ""
        return f"{ended} halt(s) ended{rest}"

    @workflow.update(description="End a storm at once: a person knows better")
    def end_storm(self, raw: Any = None) -> str:
        order = read(StormOrder, raw)
        storm = self._storm_of(order)
        how = f"ended by {order.operator}: {order.reason}"
        self._fleet.end_storm(storm, how, workflow.now())
        self._hear(order, f"storm {storm.id} {how}")
        return f"storm {storm.id} is over: budgets grant what they permit"

    @halt.validator
    def _validate_halt(self, raw: Any = None) -> None:
        self._refuse_wrong_start()
        read(HaltOrder, raw)
        refuse_more(self._fleet.halts)

    @resume.validator
    def _validate_resume(self, raw: Any = None) -> None:
        read(Signed, raw)
        if not self._fleet.halts:
            raise ApplicationError(
                "no halt everywhere stands; a halt of one pool is resumed at its budget, a storm is ended by "
                "end_storm",
                type=NOT_NOW,
            )

    @end_storm.validator
    def _validate_end_storm(self, raw: Any = None) -> None:
        self._storm_of(read(StormOrder, raw))

    @workflow.query(description="Storms, halts, and the faults of the last minutes")
    def state(self) -> Fleet:
        return self._fleet

    def _hear(self, word: Signed, note: str) -> None:
        """Note an order, and that the history is to say who it was."""
        self._fleet.note(workflow.now(), note)
        self._heard = [*self._heard, *heard(word, note)]
        self._news = True

    def _sign(self) -> None:
        """Find out who ordered what, beside the braking."""
        if self._signing is None and self._heard:
            words, self._heard = self._heard, []
            self._signing = asyncio.create_task(self._find_out(words))

    async def _find_out(self, words: list[Heard]) -> None:
        identities = await identities_of(words)
        for word in words:
            if identity := identities.get(word.update):
                self._fleet.sign(word, identity)
        self._signing, self._news = None, True

    def _storm_of(self, order: StormOrder) -> Storm:
        storm = self._fleet.open_storm(order.storm)
        if storm is None:
            known = ", ".join(each.id for each in self._fleet.storms)
            stand = f"these stand: {known}" if known else "none stands"
            raise ApplicationError(f"no storm {order.storm!r} stands; {stand}", type=NOT_NOW)
        return storm

    def _refuse_wrong_start(self) -> None:
        right = fleet_id(self._fleet.cluster)
        if self._wrong:
            raise refusal(BAD_INPUT, f'bad input: {self._wrong}; give --input \'{{"cluster": "..."}}\'')
        if workflow.info().workflow_id != right:
            raise refusal(
                BAD_INPUT,
                f"the guard of cluster {self._fleet.cluster!r}: start it with --workflow-id {right}",
            )

    def _is_long(self) -> bool:
        """Whether the next run is to go on. Not while it pages or seeks somebody: it would be done twice."""
        return workflow.info().is_continue_as_new_suggested() and not (
            self._paging or self._signing or self._heard
        )

    async def _wait(self) -> None:
        moments = [self._fleet.due()]
        if self._paging is None:
            moments += [storm.paged_until - PAGE_AGAIN for storm in self._fleet.storms if storm.paged_until]
        due = min((moment for moment in moments if moment is not None), default=None)
        timeout = None if due is None else max(due - workflow.now(), timedelta(seconds=1))
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._news or self._is_long(), timeout=timeout, timeout_summary="what is due next"
            )

    async def _brake(self) -> None:
        """Tell each budget that was told something else before. One that does not run any more is dropped."""
        brakes = {pool: self._fleet.brake(pool) for pool in self._fleet.budgets}
        changed = {pool: brake for pool, brake in brakes.items() if self._braked.get(pool) != brake}
        self._braked |= changed
        await asyncio.gather(*(self._tell(pool, brake) for pool, brake in changed.items()))

    async def _tell(self, pool: str, brake: Brake) -> None:
        budget = workflow.get_external_workflow_handle(budget_id(self._fleet.cluster, pool))
        try:
            await budget.signal("brake", brake)
        except (ApplicationError, FailureError) as error:
            workflow.logger.info("the budget of pool %s is not told of brakes any more: %s", pool, error)
            self._fleet.close_budget(pool)
            self._braked.pop(pool, None)
            self._news = True

    def _page(self) -> None:
        """Call a person for each storm, once, beside the braking, which waits for nobody."""
        if self._paging is None and any(self._pages(workflow.now())):
            self._paging = asyncio.create_task(self._call())

    async def _call(self) -> None:
        now = workflow.now()
        for storm in self._pages(now):
            over = storm.ended is not None
            until = now + PAGE_STANDS
            try:
                await workflow.execute_activity_method(
                    ClusterActivities.page,
                    page_for(storm, self._fleet.cluster, until),
                    summary=f"{'take back the page' if over else 'page'} for storm {storm.id}",
                    **CLUSTER,
                )
            except ActivityError as error:
                workflow.logger.warning("nobody was paged for storm %s: %s", storm.id, in_words(error))
            storm.paged_until = None if over else until
        self._paging, self._news = None, True

    def _pages(self, now: datetime) -> list[Storm]:
        """Storms for which a person is to be called, again or no more."""
        due = [
            storm
            for storm in self._fleet.storms
            if storm.paged_until is None or storm.paged_until - PAGE_AGAIN <= now
        ]
        return [*due, *(storm for storm in self._fleet.past if storm.paged_until is not None)]


def _read(kind: type[Told], raw: Any, signal: str) -> Told | None:
    """A signal's argument; None for what is none. An error would stop the guard for ever."""
    try:
        return kind.model_validate(raw)
    except ValidationError:
        workflow.logger.warning("ignoring a %s that is none: %s", signal, str(raw)[:200])
        return None
