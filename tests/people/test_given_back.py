"""A node that is given back with kubectl while its incident waits: noticed within minutes of skipped time."""

import pytest
from incident.conftest import running_workers, skipping
from incident.fakes import World
from incident.opened import a_person_is_asked, start, status

WORD = {"operator": "ana", "reason": "a test"}
__all__ = ["skipping"]


@pytest.mark.parametrize("waits", ["needs-operator", "paused"])
async def test_a_block_that_goes_while_its_incident_waits_ends_it(skipping, waits):
    world = World(drains=["blocked"])
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client)
        await a_person_is_asked(handle)
        if waits == "paused":
            await handle.execute_update("pause", {**WORD, "for": "7d"})
            while (await status(handle)).phase != "paused":
                pass
        looks = world.calls.count("observe")
        world.marker = None
        result = await handle.result()
    assert result.outcome == "released"
    assert "somebody gave the node back" in result.reason
    assert world.calls.count("observe") <= looks + 2
    assert "reset" not in world.calls
