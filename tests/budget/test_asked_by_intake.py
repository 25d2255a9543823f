"""Incidents whose slot the intake asks for: they do not ask as well, unless nobody has asked for them."""

from datetime import timedelta
from typing import Any

from budget.fleet import Fleet
from budget.incidents import CALM, names, until_state
from incident.conftest import running_workers
from incident.opened import client_time
from incident.plans import fault, identity, report
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle

from gpu_runbooks.activities.model.slot import EnsureBudget, SlotRequest
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, incident_id
from gpu_runbooks.activities.temporal import Temporal
from gpu_runbooks.workers.intake.openings import incident_of
from gpu_runbooks.workflows.audit import Result
from gpu_runbooks.workflows.holding_slot import INTAKE_ASKS
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.slot_request import slot_request
from gpu_runbooks.workflows.slots import Slots

POOL = "p5"


async def opened(client: Client, node: str, **changes: Any) -> tuple[WorkflowHandle, Incident]:
    """An incident as an intake opens it, and what the intake knows of it."""
    now = await client_time(client)
    first = report("reset", of=fault(at=now), identity=identity(node), pool=POOL, storm=CALM, **changes)
    handle = await client.start_workflow(
        "NodeRemediation",
        {"report": first.model_dump(mode="json"), "slot_asked": True},
        id=incident_id("test", node),
        task_queue=REMEDIATION_QUEUE,
        result_type=Result,
    )
    opens = incident_of("test", handle.id, first, now)
    opens.run_id = handle.first_execution_run_id or ""
    return handle, opens


async def ask(client: Client, request: SlotRequest) -> None:
    """As the intake does."""
    await Temporal(client).ensure_budget(EnsureBudget(cluster="test", pool=POOL, request=request))


async def sent(handle: WorkflowHandle) -> list[tuple[str, timedelta]]:
    """What an incident has told others, and when, from its start on."""
    events = (await handle.fetch_history()).events
    began = events[0].event_time.ToDatetime()
    return [
        (
            event.signal_external_workflow_execution_initiated_event_attributes.signal_name,
            event.event_time.ToDatetime() - began,
        )
        for event in events
        if event.event_type == EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED
    ]


async def test_incidents_that_an_intake_asks_for_get_slots_without_a_word_of_their_own(skipping):
    client, fleet = skipping.client, Fleet("n1", "n2")
    async with running_workers(client, fleet):
        handles, requests = [], []
        for node in ("n1", "n2"):
            handle, opens = await opened(client, node)
            handles.append(handle)
            requests.append(slot_request(opens))
        for _ in range(2):  # the second word is a repeat
            for request in requests:
                await ask(client, request)
        ended = [await handle.result() for handle in handles]
    assert [result.outcome for result in ended] == ["returned", "returned"]
    assert fleet.busiest == 1, "the budget of the plan"
    for handle in handles:
        assert [name for name, _ in await sent(handle)] == ["return_slot"]


async def test_an_incident_that_nobody_asks_for_asks_after_a_while(skipping):
    client = skipping.client
    async with running_workers(client, Fleet("n1")):
        handle, _ = await opened(client, "n1")
        assert (await handle.result()).outcome == "returned"
    (first, after), *_ = await sent(handle)
    assert first == "request_slot"
    assert INTAKE_ASKS <= after < 2 * INTAKE_ASKS


async def test_an_incident_that_needs_no_slot_after_all_withdraws_what_was_asked_for_it(skipping):
    """As where the controller has another version than the intake."""
    client = skipping.client
    async with running_workers(client, Fleet("n1")):
        handle, opens = await opened(client, "n1", enforce=False)
        opens.run_id = handle.first_execution_run_id or ""
        await ask(client, slot_request(opens))
        assert (await handle.result()).outcome == "observed"
        seen = await until_state(client, POOL, lambda seen: not seen["waiters"] and not seen["holders"])
    assert names(seen["holders"]) == []


async def test_what_was_withdrawn_is_asked_for_again_without_waiting_for_the_intake(skipping):
    client, tolerated = skipping.client, timedelta(minutes=5)
    async with running_workers(client, Fleet("n1")):
        handle, _ = await opened(client, "n1", toleration=tolerated)
        assert (await handle.result()).outcome == "returned"
    (first, _), (second, after), *_ = await sent(handle)
    assert (first, second) == ("return_slot", "request_slot")
    assert tolerated - timedelta(seconds=1) <= after < tolerated + INTAKE_ASKS


async def test_an_incident_that_says_again_what_the_intake_said_is_no_news():
    """It knows another moment of its beginning than the intake, and has the place of the first word."""
    asked = slot_request(Incident.open("test", "node/test/n1", "run", report("reset"), fault().first_seen))
    slots = Slots(cluster="test", pool=POOL)
    slots.request(asked)
    before = slots.model_copy(deep=True)
    slots.request(asked.model_copy(update={"since": asked.since + timedelta(seconds=1)}))
    assert slots == before
