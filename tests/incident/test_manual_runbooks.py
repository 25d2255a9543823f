"""`DrainNode` and `ReturnNode`: the same machine as an incident's, started by people."""

import asyncio

import pytest
from incident.conftest import running_workers, until
from incident.fakes import EVIDENCE, World
from incident.opened import NODE, a_person_is_asked, client_time, slots, status
from incident.opened import start as start_incident
from incident.plans import T0, fault, report
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities.model.node import BlockMarker
from gpu_runbooks.activities.model.node_task import Examination
from gpu_runbooks.activities.names import REMEDIATION_QUEUE
from gpu_runbooks.workflows.audit import Result

WORD = {"operator": "ana", "reason": "swap a riser"}


async def start(client, runbook, workflow_id=NODE, **changes):
    return await client.start_workflow(
        runbook,
        {"node": "n1", **WORD, **changes},
        id=workflow_id,
        task_queue=REMEDIATION_QUEUE,
        result_type=Result,
    )


async def test_a_drain_by_hand_ends_with_the_block_held_and_the_slot_free(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        result = await (await start(skipping.client, "DrainNode")).result()
        assert result.outcome == "drained"
        assert world.acts == ["block", "drain"]
        assert world.marker.held
        assert "ana" in world.marker.reasons[0]
        assert (await slots(skipping.client))["holders"] == []


async def test_a_fault_of_a_held_node_is_recorded_and_nothing_is_touched(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        await (await start(skipping.client, "DrainNode")).result()
        done = list(world.acts)
        handle = await start_incident(skipping.client)
        result = await handle.result()
        assert result.outcome == "held"
        assert "swap a riser" in result.reason
        assert world.acts == [*done, "block"]  # refused
        assert world.marker.held
        assert (await slots(skipping.client))["holders"] == []


async def test_a_person_may_take_over_a_held_node(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        await (await start(skipping.client, "DrainNode")).result()
        result = await (await start(skipping.client, "NodeRemediation", take_held=True)).result()
        assert result.outcome == "returned"
        assert world.marker is None


async def test_a_return_validates_and_unblocks_without_a_slot(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        await (await start(skipping.client, "DrainNode")).result()
        result = await (await start(skipping.client, "ReturnNode")).result()
    assert result.outcome == "returned"
    assert world.acts == ["block", "drain", "block", "validate", "test_pod", "unblock"]
    assert world.marker is None


async def test_a_node_that_fails_its_validation_is_not_given_back(skipping, workers):
    world = World(validations=[False])
    async with workers(skipping.client, world):
        await (await start(skipping.client, "DrainNode")).result()
        handle = await start(skipping.client, "ReturnNode")
        await a_person_is_asked(handle)
        assert world.marker.held
        assert "unblock" not in world.acts
        await handle.execute_update("retry", WORD)
        assert (await handle.result()).outcome == "returned"
    assert world.acts[-3:] == ["validate", "test_pod", "unblock"]


async def test_a_node_without_our_block_is_not_returned(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        with pytest.raises(WorkflowFailureError) as failed:
            await (await start(skipping.client, "ReturnNode")).result()
        assert failed.value.cause.type == "NotBlocked"
    assert world.acts == ["block"]  # refused
    assert world.marker is None


async def test_a_block_that_an_aborted_incident_left_is_returned(skipping, workers):
    world = World()
    world.marker = BlockMarker(
        incident=NODE, run_id="aborted", reasons=("Xid 79",), since=T0, was_unschedulable=False
    )
    async with workers(skipping.client, world):
        assert (await (await start(skipping.client, "ReturnNode")).result()).outcome == "returned"
    assert world.marker is None


async def test_a_fault_during_a_drain_by_hand_leads_to_no_repair(skipping, workers):
    world = World(drains=["waits"])
    async with workers(skipping.client, world):
        handle = await start(skipping.client, "DrainNode")
        await until(lambda: "drain" in world.calls)
        now = await client_time(skipping.client)
        joined = report("replace", of=fault("79", at=now))
        assert await handle.execute_update("report_fault", joined) == "joined"
        await handle.execute_update("abort", WORD)
        assert (await handle.result()).outcome == "aborted"
    assert world.acts == ["block", "drain"]


@pytest.mark.parametrize(
    ("runbook", "acts", "outcome"),
    [
        ("ResetGpu", ["block", "drain", "reset"], "returned"),
        ("RebootNode", ["block", "drain", "reboot", "await_reboot"], "returned"),
        ("ReplaceNode", ["block", "drain", "replace", "claim", "confirm"], "replaced"),
        ("ValidateNode", ["block"], "returned"),
    ],
)
async def test_each_act_can_be_ordered_by_itself(skipping, workers, runbook, acts, outcome):
    world = World()
    async with workers(skipping.client, world):
        result = await (await start(skipping.client, runbook)).result()
        assert result.outcome == outcome
        assert world.acts == [*acts, "validate", "test_pod", "unblock"]
        assert (await slots(skipping.client))["holders"] == []


@pytest.mark.parametrize("gpu", ["GPU-1", None])
async def test_one_gpu_or_all_can_be_reset_by_hand(skipping, workers, gpu):
    world = World(alone=True)
    async with workers(skipping.client, world):
        await (await start(skipping.client, "ResetGpu", **({"gpu": gpu} if gpu else {}))).result()
    (reset,) = world.reset_requests
    assert (reset.gpu_uuid, reset.gpu_pci_address) == (gpu, None)


async def test_for_a_gpu_that_nobody_sees_no_other_one_is_reset(skipping, workers):
    world = World(alone=True)
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "ResetGpu", gpu="0000:4C:00")
            await a_person_is_asked(handle)
            assert "does not see 0000:4c:00" in (await status(handle)).question
            assert world.acts == ["block"]
            await handle.execute_update("abort", WORD)
            await handle.result()


async def test_a_repair_ordered_for_a_held_node_leaves_it_held(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        await (await start(skipping.client, "DrainNode")).result()
        assert (await (await start(skipping.client, "RebootNode")).result()).outcome == "validated"
        assert world.marker.held
        assert (await (await start(skipping.client, "ReplaceNode")).result()).outcome == "replaced"
    assert world.marker is None  # the successor never was in anybody's hands


async def test_a_runbook_that_nobody_knows_fails_at_once_and_frees_the_node(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        with pytest.raises(WorkflowFailureError) as failed:
            await (await start(skipping.client, "DrainNod")).result()
        assert failed.value.cause.type == "BadInput"
        assert "no runbook is called 'DrainNod'" in failed.value.cause.message
        assert world.calls == []
        assert (await (await start(skipping.client, "DrainNode")).result()).outcome == "drained"


async def test_a_reset_that_was_not_tried_can_be_ordered_again(skipping, workers):
    silent = Examination(evidence=EVIDENCE, agent_silent=True)
    world = World(examinations=[silent])
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "ResetGpu")
            await a_person_is_asked(handle)
            await handle.execute_update("escalate_to", {**WORD, "rung": "reset_gpu"})
            assert (await handle.result()).outcome == "returned"
    assert world.acts == ["block", "drain", "reset", "validate", "test_pod", "unblock"]


async def test_what_was_never_drained_is_tested_on_its_free_gpus(skipping, workers):
    """A person mends what was in the way of the reset, and the node's pods still run."""
    silent = Examination(evidence=EVIDENCE, agent_silent=True)
    world = World(examinations=[silent])
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "ResetGpu")
            await a_person_is_asked(handle)
            await handle.execute_update("retry", WORD)
            assert (await handle.result()).outcome == "returned"
    assert world.acts == ["block", "validate", "test_pod", "unblock"]
    assert world.pod_requests[0].free_only


@pytest.mark.parametrize("gpu", ["all", "GPU-1 --force", "4c:00", 3])
async def test_a_gpu_that_is_no_name_is_refused(skipping, workers, gpu):
    world = World()
    async with workers(skipping.client, world):
        with pytest.raises(WorkflowFailureError) as failed:
            await (await start(skipping.client, "ResetGpu", gpu=gpu)).result()
    assert failed.value.cause.type == "BadInput"
    assert "field 'gpu'" in failed.value.cause.message
    assert world.calls == []


@pytest.mark.parametrize(
    ("runbook", "script"),
    [("ResetGpu", {"resets": ["busy"]}), ("RebootNode", {"reboots": ["unproven"]})],
)
async def test_an_order_that_is_not_proven_asks_and_does_nothing_stronger(skipping, workers, runbook, script):
    world = World(**script)
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, runbook)
            await a_person_is_asked(handle)
            assert not {"replace", "unblock"} & set(world.calls)
            await handle.execute_update("abort", WORD)
            assert (await handle.result()).outcome == "aborted"
    assert world.marker is not None


async def test_a_validation_leaves_a_block_that_stood_before(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        await (await start(skipping.client, "DrainNode")).result()
        result = await (await start(skipping.client, "ValidateNode")).result()
        assert result.outcome == "validated"
        assert (await slots(skipping.client))["holders"] == []
    assert "unblock" not in world.acts
    assert world.marker.held


async def test_a_validation_that_fails_keeps_the_node_and_asks(skipping, workers):
    world = World(validations=[False])
    async with workers(skipping.client, world):
        with skipping.auto_time_skipping_disabled():
            handle = await start(skipping.client, "ValidateNode")
            await a_person_is_asked(handle)
            assert world.marker is not None
            await handle.execute_update("abort", WORD)
            await handle.result()
    assert not {"drain", "reset", "reboot", "replace"} & set(world.calls)


async def test_a_fault_during_a_return_keeps_the_node_blocked(skipping, workers):
    world = World()
    async with workers(skipping.client, world):
        await (await start(skipping.client, "DrainNode")).result()
        world.pause["test_pod"] = asyncio.Event()
        handle = await start(skipping.client, "ReturnNode")
        await until(lambda: "test_pod" in world.calls)
        now = await client_time(skipping.client)
        await handle.execute_update("report_fault", report("reset", of=fault("95", at=now)))
        world.pause["test_pod"].set()
        await a_person_is_asked(handle)
        assert "unblock" not in world.acts
        assert world.marker.held
        await handle.execute_update("abort", WORD)
        await handle.result()


@pytest.mark.parametrize("runbook", ["DrainNode", "ReturnNode"])
@pytest.mark.parametrize(
    ("changes", "named"),
    [({"ladder": "reset"}, "ladder"), ({"operator": ""}, "operator"), ({"node": 1}, "node")],
)
async def test_bad_input_is_refused_by_field(skipping, runbook, changes, named):
    async with running_workers(skipping.client, World()):
        with pytest.raises(WorkflowFailureError) as failed:
            await (await start(skipping.client, runbook, **changes)).result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "BadInput"
    assert f"{runbook}: field '{named}'" in failed.value.cause.message


async def test_the_status_names_the_runbook(skipping):
    world = World(drains=["blocked"])
    async with running_workers(skipping.client, world):
        handle = await start(skipping.client, "DrainNode")
        await a_person_is_asked(handle)
        assert (await status(handle)).runbook == "DrainNode"
        await handle.execute_update("retry", WORD)
        assert (await handle.result()).outcome == "drained"
    assert world.acts == ["block", "drain", "drain"]


async def test_signals_with_too_many_arguments_stop_nothing(skipping, workers):
    world = World(drains=["waits"])
    async with workers(skipping.client, world):
        handle = await start(skipping.client, "DrainNode")
        await until(lambda: "drain" in world.calls)
        for signal in ("slot_granted", "drain_progress"):
            await handle.signal(signal, args=[{"a": 1}, {"b": 2}])
        budget = skipping.client.get_workflow_handle("budget/test/p5")
        for signal in ("request_slot", "return_slot"):
            await budget.signal(signal, args=[1, 2, 3])
        await handle.execute_update("abort", WORD)
        assert (await handle.result()).outcome == "aborted"
        assert (await slots(skipping.client))["holders"] == []


async def test_a_node_that_registers_again_during_its_return_is_blocked_again(skipping, workers):
    world = World(validations=[False])
    async with workers(skipping.client, world):
        await (await start(skipping.client, "DrainNode")).result()
        handle = await start(skipping.client, "ReturnNode")
        await a_person_is_asked(handle)
        world.node, world.marker = world.node.model_copy(update={"uid": "another"}), None
        await handle.execute_update("retry", WORD)
        assert (await handle.result()).outcome == "returned"
    assert world.acts.count("unblock") == 1
    assert world.acts[-1] == "unblock"
    assert world.acts.count("block") == 3
