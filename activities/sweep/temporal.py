"""The sweep's activities of queue `temporal`."""

import asyncio
from collections.abc import Callable
from datetime import UTC
from typing import Any

from pydantic import ValidationError
from temporalio import activity
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.client import Client
from temporalio.common import QueryRejectCondition
from temporalio.exceptions import TemporalError

from gpu_runbooks.activities.model.slot import SlotRequest
from gpu_runbooks.activities.model.sweep import (
    Budgets,
    BudgetSwept,
    FindBudgets,
    FindRuns,
    IncidentsNextPage,
    IncidentsPage,
    LookAgain,
    LookedAgain,
    OpenIncident,
    Run,
    Standings,
    SweepBudget,
)
from gpu_runbooks.activities.names import RUNBOOKS, budget_id
from gpu_runbooks.activities.sweep.contract import SweepOfTemporal
from gpu_runbooks.activities.sweep.executions import (
    attribute,
    attributes,
    listed,
    standing,
    status_of,
    token_of,
)

AT_A_TIME = 30
"""Workflows in one page: under 16 KiB."""

CALLS = 10
"""Calls of one activity at the same time."""

MOST_INSTANCES = 5
MOST_NAMES = 20

UNANSWERED = (TemporalError, RuntimeError, ValueError)
"""ValueError: the SDK's words for a workflow with a status that it has no name for."""


class TemporalSweep(SweepOfTemporal):
    """Needs a client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def activities(self) -> list[Callable[..., Any]]:
        """All of them, for a worker."""
        return [
            self.list_open_incidents,
            self.find_runs,
            self.find_budgets,
            self.sweep_budget,
            self.look_again,
        ]

    @activity.defn
    async def list_open_incidents(self, request: IncidentsNextPage) -> IncidentsPage:
        query = (
            f"WorkflowType IN {RUNBOOKS} AND CloseTime IS NULL "
            f"AND WorkflowId STARTS_WITH {_quoted(f'node/{request.cluster}/')}"
        )
        page = await listed(self._client, query, request.token, AT_A_TIME)
        return IncidentsPage(incidents=tuple(map(_incident, page.executions)), more=token_of(page))

    @activity.defn
    async def find_runs(self, request: FindRuns) -> Standings:
        places = asyncio.Semaphore(CALLS)

        async def find(run: Run) -> Any:
            async with places:
                return await standing(self._client, run)

        return Standings(standings=tuple(await asyncio.gather(*map(find, request.runs))))

    @activity.defn
    async def find_budgets(self, request: FindBudgets) -> Budgets:
        prefix = budget_id(request.cluster, "")
        query = (
            f"WorkflowType = 'DisruptionBudget' AND CloseTime IS NULL "
            f"AND WorkflowId STARTS_WITH {_quoted(prefix)}"
        )
        pools: list[str] = []
        token = ""
        while True:
            page = await listed(self._client, query, token, AT_A_TIME)
            pools += [each.execution.workflow_id.removeprefix(prefix) for each in page.executions]
            if not (token := token_of(page)):
                return Budgets(pools=tuple(sorted(pools)))

    @activity.defn
    async def sweep_budget(self, request: SweepBudget) -> BudgetSwept:
        budget = self._client.get_workflow_handle(budget_id(request.cluster, request.pool))
        try:
            state: Any = await budget.query("state")
            holders, waiters = _requests(state, "holders"), _requests(state, "waiters")
        except UNANSWERED as error:
            return BudgetSwept(pool=request.pool, problem=f"{type(error).__name__}: {error}"[:300])
        returned, unknown = [], []
        for known in (*holders, *waiters):
            found = await standing(self._client, Run(id=known.incident, run_id=known.run_id))
            if found.state == "unknown":
                unknown.append(f"{known.node}: {found.how}")
            elif found.state != "open":
                await budget.signal("return_slot", known)
                returned += [known.node] if known in holders else []
        return BudgetSwept(
            pool=request.pool,
            holders=len(holders),
            waiters=len(waiters),
            returned=tuple(returned[:MOST_NAMES]),
            problem="; ".join(unknown)[:300],
        )

    @activity.defn
    async def look_again(self, request: LookAgain) -> LookedAgain:
        handle = self._client.get_workflow_handle(request.incident, run_id=request.run_id)
        try:
            status: Any = await handle.query("status", reject_condition=QueryRejectCondition.NOT_OPEN)
            if status["target"] != request.node:
                return LookedAgain(told=False, why=f"it is about its successor {status['target']} by now")
            await handle.signal("look_again")
        except UNANSWERED as error:
            return LookedAgain(told=False, why=f"it cannot be asked: {error}"[:300])
        return LookedAgain(told=True)


def _incident(info: WorkflowExecutionInfo) -> OpenIncident:
    hardware = attributes(info, "RunbookHardware")
    return OpenIncident(
        id=info.execution.workflow_id,
        run_id=info.execution.run_id,
        started=info.start_time.ToDatetime(tzinfo=UTC),
        paused=status_of(info) == "PAUSED",
        phase=attribute(info, "RunbookPhase"),
        pool=attribute(info, "RunbookPool"),
        instances=tuple(name for name in hardware if name.startswith("i-"))[-MOST_INSTANCES:],
    )


def _requests(state: Any, name: str) -> list[SlotRequest]:
    """Holders or waiters in the answer of a budget. Raises `ValueError` for what is none."""
    try:
        return [SlotRequest.model_validate(each) for each in state[name]]
    except (KeyError, TypeError, ValidationError) as error:
        raise ValueError(f"the budget's state is not what it should be: {error}") from error


def _quoted(text: str) -> str:
    """A text in a query of Temporal's list."""
    return "'" + text.replace("'", "''") + "'"
