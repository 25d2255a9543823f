"""A Node that is deleted under its incident: the end of it, whatever was going on."""

import pytest
from incident.fakes import World
from incident.opened import slots, start
from incident.test_repairs import asked_a_person
from temporalio import activity

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.model.node import NodeObservation, ObserveNode
from gpu_runbooks.workflows.phases import Outcome


class Vanishing(World):
    """The Node goes with the call `at`: that one and all later calls find none."""

    at = ""
    gone = False

    async def _called(self, call: str) -> None:
        await super()._called(call)
        self.gone = self.gone or call == self.at
        if self.gone and call != "resume":
            raise errors.refusal(errors.NODE_NOT_FOUND, 'nodes "n1" not found')

    @activity.defn
    async def observe_node(self, request: ObserveNode) -> NodeObservation:
        return NodeObservation(identity=None) if self.gone else await super().observe_node(request)


@pytest.mark.parametrize("at", ["block", "drain", "pause paused", "reset"])
async def test_the_incident_ends_and_nothing_stronger_is_tried(skipping, workers, at):
    world = Vanishing(at=at, pauses=["paused"])
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        result = await handle.result()
        assert not await asked_a_person(handle)
        assert (await slots(skipping.client))["holders"] == []
    assert result.outcome is Outcome.EXPIRED
    assert "n1" in result.reason
    assert not {"reboot", "replace"} & set(world.calls)
    assert world.calls.count("resume") == ("pause paused" in world.calls)
