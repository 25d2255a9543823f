"""A whole sweep, by its Schedule, on a real API server and a real Temporal server."""

import asyncio

from cluster.conftest import block_request, change_taints

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from gpu_runbooks.activities.names import incident_id, sweep_id
from gpu_runbooks.activities.nodes.block import block
from gpu_runbooks.activities.nodes.node import identity_of, is_our_taint, taints_of
from gpu_runbooks.workers.sweep_schedule import ensure_schedule

TAINT = {"key": names.BLOCK_TAINT, "value": "xid-79", "effect": "NoSchedule"}


async def seen(admin, node):
    return await admin.request("GET", f"/api/v1/nodes/{node['metadata']['name']}")


async def is_tainted(admin, node):
    return any(is_our_taint(taint) for taint in taints_of(await seen(admin, node)))


async def annotate(admin, node, **annotations):
    body = {"metadata": {"annotations": annotations}}
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    await admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def found(result, node):
    name = node if isinstance(node, str) else node["metadata"]["name"]
    return {(each["kind"], each["did"]) for each in result["findings"] if each["subject"] == name}


async def test_the_schedule_runs_a_sweep_that_mends_what_is_ours(sweeping, admin, make_node, at_once):
    tainted, orphan, held, busy = [await make_node() for _ in range(4)]
    await change_taints(admin, tainted["metadata"]["name"], lambda taints: [*taints, TAINT])
    async with sweeping.working():
        for node, hold, outcome in ((orphan, False, "failed"), (held, True, "drained")):
            run = await sweeping.ended(node["metadata"]["name"], outcome)
            incident = incident_id(sweeping.cluster, node["metadata"]["name"])
            wanted = block_request(identity_of(node), incident, run_id=run, hold=hold)
            await block(sweeping.kubernetes, wanted)
        await change_taints(admin, busy["metadata"]["name"], lambda taints: [*taints, TAINT])
        await sweeping.opened(busy["metadata"]["name"])
        await ensure_schedule(sweeping.client, sweeping.settings)
        schedule = sweeping.client.get_schedule_handle(sweep_id(sweeping.cluster))
        try:
            result = await _triggered(sweeping, schedule, 1)
            assert found(result, tainted) == {("leftovers", "mended")}
            assert found(result, orphan) == {("orphan-block", "reported")}
            assert found(result, held) == found(result, busy) == set()
            assert result["held"] >= 1
            assert not await is_tainted(admin, tainted)
            assert await is_tainted(admin, orphan)
            assert await is_tainted(admin, held)
            assert await is_tainted(admin, busy)
            called = [page for page in sweeping.pager.pages if page.node == orphan["metadata"]["name"]]
            assert [page.over for page in called] == [False]
            assert "ReturnNode" in called[0].advice

            result = await _triggered(sweeping, schedule, 2)
            assert found(result, orphan) == {("orphan-block", "reported")}
            assert found(result, tainted) == set()
            again = [page for page in sweeping.pager.pages if page.node == orphan["metadata"]["name"]]
            assert again == called, "one call while it stands"

            await admin.request("DELETE", f"/api/v1/nodes/{orphan['metadata']['name']}")
            await _triggered(sweeping, schedule, 3)
            last = [page for page in sweeping.pager.pages if page.node == orphan["metadata"]["name"]][-1]
            assert last.over
            assert last.labels == called[0].labels
        finally:
            await schedule.delete()


async def _triggered(sweeping, schedule, number):
    """The result of the sweep that this trigger starts."""
    await schedule.trigger()
    while True:
        actions = (await schedule.describe()).info.recent_actions
        if len(actions) == number:
            break
        await asyncio.sleep(0.05)
    started = actions[-1].action
    handle = sweeping.client.get_workflow_handle(started.workflow_id, run_id=started.first_execution_run_id)
    return await handle.result()
