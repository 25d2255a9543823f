"""Faults that join an open incident at an awkward moment: each is evaluated, and none does too much."""

import asyncio
from datetime import timedelta

import pytest
from incident.conftest import until
from incident.fakes import World
from incident.opened import a_person_is_asked, client_time, start
from incident.plans import fault, report

from gpu_runbooks.workflows.incident_faults import KEPT_FAULTS

HOURS = timedelta(hours=5)


async def join(skipping, handle, ladder="reset", **of):
    changes = {"toleration": of.pop("toleration", timedelta(0))}
    now = await client_time(skipping.client)
    joined = report(ladder, of=fault(at=now, **of), rule="joined", **changes)
    await handle.execute_update("report_fault", joined)
    return joined.fault


async def join_during(skipping, workers, world, call, *, begun="reset", ladder, **of):
    """The result, and the fault that joined while this call was under way."""
    world.pause[call] = asyncio.Event()
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, begun)
            await until(lambda: call in world.calls)
            joined = await join(skipping, handle, ladder, **of)
        world.pause[call].set()
        return await handle.result(), joined


@pytest.mark.parametrize(
    ("ladder", "gpu", "cure"),
    [
        ("reset", "GPU-7", "reboot"),
        ("reset", None, "reboot"),
        ("reboot", "GPU-1", "reboot"),
        ("replace", "GPU-1", "replace"),
    ],
)
async def test_a_reset_under_way_does_not_explain_what_it_cannot_reach(skipping, workers, ladder, gpu, cure):
    world = World(alone=True, pauses=["paused"])
    await join_during(skipping, workers, world, "reset", ladder=ladder, code="79", gpu=gpu)
    assert world.acts.index("reset") < world.acts.index("drain") < world.acts.index(cure)
    assert world.acts.index(cure) < world.acts.index("test_pod")


@pytest.mark.parametrize(
    ("ladder", "gpu", "cure"),
    [("reset", "GPU-7", "reset"), ("reboot", "GPU-1", "reboot"), ("replace", "GPU-1", "replace")],
)
async def test_a_fault_before_the_reset_is_decided_together_with_the_first(
    skipping, workers, ladder, gpu, cure
):
    """The GPU services were stopped, and nothing was reset yet: what follows is right for both."""
    world = World(alone=True, pauses=["paused"])
    await join_during(skipping, workers, world, "pause paused", ladder=ladder, code="79", gpu=gpu)
    assert [act for act in world.acts if act in {"reset", "reboot", "replace"}] == [cure]
    assert world.acts.index("resume") < world.acts.index("drain") < world.acts.index(cure)


async def test_a_reboot_under_way_does_not_explain_what_asks_for_a_replacement(skipping, workers):
    world = World()
    result, _ = await join_during(
        skipping, workers, world, "await_reboot", begun="reboot", ladder="replace", code="64"
    )
    assert world.acts.count("reboot") == 1
    assert result.outcome == "replaced"


async def test_the_same_gpu_is_cured_by_the_reset_under_way(skipping, workers):
    world = World(alone=True)
    await join_during(skipping, workers, world, "reset", ladder="reset", code="94", gpu="GPU-1")
    assert world.acts.count("reset") == 1
    assert not {"drain", "reboot"} & set(world.acts)


@pytest.mark.parametrize("call", ["reset", "test_pod"])
async def test_a_job_beside_the_reset_gpu_is_no_reason_to_drain_all_jobs_and_its_fault_stays_news(
    skipping, workers, call
):
    world = World(alone=True)
    result, joined = await join_during(
        skipping, workers, world, call, ladder="restart", code="31", gpu="GPU-5"
    )
    assert not {"drain", "reboot"} & set(world.acts)
    assert result.outcome == "returned"
    assert joined.fingerprint not in result.fingerprints


async def test_on_an_emptied_node_an_application_cannot_be_at_fault(skipping, workers):
    world = World()
    result, joined = await join_during(
        skipping, workers, world, "test_pod", ladder="restart", code="31", gpu="GPU-5"
    )
    assert "reboot" in world.acts
    assert joined.fingerprint in result.fingerprints


async def test_no_gpu_is_forgotten_over_the_many_faults_of_another(skipping, workers):
    world = World(alone=True, pause={"examine": asyncio.Event()})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "examine" in world.calls)
            await join(skipping, handle, gpu="GPU-7")
            for number in range(KEPT_FAULTS + 1):
                await join(skipping, handle, gpu="GPU-1", fingerprint=f"again-{number}")
        world.pause["examine"].set()
        await handle.result()
    assert world.acts[-6:] == ["block", "drain", "reset", "validate", "test_pod", "unblock"]
    assert [request.gpu_uuid for request in world.reset_requests] == [None]


async def test_a_hardware_fault_does_not_wait_for_the_answer_about_an_application(skipping, workers):
    world = World(holders=None)
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "restart")
            await a_person_is_asked(handle)
            await join(skipping, handle, "reboot", code="79")
        result = await handle.result()
    assert "reboot" in world.acts
    assert result.outcome == "returned"


async def test_a_severe_fault_cuts_a_toleration_short_however_many_came_before(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, toleration=HOURS)
            for number in range(KEPT_FAULTS + 1):
                await join(skipping, handle, fingerprint=f"again-{number}", toleration=HOURS)
            await join(skipping, handle, "reboot", code="79")
            await until(lambda: "reboot" in world.acts)
