"""What the intake asks of the pools' budgets: the slots of the incidents that it opens, and no others."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from incident.plans import fault, report
from intake.alerts import fresh as alert
from intake.conftest import CLUSTER, POOL, Webhook
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError

from gpu_runbooks.activities.model.slot import PoolBudget, SlotRequest
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, budget_id, incident_id
from gpu_runbooks.activities.temporal import Temporal as TemporalActivities
from gpu_runbooks.workers.intake.openings import incident_of
from gpu_runbooks.workflows.phases import Phase
from gpu_runbooks.workflows.search_attributes import RUNBOOK_PHASE

NOW = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)


async def asked(webhook: Webhook, *nodes: str) -> list[dict[str, Any]]:
    """Requests for these nodes, once all of them have come."""
    budget: Any = webhook.temporal.get_workflow_handle(budget_id(CLUSTER, POOL))
    async with asyncio.timeout(30):
        while True:
            try:
                said = await budget.query("asked")
            except RPCError:  # it is not started yet
                said = []
            ours = [one for one in said if one["node"] in nodes]
            if {one["node"] for one in ours} == set(nodes):
                return ours
            await asyncio.sleep(0.02)


async def report_of(webhook: Webhook, node: str) -> Any:
    """What opened the incident of a node."""
    history = await webhook.temporal.get_workflow_handle(incident_id(CLUSTER, node)).fetch_history()
    started = history.events[0].workflow_execution_started_event_attributes
    (said,) = await pydantic_data_converter.decode(started.input.payloads, [dict])
    return said["report"]


@pytest.mark.parametrize(
    ("ladder", "changes", "asks"),
    [
        ("reset", {}, True),
        ("restart", {}, True),
        ("reset", {"budget": PoolBudget(max_unavailable=1, block_waiting=True)}, False),
        ("reset", {"enforce": False}, False),
        ("reset", {"toleration": timedelta(minutes=5)}, False),
        ("none", {}, False),
    ],
    ids=["a node", "pods", "block first", "observes", "tolerates", "nothing to do"],
)
def test_slot_is_asked_for_where_it_is_the_first_thing_that_an_incident_needs(ladder, changes, asks):
    opens = incident_of("test", "node/test/n1", report(ladder, of=fault(at=NOW), **changes), NOW)
    assert opens.slot_asked is opens.slot_wanted is asks
    assert opens.phase is (Phase.WAITING_FOR_SLOT if asks else Phase.OPEN)


@pytest.mark.usefixtures("controller")
async def test_each_incident_that_opens_is_asked_for(webhook: Webhook, make_node) -> None:
    nodes = await asyncio.gather(*(make_node() for _ in range(6)))
    await asyncio.gather(*(webhook.post(alert(node=node, xid="79", fingerprint=node)) for node in nodes))
    said = await asked(webhook, *nodes)
    assert len(said) == len(nodes)
    requests = {one["node"]: SlotRequest.model_validate(one) for one in said}
    for node, request in requests.items():
        incident = await webhook.incident(node)
        assert incident is not None
        assert (request.incident, request.run_id) == (incident_id(CLUSTER, node), incident.run_id)
        assert request.rules is not None
        assert request.rules.budget == PoolBudget(max_unavailable=1)
        assert request.since is not None
        assert incident.typed_search_attributes.get(RUNBOOK_PHASE) == "waiting-for-slot"
        history = await webhook.temporal.get_workflow_handle(incident.id).fetch_history()
        started = history.events[0].workflow_execution_started_event_attributes
        (said,) = await pydantic_data_converter.decode(started.input.payloads, [dict])
        assert said["slot_asked"] is True


@pytest.mark.usefixtures("controller")
async def test_what_joins_an_incident_asks_for_nothing_more(webhook: Webhook, make_node) -> None:
    node, other = await make_node(), await make_node()
    for xid in ("79", "79", "48"):
        status, _ = await webhook.post(alert(node=node, xid=xid, fingerprint=xid))
        assert status == 200
    await webhook.post(alert(node=other, xid="79", fingerprint="other"))
    said = await asked(webhook, node, other)
    assert [one["node"] for one in said].count(node) == 1


@pytest.mark.usefixtures("controller")
async def test_where_the_budget_cannot_be_told_the_incident_opens_all_the_same(
    webhook: Webhook, node: str, monkeypatch, caplog
) -> None:
    tried = asyncio.Event()

    async def away(*_) -> None:
        tried.set()
        raise TimeoutError

    monkeypatch.setattr(TemporalActivities, "ensure_budget", away)
    status, body = await webhook.post(alert(node=node, xid="79"))
    assert (status, body["alerts"][0]["status"]) == (200, "started")
    async with asyncio.timeout(30):
        await tried.wait()
        while f"is to ask for its slot of pool {POOL} itself" not in caplog.text:
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("controller")
async def test_an_incident_that_another_intake_opens_meanwhile_is_not_asked_for(
    webhook: Webhook, make_node, monkeypatch
) -> None:
    """Nor is its request made by another fault's severity: the fault joins."""
    node, other = await make_node(), await make_node()
    tell = TemporalActivities.ensure_guard

    async def opened_meanwhile(self, request) -> None:
        await tell(self, request)
        if node in request.model_dump_json():
            await self._client.start_workflow(
                "NodeRemediation",
                {"report": await report_of(webhook, other)},
                id=incident_id(CLUSTER, node),
                task_queue=REMEDIATION_QUEUE,
            )

    await webhook.post(alert(node=other, xid="48", fingerprint="other"))
    monkeypatch.setattr(TemporalActivities, "ensure_guard", opened_meanwhile)
    _, body = await webhook.post(alert(node=node, xid="79", fingerprint="late"))
    assert body["alerts"][0]["status"] == "unavailable", "the stand-in takes it for another machine"
    last = await make_node()
    await webhook.post(alert(node=last, xid="79", fingerprint="last"))
    budget: Any = webhook.temporal.get_workflow_handle(budget_id(CLUSTER, POOL))
    await asked(webhook, last)
    assert node not in {one["node"] for one in await budget.query("asked")}


@pytest.mark.usefixtures("controller")
async def test_an_incident_that_opens_as_the_last_one_ends_is_asked_for(
    webhook: Webhook, node: str, monkeypatch
) -> None:
    await webhook.post(alert(node=node, xid="79", fingerprint="first"))
    tell = TemporalActivities.ensure_guard

    async def ends_meanwhile(self, request) -> None:
        await tell(self, request)
        await webhook.end_incident(node)

    monkeypatch.setattr(TemporalActivities, "ensure_guard", ends_meanwhile)
    _, body = await webhook.post(alert(node=node, xid="48", fingerprint="second"))
    assert body["alerts"][0]["status"] == "started"
    run_id = body["alerts"][0]["run_id"]
    async with asyncio.timeout(30):
        while run_id not in {one["run_id"] for one in await asked(webhook, node)}:
            await asyncio.sleep(0.02)
