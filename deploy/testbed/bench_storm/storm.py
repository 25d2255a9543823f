"""One contender in the storm: the detector breaks, is mended, and what the witness saw."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import WorkflowExecutionStatus

from gpu_runbooks.activities.names import RUNBOOKS
from testbed.bench_storm.contenders import NAMESPACE, Contender, StormCluster, started
from testbed.bench_storm.detector import BrokenDetector
from testbed.bench_storm.plan import Plan
from testbed.bench_storm.witness import Witness
from testbed.progress import Progress


@dataclass(frozen=True)
class Outcome:
    """What a storm did to one fleet."""

    contender: Contender
    disturbed: int
    """Nodes that were taken out of service at any time."""
    most_at_once: int
    destroyed: int
    """Healthy machines that were given up."""
    pods_killed: int
    seconds_to_normal: float | None
    """From the mend; None where a person is needed."""
    left_for_a_person: str
    """What was not normal after the patience; empty where it recovered by itself."""


async def meet_storm(
    contender: Contender, directory: Path, plan: Plan, progress: Progress, turn: asyncio.Lock
) -> Outcome:
    """Break the detector, mend it, and wait until the fleet is normal again."""
    async with AsyncExitStack() as stack:
        async with turn:  # one cluster starts at a time: all of them at once would keep each other waiting
            with progress.step(f"{contender.title}: a fleet of {plan.nodes} nodes with {plan.pods} pods"):
                cluster = await stack.enter_async_context(started(contender, directory, plan))
        return await _measure(contender, cluster, plan, progress)


async def _measure(contender: Contender, cluster: StormCluster, plan: Plan, progress: Progress) -> Outcome:
    detector = BrokenDetector(cluster.kubernetes)
    async with Witness.watching(cluster.kubernetes, NAMESPACE, plan) as witness:
        with progress.step(f"{contender.title}: {plan.growth_percent} % to {plan.top_percent} % called bad"):
            began = time.monotonic()
            for number, count in enumerate(plan.steps, start=1):
                await detector.mark(count)
                await asyncio.sleep(began + number * plan.step_seconds - time.monotonic())
        with progress.step(f"{contender.title}: normal again after the mend"):
            await detector.mend()
            seconds, left = await witness.calm(time.monotonic())
            open_incidents = await _open_incidents(cluster)
    if open_incidents and seconds is None:
        left = f"{left}; {open_incidents} open incidents"
    return Outcome(
        contender,
        disturbed=len(witness.disturbed),
        most_at_once=witness.most_at_once,
        destroyed=len(witness.destroyed),
        pods_killed=len(witness.killed),
        seconds_to_normal=seconds,
        left_for_a_person=left,
    )


async def _open_incidents(cluster: StormCluster) -> int:
    if cluster.temporal is None:
        return 0
    found = cluster.temporal.client.list_workflows("ExecutionStatus = 'Running'")
    return len(
        [
            run
            async for run in found
            if run.workflow_type in RUNBOOKS and run.status is WorkflowExecutionStatus.RUNNING
        ]
    )
