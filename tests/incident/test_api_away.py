"""An API server that is away, and a marker that keeps up with the faults that join."""

import asyncio
from datetime import timedelta

from incident.conftest import running_workers, until
from incident.fakes import World
from incident.opened import RESET, a_person_is_asked, client_time, start, status
from incident.plans import fault, report
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors

WORD = {"operator": "ana", "reason": "seen"}


def away(call: str, world: World):
    """The API server is away for one activity until the test says otherwise."""

    def refuse(called: str) -> None:
        if called == call and not world.back:
            raise ApplicationError("503 ServiceUnavailable: no answer", type=errors.UNAVAILABLE)

    return refuse


async def test_an_outage_is_said_and_the_incident_goes_on_by_itself_after_it(skipping, workers):
    world = World(back=False)
    world.on_call = away("block", world)
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        await until(lambda: "block" in world.calls)
        await skipping.sleep(timedelta(minutes=16))
        await a_person_is_asked(handle)
        assert "no answer" in (await status(handle)).question
        assert set(world.acts) == {"block"}
        world.back = True
        result = await handle.result()
    assert result.outcome == "returned"
    assert [call for call in world.acts if call != "block"] == RESET[1:]


async def test_a_node_that_cannot_be_returned_is_shown_and_stays_blocked_until_it_can(skipping, workers):
    world = World(back=False)
    world.on_call = away("unblock", world)
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        await until(lambda: "unblock" in world.calls)
        await skipping.sleep(timedelta(minutes=16))
        await a_person_is_asked(handle)
        assert world.marker is not None
        world.back = True
        assert (await handle.result()).outcome == "returned"
    assert world.marker is None


async def test_a_fault_of_another_rule_adds_its_reason_to_the_block(skipping, workers):
    world = World()
    world.pause["test_pod"] = asyncio.Event()
    async with workers(skipping.client, world):
        handle = await start(skipping.client, rule="first")
        await until(lambda: "test_pod" in world.calls)
        now = await client_time(skipping.client)
        await handle.execute_update(
            "report_fault", report("reset", of=fault("48", at=now, gpu="GPU-2"), rule="second")
        )
        world.pause["test_pod"].set()
        assert (await handle.result()).outcome == "returned"
    assert world.acts.count("block") == 2
    first, second = world.reasons
    assert "95" in first[0]
    assert "95" in second[0]
    assert "48" in second[1]


async def test_a_repeat_of_the_same_rule_does_not_write_the_block_again(skipping):
    world = World()
    world.pause["test_pod"] = asyncio.Event()
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client, rule="first")
        await until(lambda: "test_pod" in world.calls)
        now = await client_time(skipping.client)
        for code in ("95", "48", "64"):
            await handle.execute_update("report_fault", report("reset", of=fault(code, at=now), rule="first"))
        world.pause["test_pod"].set()
        await handle.result()
    assert world.acts.count("block") == 1


async def test_a_block_that_was_removed_is_not_put_back_for_a_new_reason(skipping, workers):
    world = World()
    world.pause["test_pod"] = asyncio.Event()
    async with workers(skipping.client, world):
        handle = await start(skipping.client, rule="first")
        await until(lambda: "test_pod" in world.calls)
        world.marker = None  # kubectl uncordon, and the taint removed
        now = await client_time(skipping.client)
        await handle.execute_update("report_fault", report("reboot", of=fault("119", at=now), rule="second"))
        world.pause["test_pod"].set()
        assert (await handle.result()).outcome == "released"
    assert world.acts.count("block") == 1
    assert world.marker is None
