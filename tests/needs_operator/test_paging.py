"""A page at a real Alertmanager, and its Event at a real API server with the cluster worker's rights."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from aiohttp import web

from gpu_runbooks.activities.kubernetes.client import KubernetesError
from gpu_runbooks.activities.model.page import Page
from gpu_runbooks.activities.paging.alertmanagers import Alertmanagers
from gpu_runbooks.activities.paging.paging import page
from testbed.alertmanager import Alertmanager
from testbed.ports import free_port
from testbed.processes import Processes

CORE_EVENTS = "/api/v1/namespaces/default/events"


@asynccontextmanager
async def listening(handler) -> AsyncIterator[str]:
    """A web server whose address is given."""
    application = web.Application()
    application.router.add_post("/{tail:.*}", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def call(node: str, **changes) -> Page:
    now = datetime.now(UTC).replace(microsecond=0)  # Alertmanager shows milliseconds
    values = {
        "alert": "GpuRunbookNeedsOperator",
        "labels": {"node": node, "workflow": f"node/test/{node}"},
        "node": node,
        "summary": f"node {node} needs a person: what now?",
        "since": now,
        "until": now + timedelta(hours=2),
    }
    return Page(**{**values, **changes})


async def events_of(admin, name):
    selector = f"involvedObject.kind=Node,involvedObject.name={name},reason=GpuRunbookNeedsOperator"
    return await admin.items(CORE_EVENTS, field_selector=selector)


async def test_alert_is_raised_once_kept_up_without_a_second_notification_and_taken_back(
    tmp_path, admin, kubernetes, node
):
    received: asyncio.Queue = asyncio.Queue()

    async def receive(request):
        received.put_nowait(await request.json())
        return web.Response()

    token_file = tmp_path / "token"
    token_file.write_text("secret")
    name = node["metadata"]["name"]
    async with listening(receive) as webhook, Processes(tmp_path / "logs") as processes:
        alertmanager = Alertmanager(tmp_path, processes, webhook=webhook, token_file=token_file)
        await alertmanager.start()
        away = f"http://127.0.0.1:{free_port()}"
        async with Alertmanagers.connect(f"{away},{alertmanager.url}") as alertmanagers:
            first = call(name)
            told = await page(kubernetes, alertmanagers, first)
            assert told.reached == ("event", "alertmanager")
            assert away in told.problem
            firing = await asyncio.wait_for(received.get(), 30)
            later = first.model_copy(update={"until": first.until + timedelta(hours=1)})
            await page(kubernetes, alertmanagers, later)
            async with aiohttp.ClientSession() as session:
                (standing,) = await (await session.get(f"{alertmanager.url}/api/v2/alerts")).json()
            over = first.model_copy(update={"over": True, "since": datetime.now(UTC)})
            assert (await page(kubernetes, alertmanagers, over)).reached == ("alertmanager",)
            resolved = await asyncio.wait_for(received.get(), 30)
    assert datetime.fromisoformat(standing["endsAt"]) == later.until
    # Nothing was sent in between: the second notification is the one that it is over.
    assert [firing["status"], resolved["status"]] == ["firing", "resolved"]
    (alert,) = firing["alerts"]
    assert alert["labels"] == {
        "alertname": "GpuRunbookNeedsOperator",
        "severity": "warning",
        "node": name,
        "workflow": f"node/test/{name}",
    }
    assert alert["annotations"]["summary"] == f"node {name} needs a person: what now?"
    (event,) = await events_of(admin, name)
    assert event["involvedObject"]["uid"] == node["metadata"]["uid"]
    assert event["message"].startswith(f"node {name} needs a person")
    assert event["type"] == "Warning"


async def test_alertmanager_that_refuses_is_told_of_and_the_event_is_written(admin, kubernetes, node):
    async def refuse(_):
        return web.Response(status=503, text="not ready")

    name = node["metadata"]["name"]
    async with listening(refuse) as address, Alertmanagers.connect(address) as alertmanagers:
        told = await page(kubernetes, alertmanagers, call(name))
    assert told.reached == ("event",)
    assert told.problem == f"{address}: 503 not ready"
    assert len(await events_of(admin, name)) == 1


async def test_page_about_no_single_node_writes_no_event(kubernetes):
    told = await page(kubernetes, Alertmanagers(), call("", alert="GpuRunbookStorm"))
    assert (told.reached, told.problem) == ((), "")


async def test_node_that_is_gone_gets_its_event_all_the_same(admin, kubernetes):
    assert (await page(kubernetes, Alertmanagers(), call("gone"))).reached == ("event",)
    assert len(await events_of(admin, "gone")) == 1


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("NodeNotReady", "Node"), ("GpuApplicationFault", "Node"), ("GpuRunbookNeedsOperator", "Pod")],
)
async def test_worker_may_write_no_other_events_of_nodes_nor_such_events_of_others(kubernetes, reason, kind):
    namespace = "default" if kind == "Pod" else ""
    body = {
        "metadata": {"name": f"forged-{reason.lower()}"},
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": "Warning",
        "reason": reason,
        "action": "x",
        "regarding": {"apiVersion": "v1", "kind": kind, "name": "n1", "namespace": namespace},
        "reportingController": "gpu-runbooks.dev/cluster-worker",
        "reportingInstance": "x",
    }
    with pytest.raises(KubernetesError) as refused:
        await kubernetes.request("POST", "/apis/events.k8s.io/v1/namespaces/default/events", body=body)
    assert refused.value.status == 403
