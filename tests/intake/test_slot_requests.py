"""What the intake asks of the pools' budgets: the slots of the incidents that it opens, in few signals."""

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
from gpu_runbooks.activities.names import budget_id, incident_id
from gpu_runbooks.activities.temporal import Temporal as TemporalActivities
from gpu_runbooks.workers.intake.openings import incident_of
from gpu_runbooks.workers.intake.slot_requests import LONGEST_SIGNAL, signals
from gpu_runbooks.workflows.phases import Phase
from gpu_runbooks.workflows.search_attributes import RUNBOOK_PHASE

NOW = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)


async def asked(webhook: Webhook, *nodes: str) -> list[list[dict[str, Any]]]:
    """Requests of these nodes, signal by signal, once all of them have come."""
    budget: Any = webhook.temporal.get_workflow_handle(budget_id(CLUSTER, POOL))
    async with asyncio.timeout(30):
        while True:
            try:
                said = await budget.query("asked")
            except RPCError:  # it is not started yet
                said = []
            ours = [[one for one in each if one["node"] in nodes] for each in said]
            if {one["node"] for each in ours for one in each} == set(nodes):
                return [each for each in ours if each]
            await asyncio.sleep(0.02)


def test_requests_fit_a_payload_and_none_is_lost():
    requests = [
        SlotRequest(incident=f"node/test/{'n' * 200}{n}", run_id="r", node=f"n{n}") for n in range(200)
    ]
    told = list(signals(requests))
    assert [each for together in told for each in together] == requests
    sizes = [sum(len(each.model_dump_json()) + 1 for each in together) for together in told]
    assert max(sizes) <= LONGEST_SIGNAL
    assert len(told) <= sum(sizes) // LONGEST_SIGNAL + 2
    assert list(signals([])) == []


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
async def test_incidents_that_open_together_are_asked_for_together(webhook: Webhook, make_node) -> None:
    nodes = await asyncio.gather(*(make_node() for _ in range(6)))
    await asyncio.gather(
        *(webhook.post(alert(node=node, xid="79", fingerprint=f"s{node}")) for node in nodes)
    )
    words = await asked(webhook, *nodes)
    assert len(words) < len(nodes)
    requests = {one["node"]: SlotRequest.model_validate(one) for each in words for one in each}
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
    words = await asked(webhook, node, other)
    assert sum(one["node"] == node for each in words for one in each) == 1


@pytest.mark.usefixtures("controller")
async def test_where_the_budget_cannot_be_told_the_incident_opens_all_the_same(
    webhook: Webhook, node: str, monkeypatch, caplog
) -> None:
    tried = asyncio.Event()

    async def away(*_) -> None:
        tried.set()
        raise TimeoutError

    monkeypatch.setattr(TemporalActivities, "request_slots", away)
    status, body = await webhook.post(alert(node=node, xid="79"))
    assert (status, body["alerts"][0]["status"]) == (200, "started")
    async with asyncio.timeout(30):
        await tried.wait()
        while f"of pool {POOL} ask for their slots by themselves" not in caplog.text:
            await asyncio.sleep(0.02)
