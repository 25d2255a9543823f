"""Conditions of a node: tolerated, over before anything is done, overlapping, looked at before each act."""

import asyncio
from datetime import timedelta

import pytest
from incident.conftest import until
from incident.fakes import World
from incident.opened import NODE, a_person_is_asked, client_time, start, status
from incident.plans import T0, fault, identity, report

from gpu_runbooks.activities.model.fault import ConditionCleared, Entity, FaultSource
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder import next_step
from gpu_runbooks.workflows.ladder_steps import (
    Block,
    Close,
    Look,
    Reconsider,
    Tolerate,
)
from gpu_runbooks.workflows.phases import Outcome

TEN = timedelta(minutes=10)


def condition(
    kind: str = "AcceleratedHardwareReady", reason: str = "NvidiaXID79Error", *, at=T0, bad="False"
):
    good = {"False": "True", "True": "False", "Unknown": "True"}[bad]
    return fault(kind, at=at, gpu=None, fingerprint=f"{kind}/{reason}@{at}").model_copy(
        update={
            "source": FaultSource.CONDITION,
            "status": bad,
            "good_status": good,
            "reason": reason,
            "entity": Entity(),
        }
    )


def opened(of=None, ladder: str = "reset", **changes) -> Incident:
    changes = {"toleration": TEN, **changes}
    return Incident.open("test", NODE, "run", report(ladder, of=of or condition(), **changes), T0)


def looked(incident: Incident, conditions: dict[str, str], now) -> None:
    """A look that began with the faults that stand."""
    incident.looked = True
    incident.look_at(incident.standing(), conditions, now)


def after(minutes: float):
    return T0 + timedelta(minutes=minutes)


def test_nothing_is_done_before_the_toleration_is_over_nor_without_a_look():
    incident = opened()
    assert next_step(incident, after(9.9)) == Tolerate(after(10))
    incident.slot_held = True
    assert next_step(incident, after(10)) == Look()
    looked(incident, {"AcceleratedHardwareReady": "False"}, after(10))
    assert isinstance(next_step(incident, after(10)), Block)


@pytest.mark.parametrize("shown", [{}, {"AcceleratedHardwareReady": "Unknown"}, {"Ready": "True"}])
def test_what_is_not_known_to_be_good_stands(shown):
    incident = opened()
    incident.slot_held = True
    looked(incident, shown, after(10))
    assert isinstance(next_step(incident, after(10)), Block)


def test_one_that_is_over_before_anything_is_done_ends_the_incident():
    incident = opened()
    looked(incident, {"AcceleratedHardwareReady": "True"}, after(10))
    step = next_step(incident, after(10))
    assert isinstance(step, Close)
    assert step.outcome is Outcome.CLEARED


def test_a_watch_that_saw_it_good_ends_the_wait_at_once_and_only_for_that_onset():
    incident = opened(condition(at=after(5)))
    incident.hear(ConditionCleared(type="AcceleratedHardwareReady", uid="u", at=after(4)), after(6))
    assert next_step(incident, after(6)) == Tolerate(after(15))
    incident.hear(ConditionCleared(type="KernelReady", uid="u", at=after(6)), after(6))
    assert next_step(incident, after(6)) == Tolerate(after(15))
    incident.hear(ConditionCleared(type="AcceleratedHardwareReady", uid="u", at=after(7)), after(7))
    assert next_step(incident, after(7)) == Close(Outcome.CLEARED, "it was over before anything was done")


def test_overlapping_conditions_never_reset_each_others_clock():
    """The first is over after the second began: the second is given its own ten minutes, and no more."""
    incident = opened()
    other = condition("KernelReady", "OutOfPids", at=after(8))
    incident.join(report("reboot", of=other, toleration=TEN), after(8))
    assert next_step(incident, after(9)) == Tolerate(after(10))
    incident.hear(ConditionCleared(type="AcceleratedHardwareReady", uid="u", at=after(9)), after(9))
    assert next_step(incident, after(17)) == Tolerate(after(18))
    assert next_step(incident, after(18)) == Reconsider()
    incident.count(report("reboot", of=other, toleration=TEN), after(18))
    assert incident.plan.treatment.ladder == "reboot"


def test_a_second_one_does_not_delay_the_first():
    incident = opened()
    incident.join(
        report("replace", of=condition("Ready", at=after(9)), toleration=timedelta(hours=1)), after(9)
    )
    incident.slot_held = True
    looked(incident, {"AcceleratedHardwareReady": "False", "Ready": "False"}, after(10))
    step = next_step(incident, after(10))
    assert isinstance(step, Block)
    assert incident.plan.treatment.ladder == "reset"


def test_a_milder_fault_without_toleration_acts_now_and_the_severe_one_keeps_its_clock():
    incident = opened(ladder="replace")
    incident.join(report("block", of=fault("94", at=after(2)), toleration=timedelta(0)), after(2))
    assert incident.plan.treatment.ladder == "block"
    assert [each.until for each in incident.pending] == [after(10)]
    incident.slot_held = True
    looked(incident, {"AcceleratedHardwareReady": "False"}, after(3))
    assert isinstance(next_step(incident, after(3)), Block)
    assert next_step(incident, after(10)) == Reconsider()


def test_a_logged_fault_is_never_over_by_a_condition():
    incident = opened()
    incident.join(report("reset", of=fault("95", at=after(1))), after(1))
    incident.hear(ConditionCleared(type="AcceleratedHardwareReady", uid="u", at=after(2)), after(2))
    assert incident.outcome is None


async def test_a_condition_that_heals_within_its_toleration_leaves_the_node_untouched(skipping, workers):
    world = World(conditions={"AcceleratedHardwareReady": "True"})
    async with workers(skipping.client, world):
        now = await client_time(skipping.client)
        handle = await start(skipping.client, of=condition(at=now), toleration=TEN)
        result = await handle.result()
    assert result.outcome == "cleared"
    assert world.acts == []


async def test_one_that_stays_is_repaired(skipping, workers):
    world = World(conditions={"AcceleratedHardwareReady": "False"})
    async with workers(skipping.client, world):
        now = await client_time(skipping.client)
        handle = await start(skipping.client, of=condition(at=now), toleration=TEN)
        result = await handle.result()
        (back,) = [act for act in (await status(handle)).acts if act.rung == "return"]
    assert result.outcome == "returned"
    assert world.acts.index("block") < world.acts.index("drain") < world.acts.index("reset")
    assert back.proof.endswith("; the node still shows AcceleratedHardwareReady False")


async def test_when_the_decisive_fault_is_over_the_others_decide(skipping, workers):
    """A replacement was prescribed for what healed: what stands needs a reset."""
    world = World(
        conditions={"Ready": "True", "AcceleratedHardwareReady": "False"},
        ladder_of={"AcceleratedHardwareReady": "reset"},
    )
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            now = await client_time(skipping.client)
            handle = await start(
                skipping.client, "replace", of=condition("Ready", at=now, bad="Unknown"), toleration=TEN
            )
            joined = report("reset", of=condition(at=now), toleration=TEN)
            await handle.execute_update("report_fault", joined)
            cleared = ConditionCleared(type="Ready", uid=identity().uid, at=now + timedelta(seconds=1))
            await handle.signal("condition_cleared", cleared)
        result = await handle.result()
    assert result.outcome == "returned"
    assert "replace" not in world.acts
    assert "reset" in world.acts


async def test_a_condition_that_flaps_during_the_repair_refutes_nothing(skipping, workers):
    world = World(conditions={"AcceleratedHardwareReady": "False", "Ready": "True"})
    world.pause["reset"] = asyncio.Event()
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "reset" in world.calls)
            now = await client_time(skipping.client)
            flap = condition("Ready", "NodeStatusUnknown", at=now, bad="Unknown")
            await handle.execute_update("report_fault", report("reboot", of=flap, toleration=TEN))
        world.pause["reset"].set()
        result = await handle.result()
    assert result.outcome == "returned"
    assert "reboot" not in world.acts


async def test_a_condition_that_stays_bad_is_waited_for_before_the_node_returns(skipping, workers):
    """Its toleration ends after the validation: it counts then, and the ladder goes on."""
    world = World(conditions={"Ready": "False"}, ladder_of={"Ready": "reboot"})
    world.on_call = lambda call: world.conditions.update(Ready="True") if call == "reboot" else None
    world.pause["reset"] = asyncio.Event()
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "reset" in world.calls)
            now = await client_time(skipping.client)
            stays = condition("Ready", "KubeletNotReady", at=now)
            await handle.execute_update("report_fault", report("reboot", of=stays, toleration=TEN))
        world.pause["reset"].set()
        result = await handle.result()
    assert result.outcome == "returned"
    assert world.acts.count("reset") == world.acts.count("reboot") == 1
    assert world.acts.index("reboot") < world.acts.index("unblock")


async def test_what_was_tolerated_on_the_old_machine_does_not_keep_its_successor_waiting(skipping, workers):
    world = World(conditions={"Ready": "False"})
    world.pause["replace"] = asyncio.Event()
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "replace")
            await until(lambda: "replace" in world.calls)
            began = await client_time(skipping.client)
            stays = condition("Ready", "NodeStatusUnknown", at=began)
            await handle.execute_update("report_fault", report("reboot", of=stays, toleration=6 * TEN))
        world.pause["replace"].set()
        result = await handle.result()
        ended = await client_time(skipping.client)
    assert result.outcome == "replaced"
    assert "reboot" not in world.acts
    assert ended - began < 6 * TEN


async def test_a_condition_that_heals_on_a_node_that_is_only_blocked_is_validated_and_returned(
    skipping, workers
):
    world = World(conditions={"AcceleratedHardwareReady": "False"})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            now = await client_time(skipping.client)
            handle = await start(skipping.client, "block", of=condition(at=now))
            await a_person_is_asked(handle)
            world.conditions["AcceleratedHardwareReady"] = "True"
            cleared = ConditionCleared(
                type="AcceleratedHardwareReady", uid=identity().uid, at=now + timedelta(seconds=5)
            )
            await handle.signal("condition_cleared", cleared)
            result = await handle.result()
    assert result.outcome == "returned"
    assert world.acts.index("block") < world.acts.index("test_pod") < world.acts.index("unblock")
    assert not {"drain", "reset", "reboot", "replace"} & set(world.acts)


async def test_the_word_of_another_nodes_condition_changes_nothing(skipping, workers):
    world = World(conditions={"AcceleratedHardwareReady": "False"})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            now = await client_time(skipping.client)
            handle = await start(skipping.client, "block", of=condition(at=now))
            await a_person_is_asked(handle)
            for raw in (
                None,
                {"type": 1},
                {"type": "AcceleratedHardwareReady", "uid": "other", "at": now.isoformat()},
            ):
                await handle.signal("condition_cleared", raw)
            assert (await status(handle)).phase == "needs-operator"
            await handle.execute_update("abort", {"operator": "ana", "reason": "a test"})
