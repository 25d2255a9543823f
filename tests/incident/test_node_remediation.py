"""The incident workflow on the time-skipping server, with scripted activities."""

import asyncio
import contextlib
from datetime import timedelta

import pytest
from google.protobuf.empty_pb2 import Empty
from incident.conftest import running_workers, until
from incident.fakes import World
from incident.plans import T0, fault, identity, report
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy

from gpu_runbooks.activities.model.node import BlockMarker
from gpu_runbooks.activities.model.node_task import TestPodResult
from gpu_runbooks.activities.model.repair import RepairPolicy
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, budget_id, incident_id
from gpu_runbooks.workflows.audit import Result, Status
from gpu_runbooks.workflows.phases import Outcome, Phase

NODE = incident_id("test", "n1")

RESET = ["block", "drain", "reset", "validate", "test_pod", "unblock"]


async def start(client: Client, ladder: str = "reset", *, of=None, workflow_id: str = NODE, **changes):
    now = await client_time(client)
    opened = report(ladder, of=of or fault(at=now), **changes)
    return await client.start_workflow(
        "NodeRemediation",
        {"report": opened.model_dump(mode="json")},
        id=workflow_id,
        task_queue=REMEDIATION_QUEUE,
        result_type=Result,
    )


async def client_time(client: Client):
    """The server's clock, which skips."""
    answer = await client.test_service.get_current_time(Empty())
    return answer.time.ToDatetime(tzinfo=T0.tzinfo)


async def status(handle) -> Status:
    return await handle.query("status", result_type=Status)


async def a_person_is_asked(handle) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(WorkflowQueryFailedError):  # it has not opened yet
                if (await status(handle)).phase is Phase.NEEDS_OPERATOR:
                    return
            await asyncio.sleep(0.02)


async def it_rests(handle) -> None:
    """Nothing but a timer is left. The server skips no time after a run was ended in mid-task."""
    async with asyncio.timeout(60):
        while True:
            *_, last = [event async for event in handle.fetch_history_events()]
            if last.HasField("timer_started_event_attributes"):
                return
            await asyncio.sleep(0.02)


async def slots(client: Client):
    return await client.get_workflow_handle(budget_id("test", "p5")).query("state")


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


async def test_a_node_that_was_given_back_while_a_person_was_asked_is_released(skipping, workers):
    world = World(validations=[False, False, False])
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "replace")
            await until(lambda: "validate" in world.calls)
            await a_person_is_asked(handle)
            world.marker = None
            await handle.execute_update("retry", {"operator": "ana", "reason": "uncordoned it"})
        assert (await handle.result()).outcome is Outcome.RELEASED
    assert world.acts.count("validate") == 1


async def test_what_only_a_person_can_mend_does_not_lead_to_a_stronger_act(skipping, workers):
    world = World(reboots=["forbidden"])
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "reboot")
            await until(lambda: "reboot" in world.calls)
            await a_person_is_asked(handle)
            assert world.acts == ["block", "drain", "reboot"]
            assert "not permitted" in (await status(handle)).question
            await handle.execute_update("retry", {"operator": "ana", "reason": "gave the role its right"})
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert world.acts == ["block", "drain", "reboot", "drain", "reboot", "await_reboot", *RESET[3:]]


@pytest.mark.parametrize(
    ("update", "argument", "named"),
    [
        ("retry", {"operator": "ana"}, "reason"),
        ("retry", {"operator": " ", "reason": "x"}, "operator"),
        ("retry", {"operator": "ana", "reason": "x"}, "does not wait for a person"),
        ("escalate_to", {"operator": "ana", "reason": "x", "rung": "reboot"}, "does not wait for a person"),
        ("escalate_to", {"operator": "ana", "reason": "x", "rung": "hammer"}, "rung"),
    ],
)
async def test_a_message_that_does_not_fit_is_refused_with_the_reason(
    skipping, workers, update, argument, named
):
    world = World(pause={"drain": asyncio.Event()})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "drain" in world.calls)
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await handle.execute_update(update, argument)
            assert named in str(refused.value.cause)
            world.pause["drain"].set()
        assert (await handle.result()).outcome is Outcome.RETURNED


async def test_a_milder_repair_than_one_tried_is_refused_and_nothing_stronger_is_done(skipping, workers):
    world, word = World(resets=["busy"], reboots=["unproven"]), {"operator": "ana", "reason": "once more"}
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, repair=RepairPolicy(replace="ask"))
            await a_person_is_asked(handle)
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await handle.execute_update("escalate_to", {**word, "rung": "reset_gpu"})
            assert "is at reboot already" in str(refused.value.cause)
            assert (await status(handle)).phase is Phase.NEEDS_OPERATOR
            await handle.execute_update("abort", word)
            await handle.result()
    assert "replace" not in world.calls


async def test_abort_ends_after_the_current_step_and_keeps_the_block(skipping, workers):
    world = World(pause={"drain": asyncio.Event()})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "drain" in world.calls)
            await handle.execute_update("abort", {"operator": "ana", "reason": "maintenance"})
            world.pause["drain"].set()
            result = await handle.result()
        assert result.outcome is Outcome.ABORTED
        assert "ana" in result.reason
        assert world.acts == ["block", "drain"]
        assert world.marker is not None
        assert (await slots(skipping.client))["holders"] == []


async def test_a_cancelled_incident_keeps_the_block_and_returns_the_slot(skipping, workers):
    world = World(pause={"drain": asyncio.Event()})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "drain" in world.calls)
            await handle.cancel()
            with pytest.raises(WorkflowFailureError):
                await handle.result()
            while (await slots(skipping.client))["holders"]:
                await asyncio.sleep(0.02)
        assert world.marker is not None
        assert "unblock" not in world.calls
        assert "reset" not in world.calls


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


async def test_update_with_start_begins_one_incident_and_the_next_alert_joins_it(skipping, workers):
    world = World(pause={"drain": asyncio.Event()})
    client = skipping.client
    async with workers(client, world):
        with skipping.auto_time_skipping_disabled():
            now = await client_time(client)
            runs = set()
            for code in ("95", "63", "94"):
                arriving = report(of=fault(code, at=now))
                begin = WithStartWorkflowOperation(
                    "NodeRemediation",
                    {"report": arriving.model_dump(mode="json")},
                    id=NODE,
                    task_queue=REMEDIATION_QUEUE,
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                )
                try:
                    answer = await client.execute_update_with_start_workflow(
                        "report_fault", arriving, start_workflow_operation=begin
                    )
                except WorkflowUpdateFailedError as known:
                    answer = known.cause.type
                assert answer == ("Known" if code == "95" else "joined")
                runs.add((await begin.workflow_handle()).first_execution_run_id)
            assert len(runs) == 1
            world.pause["drain"].set()
            handle = client.get_workflow_handle(NODE, result_type=Result)
            assert len((await handle.result()).fingerprints) == 3
    assert world.calls.count("block") == 1


async def test_the_budget_lets_one_node_of_the_pool_at_a_time_and_severity_goes_first(skipping, workers):
    world = World(pause={"drain": asyncio.Event()})
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            first = await start(skipping.client)
            await until(lambda: "drain" in world.calls)
            waiting = {
                ladder: await start(
                    skipping.client,
                    ladder,
                    workflow_id=incident_id("test", name),
                    identity=identity(name, provider_id=world.node.provider_id),
                )
                for name, ladder in (("n3", "reset"), ("n4", "replace"))
            }
            while len((await slots(skipping.client))["waiters"]) < 2:
                await asyncio.sleep(0.02)
            assert world.calls.count("block") == 1
            for handle in waiting.values():
                assert (await status(handle)).phase is Phase.WAITING_FOR_SLOT
            world.pause["block"] = asyncio.Event()
            await first.execute_update("abort", {"operator": "ana", "reason": "enough seen"})
            world.pause["drain"].set()
            await first.result()
            while not (await slots(skipping.client))["holders"]:
                await asyncio.sleep(0.02)
            assert [slot["node"] for slot in (await slots(skipping.client))["holders"]] == ["n4"]
            await waiting["reset"].cancel()
            while (await slots(skipping.client))["waiters"]:
                await asyncio.sleep(0.02)
            await waiting["replace"].cancel()
            world.pause["block"].set()


async def test_the_slot_of_a_terminated_incident_is_found_and_freed(skipping, workers):
    world = World(drains=["blocked"])
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client)
            await until(lambda: "drain" in world.calls)
            await a_person_is_asked(handle)
            await it_rests(handle)
            await handle.terminate("somebody did")
            assert len((await slots(skipping.client))["holders"]) == 1
        await skipping.sleep(timedelta(minutes=3))
        assert (await slots(skipping.client))["holders"] == []


async def test_a_toleration_of_hours_passes_before_anything_is_touched(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        before = await client_time(skipping.client)
        handle = await start(skipping.client, toleration=timedelta(hours=6))
        await handle.result()
        assert await client_time(skipping.client) - before >= timedelta(hours=6)
        assert world.acts == RESET


async def test_a_person_starts_with_node_reason_and_name_alone(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        handle = await skipping.client.start_workflow(
            "NodeRemediation",
            {"node": "n1", "reason": "ECC errors in the training log", "operator": "ana"},
            id=NODE,
            task_queue=REMEDIATION_QUEUE,
            result_type=Result,
        )
        assert (await handle.result()).outcome is Outcome.RETURNED
        assert world.acts == RESET


@pytest.mark.parametrize(
    ("raw", "workflow_id", "named"),
    [
        ({"reason": "x", "operator": "ana"}, NODE, "'node'"),
        ({"node": "n1", "operator": "ana"}, NODE, "'reason'"),
        ({"node": "n1", "reason": "x", "operator": ""}, NODE, "'operator'"),
        ({"node": "n1", "reason": "x", "operator": "ana", "laddder": "reboot"}, NODE, "'laddder'"),
        ({"node": 7, "reason": "x", "operator": "ana"}, NODE, "'node'"),
        ("n1", NODE, "must be one JSON object"),
        (None, NODE, "must be one JSON object"),
        ({"report": {"fault": {}}}, NODE, "'report.fault"),
        ({"node": "n1", "reason": "x", "operator": "ana"}, "my-runbook", "node/<cluster>/n1"),
        ({"node": "n1", "reason": "x", "operator": "ana"}, "node/test/n2", "node/test/n1"),
        ({"node": "n1", "reason": "x", "operator": "ana"}, "node/other/n1", "node/test/n1"),
        ({"node": "n9", "reason": "x", "operator": "ana"}, "node/test/n9", "no node is named n9"),
    ],
)
async def test_bad_input_fails_at_once_and_names_what_is_wrong(skipping, workers, raw, workflow_id, named):
    world = World()
    async with workers(skipping.client, world):
        handle = await skipping.client.start_workflow(
            "NodeRemediation", raw, id=workflow_id, task_queue=REMEDIATION_QUEUE
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        cause = failed.value.cause
        while cause.__cause__ is not None:
            cause = cause.__cause__
        assert named in str(cause)
        assert world.acts == []


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


async def test_a_node_that_another_incident_blocked_is_waited_for(skipping, workers):
    world = World()
    world.marker = BlockMarker(
        incident="node/test/old", run_id="r", reasons=("x",), since=T0, was_unschedulable=False
    )
    left = []

    def on_call(call: str) -> None:
        left.append(call)
        if call == "block" and left.count("block") == 3:
            world.marker = None

    world.on_call = on_call
    async with workers(skipping.client, world):
        handle = await start(skipping.client)
        assert (await handle.result()).outcome is Outcome.RETURNED
    assert world.acts == ["block", "block", *RESET]
