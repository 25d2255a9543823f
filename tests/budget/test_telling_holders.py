"""The activity by which a budget tells incidents of their slots: who hears, and who has no use for one."""

import pytest
from budget.slots import ask
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, Interceptor, OutboundInterceptor, SignalWorkflowInput, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from gpu_runbooks.activities.model.slot import TellHolders
from gpu_runbooks.activities.temporal import Temporal


class Refusing(Interceptor):
    """Has the server refuse each signal to one workflow, as it does after ten thousand of them."""

    def __init__(self, workflow_id: str, status: RPCStatusCode) -> None:
        self._workflow_id, self._status = workflow_id, status

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        refused = RPCError("refused by the test", self._status, b"")
        workflow_id = self._workflow_id

        class Signals(OutboundInterceptor):
            async def signal_workflow(self, input: SignalWorkflowInput) -> None:  # noqa: A002
                if input.id == workflow_id:
                    raise refused
                await super().signal_workflow(input)

        return Signals(next)


async def signals(handle: WorkflowHandle) -> list[str]:
    kind = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    events = (await handle.fetch_history()).events
    return [
        each.workflow_execution_signaled_event_attributes.signal_name
        for each in events
        if each.event_type == kind
    ]


async def told(client: Client, *nodes: str, stopped: str = "") -> list[str]:
    """Nodes whose incidents hear nothing, as the activity says."""
    request = TellHolders(holders=tuple(map(ask, nodes)), stopped=stopped)
    found = await ActivityEnvironment().run(Temporal(client).tell_holders, request)
    return [each.node for each in found.closed]


@pytest.fixture
async def incident(server: Client):
    """Opens an incident that no worker takes up."""

    async def open_incident(node: str) -> WorkflowHandle:
        return await server.start_workflow(
            "NodeRemediation", id=f"node/test/{node}", task_queue="nobody-works-here"
        )

    return open_incident


async def test_open_incidents_hear_and_those_that_ended_or_never_were_are_named(server, incident):
    here, over = await incident("hears"), await incident("over")
    await over.terminate()
    assert await told(server, "hears", "over", "never-was") == ["over", "never-was"]
    assert await told(server, "hears", stopped="storm s1") == []
    assert await signals(here) == ["slot_granted", "disruption_stopped"]
    assert await signals(over) == []


def refusing(server: Client, node: str, status: RPCStatusCode) -> Client:
    config = server.config()
    config["interceptors"] = [Refusing(f"node/test/{node}", status)]
    return Client(**config)


async def test_one_that_takes_no_more_signals_has_no_use_for_a_slot(server, incident):
    await incident("full")
    heard = await incident("hears-beside-full")
    client = refusing(server, "full", RPCStatusCode.FAILED_PRECONDITION)
    assert await told(client, "full", "hears-beside-full") == ["full"]
    assert await signals(heard) == ["slot_granted"]


@pytest.mark.parametrize("status", [RPCStatusCode.UNAVAILABLE, RPCStatusCode.RESOURCE_EXHAUSTED])
async def test_one_that_could_not_be_asked_keeps_its_slot_and_all_is_tried_again(server, incident, status):
    node = f"busy-{status.name.lower()}"
    busy = await incident(node)
    with pytest.raises(RPCError, match="refused by the test"):
        await told(refusing(server, node, status), node)
    assert await told(server, node) == []
    assert await signals(busy) == ["slot_granted"]
