"""Faults that are tolerated, at awkward moments: each counts in its time, and no step is repeated in vain."""

import asyncio
from datetime import timedelta

import pytest
from incident.conftest import until
from incident.fakes import World
from incident.opened import a_person_is_asked, client_time, start, status
from incident.plans import fault, identity, report
from incident.test_conditions import TEN, after, condition, looked, opened
from incident.test_machine_gone import Slow
from temporalio import activity
from temporalio.client import WorkflowUpdateFailedError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.model.fault import ConditionCleared
from gpu_runbooks.activities.model.node import NodeObservation, ObserveNode
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.acts import Act
from gpu_runbooks.workflows.incident_faults import KEPT_FAULTS
from gpu_runbooks.workflows.ladder import next_step
from gpu_runbooks.workflows.ladder_steps import (
    Close,
    NotifyOwner,
    Reconsider,
    Tolerate,
    Validate,
)
from gpu_runbooks.workflows.phases import Outcome

HOUR = timedelta(hours=1)


def cleared(kind: str, at) -> ConditionCleared:
    return ConditionCleared(type=kind, uid=identity().uid, at=at)


def test_what_joins_while_policy_is_asked_is_forgotten_by_nobody():
    incident = opened(condition("Ready", bad="Unknown"), ladder="replace")
    mild = condition("KernelReady")
    incident.join(report("block", of=mild, toleration=TEN), after(1))
    incident.hear(cleared("Ready", after(2)), after(2))
    assert next_step(incident, after(2)) == Tolerate(after(10))
    assert next_step(incident, after(10)) == Reconsider()
    incident.join(report("replace", of=fault("79", at=after(10))), after(10))
    incident.join(report("reboot", of=condition("StorageReady", at=after(10)), toleration=TEN), after(10))
    incident.count(report("block", of=mild, toleration=TEN), after(10))
    assert incident.plan.treatment.ladder == "replace"
    assert [each.fault.code for each in incident.pending] == ["StorageReady"]


def test_a_workload_that_is_restarted_after_all_is_restarted_before_that_is_said():
    incident = opened(ladder="drain")
    of_the_job = fault("31", at=after(1))
    incident.join(report("restart", of=of_the_job, toleration=TEN), after(1))
    incident.join(report("reboot", of=condition("StorageReady", at=after(1)), toleration=HOUR), after(1))
    incident.hear(cleared("AcceleratedHardwareReady", after(2)), after(2))
    assert next_step(incident, after(2)) == Tolerate(after(11))
    incident.count(report("restart", of=of_the_job, toleration=TEN), after(11))
    assert not isinstance(next_step(incident, after(11)), Close)
    assert incident.workload_faults == [of_the_job]


def test_a_restart_that_is_done_is_not_done_again_while_something_is_tolerated():
    incident = opened(fault("31"), ladder="restart", toleration=timedelta(0))
    incident.slot_held = True
    incident.join(report("reboot", of=condition("StorageReady", at=after(1)), toleration=TEN), after(1))
    looked(incident, {}, after(1))
    incident.workload_faults = []
    assert next_step(incident, after(2)) == Tolerate(after(11))
    assert next_step(incident, after(11)) == Reconsider()


def test_an_owner_is_told_although_the_nodes_own_fault_is_over():
    incident = opened()
    notice = report("notify", of=fault("13", at=after(1)))
    incident.join(notice, after(1))
    incident.hear(cleared("AcceleratedHardwareReady", after(2)), after(2))
    assert next_step(incident, after(2)) == Reconsider()
    incident.count(notice, after(2))
    assert isinstance(next_step(incident, after(2)), NotifyOwner)


def test_a_notice_is_no_reason_to_repair_what_is_over():
    incident = opened(toleration=timedelta(0))
    incident.slot_held = incident.blocked = True
    for rung in (RungName.NOTIFY_OWNER, RungName.BLOCK):
        incident.record(Act(rung=rung, attempt=1, proven=True, proof="", started=after(0), ended=after(1)))
    incident.hear(cleared("AcceleratedHardwareReady", after(2)), after(2))
    looked(incident, {}, after(2))
    assert isinstance(next_step(incident, after(2)), Validate)


def test_a_fault_that_came_after_the_look_began_is_not_over_by_it():
    incident = opened(toleration=timedelta(0))
    asked = incident.standing()
    incident.join(report("reset", of=condition(at=after(5)), toleration=TEN), after(5))
    incident.look_at(asked, {"AcceleratedHardwareReady": "True"}, after(6))
    assert incident.outcome is None
    assert next_step(incident, after(6)) == Tolerate(after(15))


def test_what_is_over_is_forgotten_before_what_stands():
    incident = opened(toleration=timedelta(0))
    incident.blocked = True
    stands = fault("95", at=after(1), gpu=None)
    incident.join(report("reset", of=stands), after(1))
    for minute in range(2, 40):
        flap = condition("KernelReady", f"reason-{minute}", at=after(minute))
        incident.join(report("block", of=flap, toleration=TEN), after(minute))
        incident.hear(cleared("KernelReady", after(minute)), after(minute))
    assert stands in incident.standing()


async def test_no_more_are_tolerated_than_can_be_kept(skipping, workers):
    world = World(conditions={"Ready": "False"})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            now = await client_time(skipping.client)
            handle = await start(skipping.client, of=condition("Ready", at=now), toleration=HOUR)
            for number in range(KEPT_FAULTS):
                of = condition("KernelReady", f"reason-{number}", at=now)
                await handle.execute_update("report_fault", report("block", of=of, toleration=HOUR))
            one_more = report("block", of=condition("KernelReady", "one-more", at=now), toleration=HOUR)
            with pytest.raises(WorkflowUpdateFailedError) as rejected:
                await handle.execute_update("report_fault", one_more)
            await handle.execute_update("abort", {"operator": "ana", "reason": "a test"})
    assert rejected.value.cause.type == "Ending"  # to be sent again


async def calls_while(skipping, handle, world, passing: timedelta) -> int:
    """Calls in this time; a step that is taken again and again without a wait makes hundreds."""
    before = len(world.calls)
    await skipping.sleep(passing)
    await status(handle)  # whatever the workflow still had to do is done
    return len(world.calls) - before


async def test_a_tolerated_fault_of_a_machine_that_is_gone_waits(skipping, workers):
    world = Slow(karpenter=True)
    world.pause["await_claim"] = asyncio.Event()
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "replace")
            await until(lambda: "await_claim" in world.calls)
            now = await client_time(skipping.client)
            last = condition("Ready", "NodeStatusUnknown", at=now, bad="Unknown")
            await handle.execute_update(
                "report_fault", report("reboot", of=last, toleration=timedelta(minutes=1))
            )
            world.pause["await_claim"].set()
            await a_person_is_asked(handle)
        assert await calls_while(skipping, handle, world, timedelta(minutes=30)) < 60
        await handle.execute_update("abort", {"operator": "ana", "reason": "a test"})


async def test_a_look_that_is_refused_is_taken_again_in_ten_minutes(skipping, workers):
    world = World(conditions={"Ready": "False"}, refusing=False)

    def refuse(call: str) -> None:
        if call == "observe" and world.refusing:
            raise errors.refusal(errors.FORBIDDEN, "nodes is forbidden")

    world.on_call = refuse
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "block")
            await a_person_is_asked(handle)
            now = await client_time(skipping.client)
            stays = report("reboot", of=condition("Ready", at=now), toleration=timedelta(minutes=1))
            await handle.execute_update("report_fault", stays)
            world.refusing = True
        assert 1 < await calls_while(skipping, handle, world, timedelta(minutes=30)) < 10
        assert (await status(handle)).question
        await handle.execute_update("abort", {"operator": "ana", "reason": "a test"})


async def test_a_policy_that_refuses_what_stands_becomes_a_question(skipping, workers):
    world = World(conditions={"Ready": "True", "KernelReady": "False"})

    def refuse(call: str) -> None:
        if call == "plan":
            raise errors.refusal(errors.POLICY_REFUSED, "the node is in no pool")

    world.on_call = refuse
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            now = await client_time(skipping.client)
            of = condition("Ready", at=now, bad="Unknown")
            handle = await start(skipping.client, "replace", of=of, toleration=TEN)
            other = report("reboot", of=condition("KernelReady", at=now), toleration=TEN)
            await handle.execute_update("report_fault", other)
            await handle.signal("condition_cleared", cleared("Ready", now + timedelta(seconds=1)))
        assert await calls_while(skipping, handle, world, timedelta(hours=1)) < 40
        assert "in no pool" in ((await status(handle)).question or "")
        await handle.execute_update("abort", {"operator": "ana", "reason": "a test"})
    assert world.acts == ["plan"] or not {"block", "drain", "reboot", "replace"} & set(world.acts)


async def test_a_tolerated_fault_wakes_who_waits_for_a_person(skipping, workers):
    world = World(
        conditions={"AcceleratedHardwareReady": "False"}, ladder_of={"AcceleratedHardwareReady": "reset"}
    )
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "block")
            await a_person_is_asked(handle)
            now = await client_time(skipping.client)
            joined = report("reset", of=condition(at=now), toleration=TEN)
            await handle.execute_update("report_fault", joined)
        await handle.result()
        (drain,) = [act for act in (await status(handle)).acts if act.rung == "drain"]
    assert TEN <= drain.started - now < 2 * TEN


async def test_one_that_joins_while_the_node_is_given_back_is_waited_for(skipping, workers):
    world = World(conditions={"StorageReady": "False"}, ladder_of={"StorageReady": "reboot"})
    world.on_call = lambda call: world.conditions.update(StorageReady="True") if call == "reboot" else None
    world.pause["unblock"] = asyncio.Event()
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "unblock" in world.calls)
            now = await client_time(skipping.client)
            stays = report("reboot", of=condition("StorageReady", at=now), toleration=TEN)
            await handle.execute_update("report_fault", stays)
            world.pause["unblock"].set()
        result = await handle.result()
    assert result.outcome is Outcome.RETURNED
    assert world.acts.index("unblock") < world.acts.index("reboot")
    assert world.acts[-1] == "unblock"


class Shown(World):
    """Its answer to a look is of the moment at which it was asked."""

    @activity.defn
    async def observe_node(self, request: ObserveNode) -> NodeObservation:
        shown = dict(self.conditions)
        seen = await super().observe_node(request)
        asked = {kind: state for kind, state in shown.items() if kind in request.conditions}
        return seen.model_copy(update={"conditions": asked})


async def test_a_condition_that_turns_bad_behind_a_look_is_not_over(skipping, workers):
    world = Shown(conditions={"AcceleratedHardwareReady": "True"})
    world.pause["observe"] = asyncio.Event()
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            now = await client_time(skipping.client)
            handle = await start(skipping.client, of=condition(at=now))
            await until(lambda: "observe" in world.calls)
            world.conditions["AcceleratedHardwareReady"] = "False"
            again = condition(at=now + timedelta(seconds=2))
            await handle.execute_update("report_fault", report("reset", of=again, toleration=TEN))
            world.pause["observe"].set()
        result = await handle.result()
    assert result.outcome is Outcome.RETURNED
    assert "reset" in world.acts
