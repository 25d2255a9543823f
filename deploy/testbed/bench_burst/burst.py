"""One burst: the faults, the blocks that follow, and what it cost; with duplicates coming in, or without."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.activities.names import incident_id
from testbed.bench_burst.actions import Cost, cost_of
from testbed.bench_burst.blocks import Blocks
from testbed.bench_burst.cluster import BurstCluster
from testbed.bench_burst.plan import Plan, onset
from testbed.bench_burst.posting import AGAIN_SECONDS, Webhook
from testbed.bench_burst.slots import SlotWait, slot_wait
from testbed.progress import Progress
from testbed.testbed import CLUSTER

PATIENCE = 180.0
"""Seconds after the last post until a permitted node that is not blocked counts as never blocked."""

POSTED_AT_ONCE = 8
"""Duplicates under way at a time."""

ASKED_AT_ONCE = 8

TRIES = 10
"""Of a look at an incident, before it counts as unknown."""


@dataclass(frozen=True)
class BurstFigures:
    """What one burst showed."""

    permitted: int
    block_seconds: tuple[float, ...]
    """From the first POST of a fault until its node was seen blocked, of the nodes that were blocked."""
    slots: tuple[SlotWait, ...]
    """Of all incidents that asked for a slot."""
    costs: tuple[Cost, ...]
    """Of all incidents, so far."""
    lost: int
    """Faults that no open incident knows, though the webhook took them or never did."""
    memory: dict[str, float]
    """Peak of each role, in MiB."""
    answers: dict[str, int]
    """Answers of the webhook by status."""
    duplicates_per_second: float = 0.0

    @property
    def not_blocked(self) -> int:
        """Permitted nodes that were never seen blocked."""
        return max(0, self.permitted - len(self.block_seconds))

    @property
    def over_budget(self) -> int:
        """Nodes blocked beyond what the budgets permit."""
        return max(0, len(self.block_seconds) - self.permitted)


async def measure_burst(
    cluster: BurstCluster, plan: Plan, progress: Progress, *, duplicates: bool = False
) -> BurstFigures:
    """Post the faults of the plan, and see what comes of them."""
    since = onset()
    posted: dict[str, float] = {}
    rate = 0.0
    async with Webhook.of(cluster.product) as webhook, Blocks.watched(cluster.kubernetes) as blocks:
        repeats = f" and {plan.duplicates} duplicates" if duplicates else ""
        with progress.step(f"{plan.faults} faults{repeats} through the webhook"):
            first = asyncio.gather(
                *(_post(webhook, plan, number, since, posted) for number in range(plan.faults))
            )
            if duplicates:
                await asyncio.sleep(plan.within)  # a repeat comes after what it repeats
                started = time.monotonic()
                await _repeat(webhook, plan, since)
                rate = plan.duplicates / (time.monotonic() - started)
            await first
        with progress.step(f"{plan.permitted} permitted nodes blocked"):
            await blocks.until(plan.permitted, PATIENCE)
    memory = cluster.memory()
    with progress.step("Histories of the incidents"):
        lost, costs, slots = await _look(cluster, plan)
    return BurstFigures(
        permitted=plan.permitted,
        block_seconds=tuple(seen - posted[node] for node, seen in blocks.seen.items()),
        slots=slots,
        costs=costs,
        lost=lost,
        memory=memory,
        answers=dict(webhook.answers),
        duplicates_per_second=rate,
    )


async def _post(webhook: Webhook, plan: Plan, number: int, since: datetime, posted: dict[str, float]) -> bool:
    """Post one fault at its moment within the burst's second."""
    await asyncio.sleep(plan.within * number / plan.faults)
    posted[plan.node(number)] = time.monotonic()
    return await webhook.post(plan.alert(number, since))


async def _repeat(webhook: Webhook, plan: Plan, since: datetime) -> None:
    left = iter(range(plan.duplicates))

    async def repeat() -> None:
        for number in left:
            await webhook.post(plan.alert(number % plan.faults, since))

    await asyncio.gather(*(repeat() for _ in range(POSTED_AT_ONCE)))


async def _look(cluster: BurstCluster, plan: Plan) -> tuple[int, tuple[Cost, ...], tuple[SlotWait, ...]]:
    """How many faults nobody knows, and what the incidents cost and waited for."""
    known: list[bool] = []
    costs: list[Cost] = []
    slots: list[SlotWait] = []
    left: Iterable[int] = iter(range(plan.faults))

    async def look() -> None:
        for number in left:
            seen = await _incident(cluster, plan.node(number))
            known.append(seen is not None)
            if seen is None:
                continue
            costs.append(cost_of(seen))
            wait = slot_wait(seen)
            if wait is not None:
                slots.append(wait)

    await asyncio.gather(*(look() for _ in range(ASKED_AT_ONCE)))
    return known.count(False), tuple(costs), tuple(slots)


async def _incident(cluster: BurstCluster, node: str) -> Sequence[HistoryEvent] | None:
    """History of the open incident that knows a fault of the node; None where there is none."""
    handle = cluster.temporal.client.get_workflow_handle(incident_id(CLUSTER, node))
    for _ in range(TRIES):
        try:
            status = await handle.query("status")
            events = (await handle.fetch_history()).events
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            await asyncio.sleep(AGAIN_SECONDS)  # a busy server says nothing of the incident
        except WorkflowQueryFailedError:
            await asyncio.sleep(AGAIN_SECONDS)  # it has not opened yet
        else:
            return events if status["faults"] else None
    return None
