"""Each repair with what stands around it: evidence, scope of the drain, services, the way it is asked for."""

import asyncio

import pytest
from incident.conftest import until
from incident.fakes import EVIDENCE, NOT_KEPT, World
from incident.opened import a_person_is_asked, client_time, slots, start, status
from incident.plans import FORGETFUL, fault, identity, report

from gpu_runbooks.activities.model.node_task import Examination
from gpu_runbooks.activities.model.repair import (
    InstanceReport,
    NodeClaimGone,
    RebootMethod,
    RepairPolicy,
    SuccessorComing,
    SuccessorLaunched,
)

WORD = {"operator": "ana", "reason": "seen"}


def policy(**changes) -> RepairPolicy:
    return RepairPolicy(repeats=FORGETFUL, **changes)


async def asked_a_person(handle) -> bool:
    """Whether it ever waited for a person: what has no answer is asked again by itself, in skipped time."""
    phases = [
        event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
        async for event in handle.fetch_history_events()
    ]
    return any(
        b"needs-operator" in fields["RunbookPhase"].data for fields in phases if "RunbookPhase" in fields
    )


TESTED = ["validate", "test_pod", "unblock"]


async def climb(skipping, workers, world, ladder="reset", **changes):
    async with workers(skipping.client, world):
        handle = await start(skipping.client, ladder, **changes)
        result = await handle.result()
        assert (await slots(skipping.client))["holders"] == []
        return result, await status(handle)


async def test_one_gpus_pods_alone_are_drained_before_its_reset(skipping, workers):
    world = World(alone=True, holders=("uid-a", "uid-b"))
    result, seen = await climb(skipping, workers, world)
    assert world.acts == ["block", "drain_gpu", "reset", *TESTED]
    assert world.drain_requests[0].only == ("uid-a", "uid-b")
    assert world.reset_requests[0].gpu_uuid == "GPU-1"
    assert world.pod_requests[0].free_only
    assert result.outcome == "returned"
    (reset,) = (act for act in seen.acts if act.rung == "reset_gpu")
    assert "sha256:abc" in reset.evidence


async def test_a_gpu_that_no_pod_has_is_reset_without_any_eviction(skipping, workers):
    world = World(alone=True, holders=())
    await climb(skipping, workers, world)
    assert world.acts == ["block", "reset", *TESTED]


@pytest.mark.parametrize(
    ("script", "changes"),
    [
        ({"alone": None}, {}),
        ({"alone": False}, {}),
        ({"alone": True, "holders": None}, {}),
        ({"alone": True}, {"repair": policy(reset_scope="node")}),
        ({"examinations": [Examination(evidence=NOT_KEPT)]}, {}),
    ],
    ids=["nobody knows", "not alone", "pods unknown", "by policy", "agent silent"],
)
async def test_where_the_pods_of_a_gpu_are_not_known_for_sure_the_node_is_drained(
    skipping, workers, script, changes
):
    world = World(**script)
    await climb(skipping, workers, world, **changes)
    assert world.acts[:3] == ["block", "drain", "reset"]
    assert not world.pod_requests[0].free_only


async def test_a_gpu_that_is_not_reset_by_itself_is_reset_with_all_others(skipping, workers):
    world = World(alone=False)
    await climb(skipping, workers, world)
    assert world.reset_requests[0].gpu_uuid is None


async def test_a_reset_that_needs_its_peers_comes_again_behind_a_drain_of_the_node(skipping, workers):
    world = World(alone=True, resets=["needs-peers", "done"])
    result, _ = await climb(skipping, workers, world)
    assert world.acts == ["block", "drain_gpu", "reset", "drain", "reset", *TESTED]
    assert [request.gpu_uuid for request in world.reset_requests] == ["GPU-1", None]
    assert result.outcome == "returned"


@pytest.mark.parametrize("outcome", ["unsupported", "lost", "driver-unresponsive"])
async def test_a_hopeless_reset_is_not_repeated_and_the_others_are_drained_before_the_reboot(
    skipping, workers, outcome
):
    world = World(alone=True, resets=[outcome])
    await climb(skipping, workers, world, attempts=3)
    assert world.acts == ["block", "drain_gpu", "reset", "drain", "reboot", "await_reboot", *TESTED]


@pytest.mark.parametrize("outcome", ["busy", "unknown", "unverified"])
async def test_other_outcomes_use_the_attempts_that_policy_gives(skipping, workers, outcome):
    world = World(resets=[outcome, outcome])
    await climb(skipping, workers, world, attempts=2)
    assert world.acts.count("reset") == 2
    assert "reboot" in world.acts


@pytest.mark.parametrize(
    ("paused", "reset"),
    [("paused", "done"), ("paused", "busy"), ("paused", "driver-unresponsive"), ("failed", "done")],
)
async def test_services_are_resumed_whatever_came_of_the_reset(skipping, workers, paused, reset):
    world = World(pauses=[paused], resets=[reset])
    await climb(skipping, workers, world)
    after = world.acts.index("resume")
    assert world.acts[after - 2 : after] == [f"pause {paused}", "reset"]
    assert "resume" not in world.acts[after + 1 :]


async def test_services_are_resumed_when_the_incident_is_cancelled_in_the_reset(skipping, workers):
    world = World(pauses=["paused"], pause={"reset": asyncio.Event()})
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        await until(lambda: "reset" in world.calls)
        await handle.cancel()
        # The reset goes on: the test server cannot cancel an activity that ends at the same moment.
        await until(lambda: "resume" in world.calls)
        await until(lambda: not world.paused)


async def test_services_that_would_not_come_back_leave_the_reset_out(skipping, workers):
    world = World(pauses=["impossible"])
    await climb(skipping, workers, world, attempts=2)
    assert not {"reset", "resume"} & set(world.calls)
    assert "reboot" in world.calls


async def test_no_reset_is_tried_where_no_agent_could_do_it(skipping, workers):
    silent = Examination(evidence=EVIDENCE, agent_silent=True)
    world = World(examinations=[silent, silent], reboots=["unproven"])
    _, seen = await climb(skipping, workers, world, attempts=2)
    assert world.acts[:4] == ["block", "drain", "reboot", "await_reboot"]
    assert "reset" not in world.calls
    (reset,) = (act for act in seen.acts if act.rung == "reset_gpu")
    assert "no agent" in reset.proof
    waits = [request.start_deadline - request.deadline for request in world.examined]
    assert waits[1] < waits[0]  # it is not waited for as long again


async def test_an_order_for_one_gpu_is_not_widened_to_all_without_asking(skipping, workers):
    from incident.test_manual_runbooks import start as order

    world = World(alone=False)
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await order(skipping.client, "ResetGpu", gpu="GPU-1")
            await a_person_is_asked(handle)
            assert "GPU-1 cannot be reset by itself" in (await status(handle)).question
            assert world.acts == ["block"]
            await handle.execute_update("escalate_to", {**WORD, "rung": "reset_gpu"})
            assert (await handle.result()).outcome == "returned"
    assert world.reset_requests[0].gpu_uuid is None


async def test_a_driver_upgrade_defers_the_reset_and_touches_nothing(skipping, workers):
    world = World(pauses=["deferred", "deferred", "paused"])
    result, _ = await climb(skipping, workers, world)
    assert world.acts.count("reset") == 1
    assert world.acts.index("reset") > world.acts.index("pause paused")
    assert result.outcome == "returned"


async def test_a_deferral_that_does_not_end_is_shown_to_a_person_and_tried_again(skipping, workers):
    world = World(pauses=["deferred"] * 30)
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        assert (await handle.result()).outcome == "returned"
        assert await asked_a_person(handle)
    assert world.acts.count("reset") == 1


async def test_each_repair_has_evidence_of_its_own(skipping, workers):
    world = World(resets=["busy"], reboots=["unproven"])
    await climb(skipping, workers, world)
    assert [request.attempt for request in world.examined] == [1, 2, 3]
    assert [request.reason.split(":")[0] for request in world.examined] == [
        "before reset_gpu",
        "before reboot",
        "before replace",
    ]
    order = [call for call in world.calls if call in {"examine", "reset", "reboot", "replace"}]
    assert order == ["examine", "reset", "examine", "reboot", "examine", "replace"]


@pytest.mark.parametrize(("policy_says", "looks"), [("stop", 2), ("go-on", 1)])
async def test_a_sink_that_fails_stops_the_repair_where_policy_says_so(skipping, workers, policy_says, looks):
    world = World(examinations=[Examination(evidence=NOT_KEPT)])
    async with workers(skipping.client, world):
        handle = await start(skipping.client, "reboot", repair=policy(without_evidence=policy_says))
        assert (await handle.result()).outcome == "returned"
        assert await asked_a_person(handle) == (policy_says == "stop")
    assert world.calls.index("drain") > world.calls.index("examine")
    assert world.calls[: world.calls.index("drain")].count("examine") == looks


async def test_another_repairer_is_not_fought(skipping, workers):
    busy = Examination(evidence=EVIDENCE, other_repairer="Karpenter removes it at 10:00")
    world = World(examinations=[busy])
    async with workers(skipping.client, world):
        handle = await start(skipping.client, "reboot")
        assert (await handle.result()).outcome == "returned"  # it asked again by itself
        assert await asked_a_person(handle)
    assert world.calls[: world.calls.index("drain")].count("examine") == 2


@pytest.mark.parametrize(
    "instance",
    [
        InstanceReport(state="running", retiring="instance-retirement on 2026-01-02"),
        InstanceReport(state="stopped"),
    ],
    ids=["retiring", "stopped"],
)
async def test_a_machine_that_a_reboot_cannot_help_is_replaced_at_once(skipping, workers, instance):
    world = World(instance=instance)
    result, seen = await climb(skipping, workers, world, "reboot", attempts=3)
    assert not {"reboot", "await_reboot"} & set(world.calls)
    assert result.outcome == "replaced"
    (reboot,) = (act for act in seen.acts if act.rung == "reboot")
    assert "not rebooted" in reboot.proof


async def test_an_instance_that_goes_away_in_its_reboot_is_replaced(skipping, workers):
    world = World(reboot_takes_it_away=True)
    result, _ = await climb(skipping, workers, world, "reboot", attempts=2)
    assert world.acts == [
        *["block", "drain", "reboot", "await_reboot", "replace", "claim", "confirm"],
        *TESTED,
    ]
    assert result.outcome == "replaced"


@pytest.mark.parametrize(
    ("method", "call"), [(RebootMethod.AGENT, "reboot_by_agent"), (RebootMethod.COMMAND, "reboot_command")]
)
async def test_a_reboot_goes_the_way_that_policy_names(skipping, workers, method, call):
    world = World()
    await climb(skipping, workers, world, "reboot", repair=policy(reboot=method))
    assert world.acts == ["block", "drain", call, "await_reboot", *TESTED]


async def test_a_group_that_cannot_launch_is_told_and_its_successor_still_claimed(skipping, workers):
    lost = SuccessorComing(coming=False, capacity_lost=True, message="no p5 in us-east-1a")
    world = World(successors=[lost, lost])
    async with workers(skipping.client, world):
        handle = await start(skipping.client, "replace")
        assert (await handle.result()).outcome == "replaced"
        assert await asked_a_person(handle)
    assert world.acts == ["block", "drain", "replace", "claim", "confirm", *TESTED]


async def test_the_successor_is_launched_first_where_policy_says_so(skipping, workers):
    world = World()
    await climb(skipping, workers, world, "replace", repair=policy(launch_first=True))
    assert world.acts[:4] == ["block", "drain", "launch", "replace"]


async def test_nothing_is_terminated_whose_successor_cannot_be_launched(skipping, workers):
    none = SuccessorLaunched(launched=False, message="no capacity")
    world = World(launches=[none] * 3)
    async with workers(skipping.client, world):
        handle = await start(skipping.client, "replace", repair=policy(launch_first=True))
        assert (await handle.result()).outcome == "replaced"
    assert world.acts.index("replace") > [i for i, call in enumerate(world.acts) if call == "launch"][3]


async def test_policy_may_ask_before_an_instance_is_replaced(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "replace", repair=policy(replace="ask"))
            await a_person_is_asked(handle)
            assert world.acts == ["block"]
            await handle.execute_update("escalate_to", {**WORD, "rung": "replace"})
            assert (await handle.result()).outcome == "replaced"


@pytest.mark.parametrize("successor", [True, False])
async def test_karpenters_node_goes_by_its_node_claim(skipping, workers, successor):
    world = World(karpenter=True, node_claims=[NodeClaimGone(gone=True, successor=successor)])
    result, _ = await climb(skipping, workers, world, "replace")
    ending = ["claim", *TESTED] if successor else []
    assert world.acts == ["block", "drain", "delete_claim", "await_claim", *ending]
    assert result.outcome == "replaced"


async def test_a_fault_of_another_gpu_that_joins_before_the_reset_widens_nothing_that_is_not_drained(
    skipping, workers
):
    world = World(alone=True)
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        await until(lambda: "drain_gpu" in world.calls)
        now = await client_time(skipping.client)
        await handle.execute_update("report_fault", report(of=fault("94", at=now, gpu="GPU-7")))
        assert (await handle.result()).outcome == "returned"
    resets = [request.gpu_uuid for request in world.reset_requests]
    for gpu, before in zip(resets, _drains_before_resets(world), strict=True):
        assert gpu == "GPU-1" or before == "drain"


def _drains_before_resets(world: World) -> list[str]:
    last, found = "", []
    for call in world.calls:
        if call in {"drain", "drain_gpu"}:
            last = call
        elif call == "reset":
            found.append(last)
    return found


async def test_what_the_driver_cleans_up_after_our_reset_is_no_fault(skipping, workers):
    world = World(pause={"test_pod": asyncio.Event()})
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        await until(lambda: "test_pod" in world.calls)
        now = await client_time(skipping.client)
        ours = report(of=fault("45", at=now, gpu="GPU-1"))
        await handle.execute_update("report_fault", ours)
        world.pause["test_pod"].set()
        assert (await handle.result()).outcome == "returned"
    assert world.acts.count("reset") == 1
    assert "reboot" not in world.acts


async def test_a_second_machine_is_found_by_its_provider_id(skipping, workers):
    node = identity("n1", provider_id="kwok://n1", instance_id="")
    world = World(node=node)
    result, _ = await climb(skipping, workers, world, "reboot", identity=node)
    assert "inspect" not in world.calls
    assert result.outcome == "returned"
