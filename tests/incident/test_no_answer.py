"""No answer in the middle of a repair: nothing is done twice, and nothing stronger follows from it."""

from datetime import timedelta

import pytest
from incident.conftest import until
from incident.fakes import EVIDENCE, World
from incident.opened import a_person_is_asked, start
from incident.test_api_away import away
from incident.test_repairs import TESTED, WORD

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.model.node_task import Examination


@pytest.mark.parametrize("call", ["pause paused", "reset", "delete_task"])
async def test_an_outage_in_a_reset_is_no_proof_that_it_failed(skipping, workers, call):
    world = World(pauses=["paused"] * 20, back=False)
    world.on_call = away(call, world)
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        await until(lambda: call in world.calls)
        await skipping.sleep(timedelta(minutes=16))
        world.back = True
        assert (await handle.result()).outcome == "returned"
    assert "reboot" not in world.calls
    assert len({request.attempt for request in world.reset_requests}) == 1  # one NodeTask
    assert not world.paused


async def test_a_reboot_whose_proof_may_not_be_read_is_not_asked_for_again(skipping, workers):
    world = World()

    def forbid(call: str) -> None:
        if call == "await_reboot":
            raise errors.refusal(errors.FORBIDDEN, "nodes is forbidden")

    world.on_call = forbid
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "reboot")
            await a_person_is_asked(handle)
            assert world.acts == ["block", "drain", "reboot", "await_reboot"]
            await handle.execute_update("retry", WORD)
            assert (await handle.result()).outcome == "returned"
    assert world.acts == ["block", "drain", "reboot", "await_reboot", *TESTED]


async def test_to_ask_again_after_no_answer_is_not_to_say_that_all_is_mended(skipping, workers):
    busy = Examination(evidence=EVIDENCE, other_repairer="Karpenter removes it at 10:00")
    world = World(resets=["busy"], examinations=[Examination(evidence=EVIDENCE), busy])
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await a_person_is_asked(handle)
            await handle.execute_update("retry", WORD)
            assert (await handle.result()).outcome == "returned"
    assert world.acts.index("reboot") < world.acts.index("test_pod")


async def test_pods_that_came_to_a_gpu_since_its_drain_are_drained_too(skipping, workers):
    """The node registers again in mid-drain, without its block."""
    world = World(alone=True, holders=("uid-before",))

    def register(call: str) -> None:
        if call == "drain_gpu" and world.node.uid == "uid-n1":
            world.node = world.node.model_copy(update={"uid": "uid-again"})
            world.marker, world.holders = None, ("uid-since",)

    world.on_call = register
    async with workers(skipping.client, world):
        await (await start(skipping.client)).result()
    assert [request.only for request in world.drain_requests] == [("uid-before",), ("uid-since",)]
