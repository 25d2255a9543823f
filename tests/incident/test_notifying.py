"""The ladder `notify`: the owner of the workload is told, and neither node nor pods are touched."""

from datetime import timedelta

import pytest
from incident.conftest import running_workers
from incident.fakes import World
from incident.opened import client_time, slots, start, status
from incident.plans import T0, fault, identity, report
from incident.test_ladder import LATER, words
from temporalio.service import RPCError

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.acts import Act
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder import next_step
from gpu_runbooks.workflows.ladder_steps import Close


def opened(ladder="notify", **changes):
    return Incident.open("test", "node/test/n1", "run", report(ladder, **changes), T0)


def told(incident, *, proven=True):
    act = {
        "rung": "notify_owner",
        "attempt": 1,
        "proven": proven,
        "proof": "said",
        "started": T0,
        "ended": T0,
    }
    incident.record(Act(**act))
    incident.unnotified = []
    return incident


def observing(subject, rung):
    treatment = subject.plan.treatment
    rungs = tuple(
        each.model_copy(update={"observe": each.name is rung or each.observe}) for each in treatment.rungs
    )
    plan = subject.plan.model_copy(update={"treatment": treatment.model_copy(update={"rungs": rungs})})
    return subject.model_copy(update={"plan": plan})


@pytest.mark.parametrize(
    ("subject", "step"),
    [
        (opened(), "NotifyOwner"),
        (opened(toleration=timedelta(hours=2)), "Tolerate"),
        (opened(enforce=False), "close observed"),
        (observing(opened(), RungName.NOTIFY_OWNER), "close observed"),
        (opened("none"), "close left-alone"),
        (told(opened()), "close notified"),
        (told(opened(), proven=False), "close left-alone"),
        (opened("notify-and-restart"), "NotifyOwner"),
        (told(opened("notify-and-restart")), "HoldSlot"),
        (observing(opened("notify-and-restart"), RungName.NOTIFY_OWNER), "HoldSlot"),
    ],
)
def test_what_follows(subject, step):
    assert words(next_step(subject, LATER)) == step


def test_a_failed_notice_is_asked_about_without_a_slot():
    subject = opened()
    subject.question = "no right to create events"
    assert words(next_step(subject, LATER)) == "AskOperator"


def test_a_notice_does_not_count_as_something_done_to_the_node():
    subject = told(opened())
    subject.join(report("reset", of=fault("95", at=LATER), enforce=False), LATER)
    step = next_step(subject, LATER)
    assert isinstance(step, Close)
    assert step.outcome == "observed"


async def test_the_owner_is_told_and_nothing_is_touched(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        result = await (await start(skipping.client, "notify", of=fault("31"))).result()
        with pytest.raises(RPCError):
            await slots(skipping.client)  # nobody ever asked for one
    assert result.outcome == "notified"
    assert "Job team-blue/train, Pod team-blue/train-0" in result.reason
    assert world.calls == ["observe", "notify"]
    assert world.marker is None
    (request,) = world.notices
    assert (request.fault.code, [node.name for node in request.nodes]) == ("31", ["n1"])


async def test_nobody_to_tell_is_recorded_and_no_error(skipping):
    world = World(owners=())
    async with running_workers(skipping.client, world):
        result = await (await start(skipping.client, "notify", of=fault("31"))).result()
    assert (result.outcome, result.acts) == ("left-alone", ("notify_owner 1: not proven",))
    assert "no pod with GPUs" in result.reason


async def test_a_rebooted_node_has_nothing_to_tell(skipping):
    world = World()
    world.node = identity(boot_id="another")
    async with running_workers(skipping.client, world):
        result = await (await start(skipping.client, "notify", identity=identity())).result()
    assert result.outcome == "expired"
    assert world.notices == []


async def test_owners_are_told_before_their_pods_are_restarted(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        result = await (await start(skipping.client, "notify-and-restart", of=fault("43"))).result()
    assert result.outcome == "restarted"
    assert world.acts == ["notify", "restart"]


async def test_each_fault_that_joins_is_told_once(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        late = fault("45", at=await client_time(skipping.client))
        handle = await start(skipping.client, "notify", of=late, toleration=timedelta(hours=1))
        await handle.execute_update("report_fault", report("notify", of=fault("31", gpu="GPU-2")))
        assert (await status(handle)).phase == "tolerating"
        assert (await handle.result()).outcome == "notified"
    assert sorted(request.fault.code for request in world.notices) == ["31", "45"]


async def test_a_hardware_fault_that_joins_takes_the_node(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        now = await client_time(skipping.client)
        handle = await start(skipping.client, "notify", of=fault("31", at=now), toleration=timedelta(hours=9))
        await handle.execute_update("report_fault", report("reset", of=fault("95", at=now)))
        assert (await handle.result()).outcome == "returned"
    assert world.acts == ["block", "drain", "reset", "validate", "test_pod", "unblock"]
