"""An incident that waits while its node goes: told to look, it ends, and leaves no slot behind."""

import asyncio

import pytest
from incident.conftest import running_workers
from incident.fakes import World
from incident.opened import slots, start
from temporalio import activity

from gpu_runbooks.activities.model.node import NodeObservation, ObserveNode
from gpu_runbooks.workflows.phases import Outcome


class Leaving(World):
    """The Node is there until somebody takes it away."""

    left = False

    @activity.defn
    async def observe_node(self, request: ObserveNode) -> NodeObservation:
        return NodeObservation(identity=None) if self.left else await super().observe_node(request)


@pytest.mark.parametrize("cached_workflows", [1000, 0], ids=["cached", "replayed"])
async def test_an_incident_that_waits_for_a_person_ends_with_its_node(skipping, cached_workflows):
    world = Leaving(drains=["blocked"] * 9)
    async with running_workers(skipping.client, world, cached_workflows):
        handle = await start(skipping.client)
        while (await handle.query("status")).get("phase") != "needs-operator":
            await asyncio.sleep(0.02)
        looks = world.calls.count("observe")
        while world.calls.count("observe") == looks:
            await handle.signal("look_again")
            await asyncio.sleep(0.02)
        status = await handle.query("status")
        assert (status["phase"], status["outcome"]) == ("needs-operator", None), "its node is there"
        world.left = True
        await handle.signal("look_again")
        while not (status := await handle.query("status"))["outcome"]:
            await asyncio.sleep(0.02)
        assert (await handle.result()).outcome is Outcome.EXPIRED
        assert (await slots(skipping.client))["holders"] == []
    assert "n1" in status["reason"]
