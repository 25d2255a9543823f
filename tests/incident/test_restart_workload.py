"""The ladder `restart`: the pods that hold a GPU end, and the node is left alone."""

import asyncio

import pytest
from incident.conftest import running_workers, until
from incident.fakes import World
from incident.opened import a_person_is_asked, client_time, slots, start, status
from incident.plans import fault, identity, report
from incident.test_drain_orders import blocker

from gpu_runbooks.activities.model.drain import BlockerReason

WORD = {"operator": "ana", "reason": "looked at it"}


async def test_only_the_pods_on_the_gpu_are_ended_and_the_node_is_not_blocked(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        result = await (await start(skipping.client, "restart")).result()
        assert (await slots(skipping.client))["holders"] == []
    assert result.outcome == "restarted"
    assert world.acts == ["restart"]
    assert world.drain_requests[0].only == ("uid-hung",)
    assert world.marker is None


async def test_a_gpu_that_nobody_holds_any_more_needs_no_restart(skipping):
    world = World(holders=())
    async with running_workers(skipping.client, world):
        result = await (await start(skipping.client, "restart")).result()
    assert result.outcome == "restarted"
    assert world.acts == []


@pytest.mark.parametrize(
    "gpu", ["GPU-1", "GPU-9", None], ids=["holders unknown", "no such GPU", "no GPU named"]
)
async def test_pods_are_never_guessed(skipping, workers, gpu):
    world = World(holders=None)
    async with workers(skipping.client, world):
        handle = await start(
            skipping.client, "restart", of=fault("31", at=await client_time(skipping.client), gpu=gpu)
        )
        await a_person_is_asked(handle)
        assert "GPU" in (await status(handle)).question
        await handle.execute_update("abort", WORD)
        await handle.result()
    assert world.acts == []


async def test_a_rebooted_node_has_nothing_to_restart(skipping):
    world = World()
    world.node = identity(boot_id="another")
    async with running_workers(skipping.client, world):
        result = await (await start(skipping.client, "restart", identity=identity())).result()
    assert result.outcome == "expired"
    assert world.acts == []


async def test_a_pod_that_may_not_be_ended_is_shown_and_asked_about(skipping, workers):
    world = World(drains=["blocked"], blockers=[blocker("train-0", BlockerReason.BARE_POD)])
    async with workers(skipping.client, world):
        handle = await start(skipping.client, "restart")
        await a_person_is_asked(handle)
        assert [pod.reason for pod in (await status(handle)).blockers] == ["bare-pod"]
        await handle.execute_update(
            "override_drain", {**WORD, "method": "evict", "pods": ["team-blue/train-0"]}
        )
        assert (await handle.result()).outcome == "restarted"
    assert [len(request.overrides) for request in world.drain_requests] == [0, 1]


async def test_two_gpus_of_one_node_are_both_seen_to(skipping, workers):
    world = World(drains=["waits"], blockers=[blocker("train-0")])
    async with workers(skipping.client, world):
        handle = await start(skipping.client, "restart")
        await until(lambda: "restart" in world.calls)
        now = await client_time(skipping.client)
        await handle.execute_update("report_fault", report("restart", of=fault("43", at=now)))
        await handle.execute_update("override_drain", await the_order(handle))
        assert (await handle.result()).outcome == "restarted"
    assert world.acts == ["restart", "restart"]


async def the_order(handle):
    async with asyncio.timeout(60):
        while not (await status(handle)).blockers:
            await asyncio.sleep(0.02)
    return {**WORD, "method": "evict", "pods": ["all"]}


async def test_a_hardware_fault_that_joins_takes_the_node(skipping, workers):
    world = World(drains=["waits"], blockers=[blocker("train-0")])
    async with workers(skipping.client, world):
        handle = await start(skipping.client, "restart")
        await until(lambda: "restart" in world.calls)
        now = await client_time(skipping.client)
        await handle.execute_update("report_fault", report("reset", of=fault("95", at=now)))
        await handle.execute_update("override_drain", await the_order(handle))
        assert (await handle.result()).outcome == "returned"
    assert world.acts == ["restart", "block", "drain", "reset", "validate", "test_pod", "unblock"]


async def test_nothing_is_restarted_in_mode_observe(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        result = await (await start(skipping.client, "restart", enforce=False)).result()
    assert result.outcome == "observed"
    assert world.calls == []
