"""Incidents of the tests of budgets: real ones, and one that does nothing but end as it is told."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from incident.plans import fault, identity, report
from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities.model.fleet import StormRule
from gpu_runbooks.activities.model.slot import PoolBudget
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, budget_id
from gpu_runbooks.workflows.audit import Result

CALM = StormRule(nodes=10_000, unhealthy_percent=100, group_wait=timedelta(0))
"""Nothing is a storm."""


async def start(client: Client, node: str, ladder: str = "reset", *, pool: str, of=None, **changes: Any):
    budget = changes.pop("budget", None) or PoolBudget(max_unavailable=1)
    more = {key: changes.pop(key) for key in ("execution_timeout",) if key in changes}
    opened = report(
        ladder, of=of or fault(), identity=identity(node), pool=pool, budget=budget, storm=CALM, **changes
    )
    return await client.start_workflow(
        "NodeRemediation",
        {"report": opened.model_dump(mode="json")},
        id=f"node/test/{node}",
        task_queue=REMEDIATION_QUEUE,
        result_type=Result,
        **more,
    )


async def state(client: Client, pool: str) -> dict[str, Any]:
    return await client.get_workflow_handle(budget_id("test", pool)).query("state")


async def until_state(client: Client, pool: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the budget's state is as wanted, and return it."""
    async with asyncio.timeout(120):
        while True:
            seen = await state(client, pool)
            if holds(seen):
                return seen
            await asyncio.sleep(0.05)


def names(requests: list[dict[str, Any]]) -> list[str]:
    return [request["node"] for request in requests]


def order(client: Client, pool: str) -> WorkflowHandle:
    return client.get_workflow_handle(budget_id("test", pool))


@workflow.defn
class Ending:
    """Holds a slot, for all that the budget knows, and ends as it is told."""

    def __init__(self) -> None:
        self._how = ""
        self._granted = 0

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: bool(self._how))
        if self._how == "failed":
            raise ApplicationError("as told")
        if self._how == "continued":
            workflow.continue_as_new()

    @workflow.signal
    def end(self, how: str) -> None:
        self._how = how

    @workflow.signal
    def slot_granted(self, _: Any) -> None:
        self._granted += 1

    @workflow.query
    def granted(self) -> int:
        return self._granted
