"""The node is back in service and watched: what a fault in that time leads to, and how the watch ends."""

import asyncio
from datetime import UTC, timedelta

import pytest
from incident.conftest import running_workers, until
from incident.fakes import World
from incident.opened import NODE, RESET, client_time, slots, start, status
from incident.plans import fault, identity, report
from temporalio.client import WorkflowUpdateFailedError

from gpu_runbooks.activities.names import REMEDIATION_QUEUE
from gpu_runbooks.workflows.audit import Result
from gpu_runbooks.workflows.messages import EXPIRED, KNOWN
from gpu_runbooks.workflows.phases import Outcome, Phase

PROBATION = timedelta(minutes=30)
WORD = {"operator": "ana", "reason": "needs the node"}


async def in_probation(skipping, world, ladder="reset", **changes):
    """An incident whose node is back in service."""
    handle = await start(skipping.client, ladder, probation=PROBATION, **changes)
    await until(lambda: world.acts[-1:] == ["unblock"])
    while (await status(handle)).phase is not Phase.PROBATION:
        await skipping.sleep(timedelta(seconds=1))
    return handle


async def tell(skipping, handle, ladder="reset", code="95", **changes):
    """Report a fault that begins now; returns the incident's answer."""
    opened = report(
        ladder, of=fault(code, at=await client_time(skipping.client)), probation=PROBATION, **changes
    )
    return await handle.execute_update("report_fault", opened)


async def test_node_is_in_service_without_block_and_slot_and_the_incident_ends_by_itself(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        handle = await in_probation(skipping, world)
        seen = await status(handle)
        assert not seen.blocked
        assert not seen.slot_held
        assert not world.node_has_block()
        assert (await slots(skipping.client))["holders"] == []
        details = (await handle.query("__temporal_workflow_metadata")).current_details
        assert "## probation" in details
        assert "**In service**, not blocked, and watched until" in details
        result = await handle.result()
    assert result.outcome is Outcome.RETURNED
    assert world.acts == RESET
    assert world.pages == []


async def test_same_fault_again_is_answered_by_the_next_stronger_repair(skipping):
    """The ladder allows two resets: the one that did not last is not done once more all the same."""
    world = World()
    async with running_workers(skipping.client, world):
        handle = await in_probation(skipping, world, attempts=2)
        assert await tell(skipping, handle, attempts=2) == "joined"
        result = await handle.result()
        assert (await slots(skipping.client))["holders"] == []
    assert result.outcome is Outcome.RETURNED
    assert world.acts == [*RESET, "block", "drain", "reboot", "await_reboot", *RESET[3:]]
    assert result.acts.count("return 1: proven") == result.acts.count("return 2: proven") == 1


async def test_another_fault_goes_on_where_the_ladder_stood(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        handle = await in_probation(skipping, world)
        opened = report(
            "reboot", of=fault("79", at=await client_time(skipping.client), gpu="GPU-2"), probation=PROBATION
        )
        assert await handle.execute_update("report_fault", opened) == "joined"
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert world.acts == [*RESET, "block", "drain", "reboot", "await_reboot", *RESET[3:]]


async def test_node_that_fails_again_is_blocked_only_with_a_slot(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        handle = await in_probation(skipping, world)
        budget = skipping.client.get_workflow_handle("budget/test/p5")
        await budget.execute_update("halt", {"operator": "ana", "reason": "an exam", "for": "2h"})
        await tell(skipping, handle)
        while (await status(handle)).phase is not Phase.WAITING_FOR_SLOT:
            await skipping.sleep(timedelta(seconds=1))
        assert world.acts == RESET
        await budget.execute_update("resume", {"operator": "ana", "reason": "it is over"})
        assert (await handle.result()).outcome is Outcome.RETURNED
        assert (await slots(skipping.client))["holders"] == []
    assert world.acts.count("block") == 2


async def test_alert_that_still_fires_is_no_news_in_probation(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        handle = await in_probation(skipping, world)
        first = (await status(handle)).faults[0]
        with pytest.raises(WorkflowUpdateFailedError) as known:
            await handle.execute_update("report_fault", report(of=first))
        assert known.value.cause.type == KNOWN
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert world.acts == RESET


async def test_fault_from_before_the_repair_changes_nothing(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        handle = await in_probation(skipping, world)
        first = (await status(handle)).faults[0]
        late = first.model_copy(update={"code": "94", "fingerprint": "late"})
        assert await handle.execute_update("report_fault", report(of=late)) == "joined"
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert world.acts == RESET


@pytest.mark.parametrize("ladder", ["notify", "restart", "notify-and-restart"])
async def test_fault_of_the_workload_does_not_take_the_node_out_again(skipping, ladder):
    """It has an incident of its own, with its own ladder: the watch ends for it."""
    world = World()
    async with running_workers(skipping.client, world):
        handle = await in_probation(skipping, world)
        assert await tell(skipping, handle, ladder, code="13") == EXPIRED
        with skipping.auto_time_skipping_disabled():
            result = await handle.result()
    assert result.outcome is Outcome.RETURNED
    assert len(result.fingerprints) == 1  # the other fault stays news
    assert world.acts == RESET


async def test_abort_ends_the_watch_at_once_and_says_that_the_node_is_in_service(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        handle = await in_probation(skipping, world)
        said = await handle.execute_update("abort", WORD)
        assert "in service and not blocked" in said
        with skipping.auto_time_skipping_disabled():
            result = await handle.result()
    assert result.outcome is Outcome.RETURNED
    assert world.acts == RESET


async def test_machine_that_took_the_name_makes_the_incident_end(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        handle = await in_probation(skipping, world)
        other = identity("n1", provider_id="aws:///us-east-1a/i-new", instance_id="i-new", uid="uid-new")
        assert await tell(skipping, handle, identity=other) == EXPIRED
        with skipping.auto_time_skipping_disabled():
            assert (await handle.result()).outcome is Outcome.EXPIRED
    assert world.acts == RESET


async def test_fault_of_a_node_that_is_gone_by_then_ends_it(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        handle = await in_probation(skipping, world)
        world.node = identity("n2")
        await tell(skipping, handle)
        result = await handle.result()
        assert (await slots(skipping.client))["holders"] == []
    assert result.outcome is Outcome.EXPIRED
    assert "drain" not in world.acts[len(RESET) :]


async def test_runbook_of_a_person_ends_with_the_return(skipping):
    """What follows then opens an incident of its own, whose ledger knows the repair."""
    world = World(plan_changes={"probation": PROBATION})
    async with running_workers(skipping.client, world):
        handle = await skipping.client.start_workflow(
            "RebootNode",
            {"node": "n1", "operator": "ana", "reason": "new firmware"},
            id=NODE,
            task_queue=REMEDIATION_QUEUE,
            result_type=Result,
        )
        with skipping.auto_time_skipping_disabled():
            assert (await handle.result()).outcome is Outcome.RETURNED


async def test_same_fault_after_a_replacement_asks_a_person(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        handle = await in_probation(skipping, world, "replace")
        await tell(skipping, handle, "replace", identity=world.node)
        while (await status(handle)).phase is not Phase.NEEDS_OPERATOR:
            await skipping.sleep(timedelta(seconds=1))
        seen = await status(handle)
        assert seen.blocked
        assert seen.slot_held
        assert world.acts.count("replace") == 1
        assert len(world.pages) == 1
        await handle.execute_update("abort", WORD)
        assert (await handle.result()).outcome is Outcome.ABORTED


async def test_abort_right_behind_a_fault_of_the_probation_ends_the_incident(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        handle = await in_probation(skipping, world)
        now = await client_time(skipping.client)
        opened = report("reset", of=fault("95", at=now), probation=PROBATION)
        _, aborted = await asyncio.gather(
            handle.execute_update("report_fault", opened),  # refused where the abort came first
            handle.execute_update("abort", WORD),
            return_exceptions=True,
        )
        assert isinstance(aborted, str)
        assert (await handle.result()).outcome in {Outcome.ABORTED, Outcome.RETURNED}
    assert world.acts[: len(RESET)] == RESET
    assert not {"drain", "reboot"} & {*world.acts[len(RESET) :]}


async def test_workload_fault_ends_a_probation_that_is_paused(skipping):
    world = World()
    async with running_workers(skipping.client, world):
        handle = await in_probation(skipping, world)
        began = await client_time(skipping.client)
        await handle.execute_update("pause", {**WORD, "for": "20m"})
        assert await tell(skipping, handle, "restart", code="13") == EXPIRED
        assert (await handle.result()).outcome is Outcome.RETURNED
        # Not the server's clock: with nothing left to wait for it skips on, to the end of time.
        ended = (await handle.fetch_history()).events[-1].event_time.ToDatetime(UTC)
        assert ended - began < timedelta(minutes=10)
