"""The moment between a block and what disrupts the node: others with the same cause report in it."""

import asyncio
from datetime import timedelta

import pytest
from guard.fleet_world import FleetWorld
from incident.conftest import running_workers
from incident.opened import start
from incident.plans import T0, fault, identity, report
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowExecutionStatus, WorkflowQueryFailedError

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.fleet import StormRule
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.model.slot import PoolBudget
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, incident_id
from gpu_runbooks.workers.intake.telling_guard import GuardNews
from gpu_runbooks.workflows.acts import Act
from gpu_runbooks.workflows.audit import Status
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder import next_step
from gpu_runbooks.workflows.ladder_steps import (
    Block,
    Drain,
    Examine,
    GroupWait,
    HoldSlot,
    RestartWorkload,
)
from gpu_runbooks.workflows.phases import Phase, Runbook
from gpu_runbooks.workflows.standing import Pending

WAIT = timedelta(seconds=15)
MANUAL = fault().model_copy(update={"source": FaultSource.MANUAL})


def incident(ladder: str = "reset", *, of=None, runbook=Runbook.REMEDIATE, **state) -> Incident:
    """An incident that holds its slot and has blocked its node."""
    waits = report(ladder, of=of or fault(), storm=StormRule(group_wait=WAIT))
    subject = Incident.open("test", "node/test/n1", "run", waits, T0, runbook=runbook)
    subject.record(Act(rung=RungName.BLOCK, attempt=1, proven=True, proof="", started=T0, ended=T0))
    return subject.model_copy(update={"blocked": True, "slot_held": True} | state)


@pytest.mark.parametrize(
    ("subject", "seconds", "step"),
    [
        (incident(blocked=False), 0, Block),
        (incident(blocked=False, slot_held=False, acts=[]), 0, HoldSlot),
        (incident(), 0, GroupWait),
        (incident(), 14, GroupWait),
        (incident(), 15, Examine),
        (incident(opened=T0 - WAIT), 0, Examine),
        (incident(opened=T0 - WAIT, resumed=T0), 0, GroupWait),
        (incident("drain"), 14, GroupWait),
        (incident("drain"), 15, Drain),
        (incident("restart", blocked=False), 14, GroupWait),
        (incident("restart", blocked=False), 15, RestartWorkload),
        (incident(stopped="storm s1"), 15, HoldSlot),
        (incident(of=MANUAL), 0, Examine),
        (incident("drain", runbook=Runbook.DRAIN), 0, Drain),
    ],
    ids=[
        "the block waits for nothing",
        "nor does the request for a slot",
        "the drain waits",
        "to the end",
        "and no longer",
        "an old incident does not wait",
        "a fault in the probation does",
        "where the drain comes first",
        "and no longer there",
        "an application's pods as well",
        "and no longer those",
        "a storm that came meanwhile",
        "a person asked",
        "a person named the act",
    ],
)
def test_what_comes_after_the_block(subject, seconds, step):
    assert isinstance(next_step(subject, T0 + timedelta(seconds=seconds)), step)


def test_wait_ends_where_a_tolerated_fault_counts():
    soon = T0 + timedelta(seconds=5)
    tolerated = Pending(fault=fault("119", fingerprint="other"), until=soon)
    assert next_step(incident("restart", blocked=False, pending=[tolerated]), T0) == GroupWait(soon)


async def phase_of(handle) -> Phase | None:
    """None before it has opened."""
    try:
        return (await handle.query("status", result_type=Status)).phase
    except WorkflowQueryFailedError:
        return None


async def details_of(handle) -> str:
    metadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details


@pytest.mark.parametrize(("ladder", "phase"), [("reset", Phase.BLOCKING), ("restart", Phase.WAITING)])
async def test_wait_shows_and_a_word_ends_it(skipping, ladder, phase):
    client, world = skipping.client, FleetWorld()
    async with running_workers(client, world):
        handle = await start(client, ladder, storm=StormRule(group_wait=timedelta(minutes=10)))
        async with asyncio.timeout(60):
            while (await phase_of(handle)) is not phase or "only the block" not in await details_of(handle):
                await asyncio.sleep(0.02)
        assert (await handle.query("status", result_type=Status)).slot_held
        await handle.execute_update("abort", {"operator": "ana", "reason": "a test"})
        async with asyncio.timeout(60):  # who waits for the result has the server skip the rest of the wait
            while (await handle.describe()).status is WorkflowExecutionStatus.RUNNING:
                await asyncio.sleep(0.02)
        assert (await handle.query("status", result_type=Status)).outcome == "aborted"
    assert set(world.calls) <= {"observe", "block", "unblock"}


@pytest.mark.parametrize(("wait", "drained"), [(WAIT, False), (timedelta(0), True)], ids=["a wait", "none"])
async def test_storm_that_comes_within_the_wait_disrupts_nobody(skipping, wait, drained):
    client, world = skipping.client, FleetWorld()
    rule = StormRule(nodes=3, unhealthy_percent=100, group_wait=wait)
    async with running_workers(client, world):
        news, handles = GuardNews(client, "test"), []
        for name in ("n1", "n2", "n3"):
            now = await skipping.get_current_time()
            one = report(
                "reboot",
                of=fault("79", at=now, fingerprint=name),
                identity=identity(name),
                budget=PoolBudget(max_unavailable=3),
                storm=rule,
            )
            await news.tell(one, "")
            handles.append(
                await client.start_workflow(
                    "NodeRemediation",
                    {"report": one.model_dump(mode="json")},
                    id=incident_id("test", name),
                    task_queue=REMEDIATION_QUEUE,
                )
            )
            await skipping.sleep(4)
        await skipping.sleep(60)
        seen = [await handle.query("status", result_type=Status) for handle in handles]
    assert world.disturbed == {"n1", "n2"}  # blocked
    assert ("drain" in world.calls) is drained
    assert drained or {status.phase for status in seen} == {"stopped", "waiting-for-slot"}
