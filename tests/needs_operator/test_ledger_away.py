"""The ledger does not answer: a person is asked in the end, and any word goes on."""

import pytest
from incident import conftest
from incident.conftest import ListlessTemporal, running_workers
from incident.fakes import World
from incident.opened import a_person_is_asked, start, status
from temporalio import activity
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities.model.ledger import HardwareHistory, RecallHardware
from gpu_runbooks.activities.model.repair import RepairPolicy, RepeatPolicy

WORD = {"operator": "ana", "reason": "a test"}


class NoLedger(ListlessTemporal):
    @activity.defn
    async def recall_hardware(self, _: RecallHardware) -> HardwareHistory:
        raise ApplicationError("the list of workflows is away")


@pytest.fixture
async def asked(skipping, monkeypatch):
    """An incident that asks because of it, and its world."""
    monkeypatch.setattr(conftest, "ListlessTemporal", NoLedger)
    world = World()
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client, "reboot", repair=RepairPolicy(repeats=RepeatPolicy()))
        await skipping.sleep(20 * 60)
        await a_person_is_asked(handle)
        yield handle, world


async def test_it_is_asked_for_a_quarter_of_an_hour_and_then_a_person(asked):
    handle, world = asked
    assert "the list of workflows is away" in (await status(handle)).question
    assert world.acts == ["block"]
    await handle.execute_update("abort", WORD)
    assert (await handle.result()).outcome == "aborted"


async def test_who_orders_a_repair_gets_it_without_the_ledger(asked, skipping):
    handle, world = asked
    await handle.execute_update("escalate_to", {**WORD, "rung": "reboot"})
    await skipping.sleep(40 * 60)
    assert "drain" in world.acts
