"""What the intake tells the guard of the fleet: every fault, in few signals, before its incident is there."""

import asyncio
from datetime import UTC, datetime

import pytest
from incident.plans import fault, identity, report
from intake.alerts import fresh as alert
from intake.conftest import CLUSTER, Webhook
from temporalio.api.enums.v1 import EventType, PendingWorkflowTaskState
from temporalio.contrib.pydantic import pydantic_data_converter

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.fleet import FaultSeen, FaultsSeen, StormRule
from gpu_runbooks.activities.names import fleet_id, incident_id
from gpu_runbooks.activities.temporal import Temporal as TemporalActivities
from gpu_runbooks.workers.intake.incidents import Incidents
from gpu_runbooks.workers.intake.telling_guard import LONGEST_SIGNAL, sighting, signals
from gpu_runbooks.workflows.search_attributes import RUNBOOK_PHASE


async def settled(webhook: Webhook) -> None:
    """Wait until no workflow task of the guard is under way: until then what it is told is in no history."""
    guard = webhook.temporal.get_workflow_handle(fleet_id(CLUSTER))
    async with asyncio.timeout(60):
        while True:
            task = (await guard.describe()).raw_description.pending_workflow_task
            if task.state != PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED:
                return
            await asyncio.sleep(0.02)


async def told(webhook: Webhook, *nodes: str) -> list[FaultsSeen]:
    """What the guard was told of these nodes, signal by signal, in all its runs."""
    await settled(webhook)
    signalled = []
    run_id: str | None = None
    while run_id != "":  # a guard with many signals behind it goes on in a new run
        guard = webhook.temporal.get_workflow_handle(fleet_id(CLUSTER), run_id=run_id)
        history = await guard.fetch_history()
        signalled += [
            event.workflow_execution_signaled_event_attributes
            for event in history.events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
        ]
        run_id = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    words = [
        (await pydantic_data_converter.decode(each.input.payloads, [FaultsSeen]))[0]
        for each in signalled
        if each.signal_name == "faults_seen"
    ]
    return [word for word in words if any(seen.node in nodes for seen in word.faults)]


def test_what_is_told_fits_a_payload_and_loses_nothing():
    long = [FaultSeen(node=f"n{number}" * 60, pool="p", signature="xid 79") for number in range(200)]
    strict = StormRule(nodes=3)
    faults = [(seen, strict if number % 2 else StormRule()) for number, seen in enumerate(long)]
    words = list(signals(faults))
    assert sorted((seen for word in words for seen in word.faults), key=long.index) == long
    assert all(len(word.model_dump_json()) < LONGEST_SIGNAL + 1024 for word in words)
    for word in words:
        assert all((long.index(seen) % 2 == 1) is (word.rule == strict) for seen in word.faults)
    assert len(words) <= 2 * (sum(len(seen.model_dump_json()) for seen in long) // LONGEST_SIGNAL + 1)


def test_a_fault_is_told_with_all_that_its_node_may_share_with_others():
    one = report("reboot", of=fault("79"), identity=identity("n1"), traits={"driver": "570.1"})
    seen = sighting(one)
    assert (seen.node, seen.pool, seen.signature) == ("n1", one.plan.pool, "xid 79")
    assert seen.traits["driver"] == "570.1"


@pytest.mark.usefixtures("controller")
async def test_what_comes_together_is_told_together(webhook: Webhook, make_node) -> None:
    nodes = await asyncio.gather(*(make_node() for _ in range(6)))
    await asyncio.gather(
        *(webhook.post(alert(node=node, xid="79", fingerprint=f"t{node}")) for node in nodes)
    )
    words = await told(webhook, *nodes)
    assert sorted(seen.node for word in words for seen in word.faults) == sorted(nodes)
    assert len(words) < len(nodes)
    assert all([await webhook.incident(node) for node in nodes])


async def test_where_the_guard_cannot_be_told_no_incident_is_opened(
    webhook: Webhook, node: str, monkeypatch
) -> None:
    async def away(*_) -> None:
        raise TimeoutError

    monkeypatch.setattr(TemporalActivities, "ensure_guard", away)
    status, body = await webhook.post(alert(node=node, xid="79"))
    assert (status, body["alerts"][0]["status"]) == (503, "unavailable")
    assert await webhook.incident(node) is None


async def shows(webhook: Webhook, node: str, phase: str) -> None:
    """Have the incident of a node be in a phase."""
    handle = webhook.temporal.get_workflow_handle(incident_id(CLUSTER, node))
    await handle.signal("show", phase)
    async with asyncio.timeout(30):
        while (await handle.describe()).typed_search_attributes.get(RUNBOOK_PHASE) != phase:
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize(
    ("phase", "source", "counts"),
    [
        ("rebooting", FaultSource.CONDITION, False),
        ("replacing", FaultSource.CONDITION, False),
        ("resetting-gpu", FaultSource.CONDITION, False),
        ("validating", FaultSource.CONDITION, True),
        ("rebooting", FaultSource.XID, True),
    ],
)
async def test_a_condition_under_our_own_repair_is_no_sign_of_a_storm(
    webhook: Webhook, node: str, phase, source, counts
) -> None:
    incidents, onset = Incidents(webhook.temporal, CLUSTER), datetime.now(UTC)

    async def deliver(fingerprint: str, **changes) -> str:
        seen = fault("79", at=onset, fingerprint=fingerprint).model_copy(update=changes)
        one = report("reboot", of=seen, identity=identity(node))
        return (await incidents.deliver(one, wrong=["not Ready"], max_age=None)).status

    assert await deliver("first") == "started"
    assert len(await told(webhook, node)) == 1
    await shows(webhook, node, phase)
    assert await deliver("next", source=source, code="Ready") == "joined"
    assert len(await told(webhook, node)) == 1 + counts


@pytest.mark.usefixtures("controller")
async def test_a_signature_is_told_once_and_again_when_its_node_was_back(webhook: Webhook, node: str) -> None:
    async def tell(fingerprint: str) -> int:
        status, _ = await webhook.post(alert(node=node, xid="79", fingerprint=fingerprint))
        assert status == 200
        return len(await told(webhook, node))

    assert await tell("first") == 1
    assert await tell("first") == 1
    assert await tell("of another GPU") == 1
    await shows(webhook, node, "probation")
    assert await tell("in its probation") == 2
    await webhook.end_incident(node)
    assert await tell("in the next incident") == 3
