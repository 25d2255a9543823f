"""One crashed job, or one careless detector: many nodes report the same at once, and none is drained for it.

What is planned is what policy says of the real codes, not a ladder of the test's.
"""

import asyncio
from datetime import timedelta

import pytest
from guard.fleet_world import FleetWorld
from incident.conftest import running_workers
from incident.plans import fault, identity
from policy.factories import P5, SMALLEST

from gpu_runbooks.activities.model.fleet import StormRule
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, fleet_id, incident_id
from gpu_runbooks.workers.intake.telling_guard import GuardNews
from gpu_runbooks.workflows.audit import Status
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.planning import plan
from gpu_runbooks.workflows.storms import Fleet

POLICY = load_policy(SMALLEST + "storm: {nodes: 5}\n")
NODES = 12

SETTLED = {"closed", "waiting-for-slot", "stopped"}

CRASHED_JOB, UNKNOWN, OFF_THE_BUS = "45", "9999", "79"


def reported(node: str, code: str, now) -> FaultReport:
    of = fault(code, at=now, fingerprint=f"{code}@{node}")
    made = plan(POLICY, of, identity(node), P5, "gpu-runbooks")
    return FaultReport(fault=of, plan=made.model_copy(update={"cluster": "test"}))


@pytest.mark.parametrize(
    ("codes", "storms"),
    [
        ([CRASHED_JOB], 1),
        ([UNKNOWN], 1),
        ([OFF_THE_BUS, CRASHED_JOB], 2),
        (["45", "9999", "9998", "31"], 0),  # three nodes of each: no storm, and nothing to drain for either
    ],
)
async def test_no_node_is_drained_or_rebooted(skipping, codes, storms):
    client, now = skipping.client, await skipping.get_current_time()
    world = FleetWorld()
    reports = [reported(f"n{number}", codes[number % len(codes)], now) for number in range(NODES)]
    async with running_workers(client, world):
        news = GuardNews(client, "test")  # as the intake tells them, before it opens the incidents
        await asyncio.gather(*(news.tell(each, "") for each in reports))
        handles = [
            await client.start_workflow(
                "NodeRemediation",
                {"report": each.model_dump(mode="json")},
                id=incident_id("test", each.plan.identity.name),
                task_queue=REMEDIATION_QUEUE,
            )
            for each in reports
        ]
        await skipping.sleep(StormRule().cool_down - timedelta(minutes=3))
        seen = [await handle.query("status", result_type=Status) for handle in handles]
        guard = await client.get_workflow_handle(fleet_id("test")).query("state", result_type=Fleet)
    assert not {"drain", "drain_gpu", "restart", "reset", "reboot", "replace"} & set(world.calls)
    assert len(guard.storms) == storms
    if storms:
        assert sum(storm.nodes for storm in guard.storms) == NODES
        assert {status.phase for status in seen} <= SETTLED
        assert not world.disturbed
    else:
        unknown = {f"n{number}" for number in range(NODES) if codes[number % len(codes)].startswith("99")}
        assert world.disturbed <= unknown  # blocked, tested and given back, a few at a time
