"""The incident workflow on the time-skipping server, with scripted activities."""

import asyncio
from datetime import timedelta

import pytest
from incident.conftest import running_workers, until
from incident.fakes import World
from incident.opened import RESET, a_person_is_asked, client_time, slots, start, status
from incident.plans import fault, identity, report
from temporalio.client import (
    WorkflowUpdateFailedError,
)

from gpu_runbooks.activities.model.node_task import TestPodResult
from gpu_runbooks.workflows.phases import Outcome, Phase


@pytest.mark.parametrize(
    ("ladder", "script", "acts", "outcome"),
    [
        ("reset", {}, RESET, "returned"),
        ("none", {}, [], "left-alone"),
        (
            "reset",
            {"resets": ["not_started"]},
            ["block", "drain", "reset", "drain", "reboot", "await_reboot", "validate", "test_pod", "unblock"],
            "returned",
        ),
        (
            "reset",
            {"validations": [False]},
            ["block", "drain", "reset", "validate", "drain", "reboot", "await_reboot"] + RESET[3:],
            "returned",
        ),
        (
            "reset",
            {"resets": ["failed"], "reboots": ["unproven"]},
            ["block", "drain", "reset", "drain", "reboot", "await_reboot", "drain", "replace", "claim"]
            + ["confirm", "validate", "test_pod", "unblock"],
            "replaced",
        ),
        (
            "reboot",
            {"reboots": ["unknown"]},
            ["block", "drain", "reboot", "await_reboot", "validate", "test_pod", "unblock"],
            "returned",
        ),
        (
            "reboot",
            {"reboots": ["refused"]},
            ["block", "drain", "reboot", "drain", "replace", "claim", "confirm", "validate", "test_pod"]
            + ["unblock"],
            "replaced",
        ),
    ],
    ids=[
        "reset",
        "application",
        "dead agent",
        "invalid reset",
        "replace",
        "unknown reboot",
        "stopped instance",
    ],
)
async def test_the_ladder_is_climbed_to_its_proven_end(skipping, workers, ladder, script, acts, outcome):
    world = World(**script)
    async with workers(skipping.client, world):
        handle = await start(skipping.client, ladder)
        result = await handle.result()
        assert world.acts == acts
        assert result.outcome == outcome
        if acts:
            assert (await slots(skipping.client))["holders"] == []


async def test_a_node_that_cannot_be_drained_is_left_to_a_person_and_never_reset(skipping, workers):
    world = World(drains=["blocked"])
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "drain" in world.calls)
            await a_person_is_asked(handle)
            assert world.acts == ["block", "drain"]
            seen = await status(handle)
            assert seen.blocked
            assert seen.slot_held
            await handle.execute_update("retry", {"operator": "ana", "reason": "moved the pod"})
        assert (await handle.result()).outcome is Outcome.RETURNED
        assert world.acts == ["block", "drain", *RESET[1:]]


async def test_a_block_that_goes_away_in_mid_drain_ends_the_incident_as_released(skipping, workers):
    world = World(drains=["cancelled"])

    def on_call(call: str) -> None:
        if call == "drain":
            world.marker = None

    world.on_call = on_call
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        assert (await handle.result()).outcome is Outcome.RELEASED
    assert world.acts == ["block", "drain", "unblock"]


async def test_a_ladder_without_a_rung_left_asks_a_person_reminds_and_keeps_block_and_slot(skipping, workers):
    world = World(validations=[False])
    async with workers(skipping.client, world):
        handle = await start(skipping.client, "replace", operator_reminder=timedelta(minutes=10))
        await skipping.sleep(timedelta(minutes=35))
        seen = await status(handle)
        assert seen.phase is Phase.NEEDS_OPERATOR
        assert "no rung left" in seen.question
        assert seen.blocked
        assert [holder["node"] for holder in (await slots(skipping.client))["holders"]] == ["n1"]
        events = [event async for event in handle.fetch_history_events()]
        assert len(events) < 220  # three reminders, an alert kept up, a look every five minutes among them
        await handle.execute_update(
            "escalate_to", {"operator": "ana", "reason": "group is back", "rung": "replace"}
        )
        assert (await handle.result()).outcome is Outcome.REPLACED


async def test_a_reboot_that_was_surely_not_sent_is_asked_for_again(skipping, workers):
    """A throttled look at the instance is no outcome of the reboot, and no reason to terminate it."""
    world = World(reboots=["not sent", "not sent"])
    async with workers(skipping.client, world):
        handle = await start(skipping.client, "reboot")
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert world.acts == ["block", "drain", "reboot", "reboot", "reboot", "await_reboot", *RESET[3:]]
    looks = [call for call in world.calls if call in {"observe", "reboot"}]
    assert looks[1:7] == ["observe", "reboot"] * 3


@pytest.mark.parametrize(
    ("pods", "named"),
    [
        (["forbidden"], "exceeded quota"),
        ([TestPodResult(outcome="timed_out", pod="p", message="not ended: not scheduled: taint")], "taint"),
    ],
)
async def test_a_validation_that_measured_nothing_is_no_reason_for_a_stronger_act(
    skipping, workers, pods, named
):
    world = World(pods=pods)
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "test_pod" in world.calls)
            await a_person_is_asked(handle)
            assert named in (await status(handle)).question
            assert world.acts == RESET[:5]
            await handle.execute_update("retry", {"operator": "ana", "reason": "raised the quota"})
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert not {"reboot", "replace"} & set(world.acts)


async def test_with_mig_on_a_person_is_asked_and_no_test_pod_runs(skipping, workers):
    world = World()
    world.mig = True
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await a_person_is_asked(handle)
            assert "MIG is on" in (await status(handle)).question
            assert not {"test_pod", "reboot", "replace", "unblock"} & set(world.calls)
            world.mig = False
            await handle.execute_update("retry", {"operator": "ana", "reason": "switched MIG off"})
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert not {"reboot", "replace"} & set(world.acts)


async def test_a_fault_that_comes_while_the_incident_ends_is_not_taken(skipping, workers):
    world = World(pause={"drain": asyncio.Event()})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "drain" in world.calls)
            await handle.execute_update("abort", {"operator": "ana", "reason": "enough"})
            late = report(of=fault("79", at=await client_time(skipping.client)))
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await handle.execute_update("report_fault", late)
            assert refused.value.cause.type == "Ending"
            world.pause["drain"].set()
        assert late.fault.fingerprint not in (await handle.result()).fingerprints


async def test_a_reboot_that_cannot_be_sent_at_all_is_left_to_a_person(skipping):
    """Once, with a cache: eighty attempts replayed from the start take minutes."""
    world = World(reboots=["not sent"] * 500)
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client, "reboot")
        await skipping.sleep(timedelta(minutes=25))
        seen = await status(handle)
        assert seen.phase is Phase.NEEDS_OPERATOR
        assert "throttled" in seen.question
        assert set(world.acts) == {"block", "drain", "reboot"}
        assert world.acts.count("drain") in {4, 5}  # five minutes later a node may not be empty any more
        await handle.cancel()


async def test_a_claimed_successor_is_not_terminated_where_ec2_does_not_confirm(skipping, workers):
    world = World(confirmations=[False])
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "replace", attempts=3)
            await until(lambda: "confirm" in world.calls)
            await a_person_is_asked(handle)
            assert world.acts.count("replace") == 1
            assert "remove_node" not in world.calls  # its pods may still run
            await handle.execute_update("retry", {"operator": "ana", "reason": "looked at EC2"})
        assert (await handle.result()).outcome is Outcome.REPLACED
    assert world.acts.count("replace") == 1


async def test_a_ladder_without_repairs_drains_asks_and_returns_what_a_person_mended(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "drain")
            await until(lambda: "drain" in world.calls)
            await a_person_is_asked(handle)
            assert world.acts == ["block", "drain"]
            await handle.execute_update("retry", {"operator": "ana", "reason": "board swapped"})
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert world.acts == ["block", "drain", "drain", "validate", "test_pod", "unblock"]


async def test_a_fault_during_validation_is_not_lost(skipping, workers):
    world = World(pause={"test_pod": asyncio.Event()})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "test_pod" in world.calls)
            late = report("reset", of=fault("154", at=await client_time(skipping.client), fingerprint="late"))
            assert await handle.execute_update("report_fault", late) == "joined"
            world.pause["test_pod"].set()
            result = await handle.result()
    assert world.acts == [
        *RESET[:5],
        *["drain", "reboot", "await_reboot", "validate", "test_pod", "unblock"],
    ]
    assert result.outcome is Outcome.RETURNED
    assert "late" in result.fingerprints


@pytest.mark.parametrize(
    ("change", "acts", "outcome"),
    [
        ({"node": identity(provider_id="aws:///us-east-1a/i-new")}, ["block", "drain"], "expired"),
        ({"marker": None}, ["block", "drain", "unblock"], "released"),
        (
            {"node": identity(boot_id="boot-2")},
            ["block", "drain", "validate", "test_pod", "unblock"],
            "returned",
        ),
        (
            {"node": identity(uid="re-registered"), "marker": None},
            ["block", "drain", "block", *RESET[1:]],
            "returned",
        ),
    ],
    ids=["another machine", "block removed", "rebooted by others", "registered again"],
)
async def test_the_node_is_looked_at_again_before_each_act(skipping, workers, change, acts, outcome):
    world = World()
    changed = []

    def on_call(call: str) -> None:
        if call == "drain" and not changed:
            changed.append(call)
            for name, value in change.items():
                setattr(world, name, value)

    world.on_call = on_call
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        result = await handle.result()
    assert world.acts == acts
    assert result.outcome == outcome
