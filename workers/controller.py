"""Role `controller`: the workflows, and the activities that ask Temporal. Needs a Temporal client only."""

import asyncio

from gpu_runbooks.activities.names import REMEDIATION_QUEUE, TEMPORAL_QUEUE
from gpu_runbooks.activities.sweep.temporal import TemporalSweep
from gpu_runbooks.activities.temporal import Temporal
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workers.sweep_schedule import keep_schedule
from gpu_runbooks.workers.temporal_connection import connect, run_worker
from gpu_runbooks.workflows.disruption_budget import DisruptionBudget
from gpu_runbooks.workflows.fleet_guard import FleetGuard
from gpu_runbooks.workflows.fleet_sweep import FleetSweep
from gpu_runbooks.workflows.job_recovery import JobRecovery
from gpu_runbooks.workflows.manual_runbooks import (
    DrainNode,
    RebootNode,
    ReplaceNode,
    ResetGpu,
    ReturnNode,
    ValidateNode,
)
from gpu_runbooks.workflows.node_remediation import NodeRemediation
from gpu_runbooks.workflows.search_attributes import register
from gpu_runbooks.workflows.unknown_runbook import UnknownRunbook

WORKFLOWS = (
    NodeRemediation,
    DrainNode,
    ResetGpu,
    RebootNode,
    ReplaceNode,
    ValidateNode,
    ReturnNode,
    JobRecovery,
    DisruptionBudget,
    FleetGuard,
    FleetSweep,
    UnknownRunbook,
)
"""Everything that queue `remediation` runs."""


QUESTIONS_AT_ONCE = 20
"""Of queue `temporal`. Asked by a burst of incidents all at once, the server answers none of them in time."""


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Register the search attributes, then work on the queues `remediation` and `temporal`."""
    client = await connect()
    await register(client)
    temporal, sweep = Temporal(client), TemporalSweep(client)
    async with asyncio.TaskGroup() as workers:
        workers.create_task(keep_schedule(client, settings, stop))
        workers.create_task(
            run_worker(
                client,
                stop,
                task_queue=REMEDIATION_QUEUE,
                workflows=WORKFLOWS,
            )
        )
        workers.create_task(
            run_worker(
                client,
                stop,
                task_queue=TEMPORAL_QUEUE,
                activities=[*temporal.activities(), *sweep.activities()],
                activities_at_once=QUESTIONS_AT_ONCE,
            )
        )
