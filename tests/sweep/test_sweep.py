"""A whole sweep, by its Schedule, on a real API server and a real Temporal server."""

import asyncio
from datetime import UTC, datetime

from cluster.conftest import block_request, change_taints
from sweep.conftest import POOL
from temporalio.client import WorkflowExecutionStatus

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from gpu_runbooks.activities.names import incident_id, sweep_id
from gpu_runbooks.activities.nodes.block import block
from gpu_runbooks.activities.nodes.node import identity_of, is_our_taint, observe, taints_of
from gpu_runbooks.activities.sweep.executions import standing
from gpu_runbooks.workers.sweep_schedule import ensure_schedule

TAINT = {"key": names.BLOCK_TAINT, "value": "xid-79", "effect": "NoSchedule"}


async def seen(admin, node):
    return await admin.request("GET", f"/api/v1/nodes/{node['metadata']['name']}")


async def is_tainted(admin, node):
    return any(is_our_taint(taint) for taint in taints_of(await seen(admin, node)))


async def make_bad(admin, node):
    path = f"/api/v1/nodes/{node['metadata']['name']}/status"
    conditions = (await seen(admin, node))["status"]["conditions"]
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    bad = {"type": "KernelDeadlock", "status": "True", "reason": "DockerHung", "lastTransitionTime": now}
    body = {"status": {"conditions": [*conditions, bad]}}
    await admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def found(result, node):
    name = node if isinstance(node, str) else node["metadata"]["name"]
    return {(each["kind"], each["did"]) for each in result["findings"] if each["subject"] == name}


async def test_the_schedule_runs_a_sweep_that_mends_what_is_ours(sweeping, admin, kubernetes, make_node):
    tainted, orphan, held, busy = [await make_node() for _ in range(4)]
    await change_taints(admin, tainted["metadata"]["name"], lambda taints: [*taints, TAINT])
    async with sweeping.working():
        for node, hold, outcome in ((orphan, False, "failed"), (held, True, "drained")):
            run = await sweeping.ended(node["metadata"]["name"], outcome)
            incident = incident_id(sweeping.cluster, node["metadata"]["name"])
            wanted = block_request(identity_of(node), incident, run_id=run, hold=hold)
            await block(kubernetes, wanted)
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


async def test_a_block_that_goes_while_temporal_is_asked_calls_nobody(
    sweeping, admin, kubernetes, make_node, monkeypatch
):
    node = await make_node()
    name = node["metadata"]["name"]
    incident = incident_id(sweeping.cluster, name)
    async with sweeping.working():
        run = await sweeping.ended(name, "returned")
        await block(kubernetes, block_request(identity_of(node), incident, run_id=run))

        async def asked_too_late(client, asked):
            if asked.id == incident:
                body = {"metadata": {"annotations": {names.BLOCK_ANNOTATION: None}}}
                await admin.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)
            return await standing(client, asked)

        monkeypatch.setattr("gpu_runbooks.activities.sweep.temporal.standing", asked_too_late)
        result = await (await sweeping.start()).result()
    assert found(result, node) == {("orphan-block", "changed")}
    assert not [page for page in sweeping.pager.pages if page.node == name]


async def test_killed_in_the_middle_and_two_at_once_a_sweep_does_no_harm(
    sweeping, admin, kubernetes, make_node, at_once, monkeypatch
):
    tainted, blocked, sick = [await make_node() for _ in range(2)] + [await make_node(pool=POOL)]
    await change_taints(admin, tainted["metadata"]["name"], lambda taints: [*taints, TAINT])
    await make_bad(admin, sick)
    reached, calls = asyncio.Event(), []
    mend = sweeping.sweep._kubernetes.request

    async def dying(method, path, **options):
        """The worker ends with the write on its way: it takes effect, and nobody hears of it."""
        answer = await mend(method, path, **options)
        if method == "PATCH":
            calls.append(path)
            reached.set()
            await asyncio.Event().wait()
        return answer

    monkeypatch.setattr(sweeping.sweep._kubernetes, "request", dying)
    await _until(sweeping, reached)
    monkeypatch.setattr(sweeping.sweep._kubernetes, "request", mend)
    killed = sweeping.client.get_workflow_handle(sweep_id(sweeping.cluster))
    async with sweeping.working():
        run = await sweeping.opened(blocked["metadata"]["name"])
        incident = incident_id(sweeping.cluster, blocked["metadata"]["name"])
        await block(kubernetes, block_request(identity_of(blocked), incident, run_id=run))
        await killed.terminate("killed in the middle")
        both = [await sweeping.start(f"-{number}") for number in range(2)]
        results = [await handle.result() for handle in both]
        opened = sweeping.client.get_workflow_handle(incident_id(sweeping.cluster, sick["metadata"]["name"]))
        assert len(await opened.query("faults")) == 1
    assert calls == [f"/api/v1/nodes/{tainted['metadata']['name']}"]
    assert not await is_tainted(admin, tainted)
    assert observe(await seen(admin, blocked), incident, run).blocked
    for result in results:
        assert found(result, blocked) == set()
        assert found(result, tainted) == set()
        assert result["unread"] == []
    mended = [found(result, sick) for result in results]
    assert {("unhandled-condition", "mended")} in mended


async def _until(sweeping, reached):
    """Begin a sweep, and end its workers at this moment: what they do is cut short."""
    async with sweeping.working():
        await sweeping.start()
        await reached.wait()


async def test_a_condition_that_nobody_took_up_opens_the_incident_of_its_node_once(
    sweeping, admin, make_node, at_once
):
    sick, elsewhere = await make_node(pool=POOL), await make_node()
    opted_out = await make_node(pool=POOL, labels={names.OPT_OUT_LABEL: "true"})
    for node in (sick, elsewhere, opted_out):
        await make_bad(admin, node)
    name = sick["metadata"]["name"]
    async with sweeping.working():
        result = await (await sweeping.start()).result()
        assert found(result, sick) == {("unhandled-condition", "mended")}
        assert found(result, elsewhere) == set(), "in no pool: nobody's business"
        assert found(result, opted_out) == set(), "as its owners want it"
        incident = sweeping.client.get_workflow_handle(incident_id(sweeping.cluster, name))
        faults = await incident.query("faults")
        assert [(each["code"], each["status"]) for each in faults] == [("KernelDeadlock", "True")]
        result = await (await sweeping.start()).result()
        assert found(result, sick) == set()

        await incident.signal("end")
        await incident.result()
        result = await (await sweeping.start()).result()
        assert found(result, sick) == {("unhandled-condition", "left")}, "dealt with: not opened again"
        assert (await incident.describe()).status is WorkflowExecutionStatus.COMPLETED
        assert not any(page.node == name for page in sweeping.pager.pages)
