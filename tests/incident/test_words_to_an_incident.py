"""What people say to an incident, and its cancellation."""

import asyncio

import pytest
from incident.conftest import until
from incident.fakes import World
from incident.opened import RESET, a_person_is_asked, slots, start, status
from temporalio.client import (
    WorkflowFailureError,
    WorkflowUpdateFailedError,
)

from gpu_runbooks.activities.model.repair import RepairPolicy
from gpu_runbooks.workflows.phases import Outcome, Phase


async def test_a_node_that_was_given_back_while_a_person_was_asked_is_released(skipping, workers):
    world = World(validations=[False, False, False])
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "replace")
            await until(lambda: "validate" in world.calls)
            await a_person_is_asked(handle)
            world.marker = None
            await handle.execute_update("retry", {"operator": "ana", "reason": "uncordoned it"})
        assert (await handle.result()).outcome is Outcome.RELEASED
    assert world.acts.count("validate") == 1


async def test_what_only_a_person_can_mend_does_not_lead_to_a_stronger_act(skipping, workers):
    world = World(reboots=["forbidden"])
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "reboot")
            await until(lambda: "reboot" in world.calls)
            await a_person_is_asked(handle)
            assert world.acts == ["block", "drain", "reboot"]
            assert "not permitted" in (await status(handle)).question
            await handle.execute_update("retry", {"operator": "ana", "reason": "gave the role its right"})
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert world.acts == ["block", "drain", "reboot", "drain", "reboot", "await_reboot", *RESET[3:]]


@pytest.mark.parametrize(
    ("update", "argument", "named"),
    [
        ("retry", {"operator": "ana"}, "reason"),
        ("retry", {"operator": " ", "reason": "x"}, "operator"),
        ("retry", {"operator": "ana", "reason": "x"}, "does not wait for a person"),
        ("escalate_to", {"operator": "ana", "reason": "x", "rung": "reboot"}, "does not wait for a person"),
        ("escalate_to", {"operator": "ana", "reason": "x", "rung": "hammer"}, "rung"),
    ],
)
async def test_a_message_that_does_not_fit_is_refused_with_the_reason(
    skipping, workers, update, argument, named
):
    world = World(pause={"drain": asyncio.Event()})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "drain" in world.calls)
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await handle.execute_update(update, argument)
            assert named in str(refused.value.cause)
            world.pause["drain"].set()
        assert (await handle.result()).outcome is Outcome.RETURNED


async def test_a_milder_repair_than_one_tried_is_refused_and_nothing_stronger_is_done(skipping, workers):
    world, word = World(resets=["busy"], reboots=["unproven"]), {"operator": "ana", "reason": "once more"}
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, repair=RepairPolicy(replace="ask"))
            await a_person_is_asked(handle)
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await handle.execute_update("escalate_to", {**word, "rung": "reset_gpu"})
            assert "is at reboot already" in str(refused.value.cause)
            assert (await status(handle)).phase is Phase.NEEDS_OPERATOR
            await handle.execute_update("abort", word)
            await handle.result()
    assert "replace" not in world.calls


async def test_abort_ends_after_the_current_step_and_keeps_the_block(skipping, workers):
    world = World(pause={"drain": asyncio.Event()})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "drain" in world.calls)
            await handle.execute_update("abort", {"operator": "ana", "reason": "maintenance"})
            world.pause["drain"].set()
            result = await handle.result()
        assert result.outcome is Outcome.ABORTED
        assert "ana" in result.reason
        assert world.acts == ["block", "drain"]
        assert world.marker is not None
        assert (await slots(skipping.client))["holders"] == []


async def test_a_cancelled_incident_keeps_the_block_and_returns_the_slot(skipping, workers):
    world = World(pause={"drain": asyncio.Event()})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "drain" in world.calls)
            await handle.cancel()
            with pytest.raises(WorkflowFailureError):
                await handle.result()
            while (await slots(skipping.client))["holders"]:
                await asyncio.sleep(0.02)
        assert world.marker is not None
        assert "unblock" not in world.calls
        assert "reset" not in world.calls
