"""People's words on a real server, most of them through the `temporal` command line."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from incident.conftest import running_workers, until
from incident.plans import fault, identity, report, rungs
from incident.test_server import events_of, start, world
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError

from gpu_runbooks.activities.names import REMEDIATION_QUEUE
from gpu_runbooks.workflows.audit import Result, Status

TEMPORAL = str(Path(sys.executable).parent / "temporal")
WORD = {"operator": "ana", "reason": "ticket 4711"}


async def cli(client: Client, *words: str) -> tuple[int, str]:
    """Run the `temporal` command line against the test's server."""
    process = await asyncio.create_subprocess_exec(
        *(TEMPORAL, *words, "--address", client.service_client.config.target_host),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def say(client: Client, node: str, name: str, *more: str, **said) -> tuple[int, str]:
    return await cli(
        client,
        *("workflow", "update", "execute", "--workflow-id", f"node/test/{node}", "--name", name),
        *("--input", json.dumps({**WORD, **said}), *more),
    )


async def seen_when(handle, phase: str) -> Status:
    async with asyncio.timeout(60):
        while (seen := await handle.query("status", result_type=Status)).phase != phase:
            await asyncio.sleep(0.05)
    return seen


async def at_step(handle, step: str) -> None:
    async with asyncio.timeout(60):
        while (await handle.query("status", result_type=Status)).step != step:
            await asyncio.sleep(0.05)


async def details(handle) -> str:
    return (await handle.query("__temporal_workflow_metadata")).current_details


@asynccontextmanager
async def incident(client: Client, name: str, ladder: str = "reset", script=None, **changes):
    """An incident of a node of its own, with its workers."""
    node = world(name, **(script or {}))
    async with running_workers(client, node):
        yield node, await start(client, name, ladder, **changes)


def gate(rung: str, **changes):
    """A treatment of which one rung has a gate."""
    return tuple(each.model_copy(update=changes) if each.name == rung else each for each in rungs("reset"))


async def start_gated(client: Client, name: str, rung: str, **changes):
    opened = report("reset", of=fault(), identity=identity(name, provider_id=identity().provider_id))
    treatment = opened.plan.treatment.model_copy(update={"rungs": gate(rung, **changes)})
    plan = opened.plan.model_copy(update={"treatment": treatment, "pool": f"pool-{name}"})
    return await client.start_workflow(
        "NodeRemediation",
        {"report": opened.model_copy(update={"plan": plan}).model_dump(mode="json")},
        id=f"node/test/{name}",
        task_queue=REMEDIATION_QUEUE,
        result_type=Result,
    )


async def test_a_pause_stops_a_drain_and_a_resume_goes_on(server):
    async with incident(server, "paused", script={"drains": ["waits"]}) as (node, handle):
        await until(lambda: "drain" in node.calls)
        status, output = await say(server, "paused", "pause", **{"for": "2h"})
        assert status == 0, output
        assert "paused until" in output
        seen = await seen_when(handle, "paused")
        assert seen.paused_until is not None
        await until(lambda: node.stopped_drains == 1)
        assert "reset" not in node.calls
        assert "ana (identity temporal-cli:" in await details(handle)
        assert (await say(server, "paused", "resume"))[0] == 0
        assert (await handle.result()).outcome == "returned"
        assert node.acts.count("drain") == 2


async def test_a_word_for_another_step_or_incident_is_refused_and_changes_nothing(server):
    async with incident(server, "stale", script={"drains": ["blocked", "blocked"]}) as (node, handle):
        seen = await seen_when(handle, "needs-operator")
        shown = await details(handle)
        assert f'"step": "{seen.step}"' in shown
        acts = list(node.acts)
        for said in ({"step": "reboot/2"}, {"incident": "00000000-0000-0000-0000-000000000000"}):
            status, output = await say(server, "stale", "retry", **said)
            assert status != 0
            assert seen.question in output
        status, output = await say(
            server, "stale", "retry", "--run-id", "00000000-0000-0000-0000-000000000000"
        )
        assert status != 0
        assert node.acts == acts
        assert (await say(server, "stale", "retry", step=seen.step, incident=seen.run_id))[0] == 0
        await until(lambda: node.acts.count("drain") == 2)
        again = await seen_when(handle, "needs-operator")
        status, output = await say(server, "stale", "retry", step=seen.step)
        assert status != 0, "the second delivery of an answer is none to the next question"
        assert again.step in output
        assert (await say(server, "stale", "abort", block="remove"))[0] == 0
        result = await handle.result()
        assert (result.outcome, node.marker) == ("aborted", None)
        assert "removed without a validation" in result.reason
        assert "reset" not in node.calls


async def test_a_node_returns_on_a_persons_word_which_the_proof_shows(server):
    async with incident(server, "vouched", script={"validations": [False] * 3}) as (node, handle):
        await seen_when(handle, "needs-operator")
        assert node.marker is not None
        assert (await say(server, "vouched", "return_anyway"))[0] == 0
        result = await handle.result()
        assert (result.outcome, node.marker) == ("replaced", None)
        assert result.reason == "back in service without a validation, on the word of ana: ticket 4711"
        seen = await handle.query("status", result_type=Status)
        assert "on the word of ana" in seen.acts[-1].proof


async def test_a_rejected_rung_is_left_out_and_its_approval_needs_another_person(server):
    node = world("gated", validations=[False, True])
    async with running_workers(server, node):
        handle = await start_gated(server, "gated", "reset_gpu", approval=True)
        await seen_when(handle, "needs-operator")
        status, output = await say(server, "gated", "reject", rung="reboot")
        assert status != 0
        assert "but for approval of reset_gpu" in output
        assert (await say(server, "gated", "reject", rung="reset_gpu", step="reset_gpu/1"))[0] == 0
        await until(lambda: "reboot" in node.calls)
        assert "reset" not in node.calls
        await handle.result()


async def test_who_asked_cannot_approve_under_another_name(server):
    """Both words come from one command line, so the server saw one identity."""
    node = world("four-eyes")
    async with running_workers(server, node):
        handle = await start_gated(server, "four-eyes", "reset_gpu", approval=True, approval_by_other=True)
        await seen_when(handle, "needs-operator")
        assert (await say(server, "four-eyes", "escalate_to", rung="reset_gpu"))[0] == 0
        await at_step(handle, "reset_gpu/1")
        status, output = await say(server, "four-eyes", "approve", rung="reset_gpu", operator="ANA")
        assert status != 0
        assert "somebody else" in output
        assert (await say(server, "four-eyes", "approve", rung="reset_gpu", operator="bob"))[0] == 0
        async with asyncio.timeout(60):
            while "approval of reset_gpu does not count" not in await details(handle):
                await asyncio.sleep(0.05)
        assert "reset" not in node.calls
        await at_step(handle, "reset_gpu/1")
        await handle.execute_update("approve", {"operator": "bob", "reason": "seen", "rung": "reset_gpu"})
        assert (await handle.result()).outcome == "returned"


async def test_a_second_start_names_the_run_that_is_open(server):
    async with incident(server, "twice", script={"pause": {"drain": asyncio.Event()}}) as (node, handle):
        await until(lambda: "drain" in node.calls)
        status, output = await cli(
            server,
            *("workflow", "start", "--type", "RebootNode", "--task-queue", REMEDIATION_QUEUE),
            *("--workflow-id", handle.id, "--fail-existing"),
            *("--input", json.dumps({"node": "twice", **WORD})),
        )
        assert status != 0
        assert (await handle.describe()).run_id in output
        node.pause["drain"].set()
        await handle.result()
        assert "reboot" not in node.calls


@pytest.mark.parametrize("runbook", ["RebootNode", "DrainNode", "NodeRemediation"])
async def test_a_persons_runbook_on_an_opted_out_node_is_refused_with_words(server, runbook):
    node = world("mine", plan_changes={"opted_out": True})
    async with running_workers(server, node):
        handle = await server.start_workflow(
            runbook, {"node": "mine", **WORD}, id="node/test/mine", task_queue=REMEDIATION_QUEUE
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    assert "kubectl label node mine gpu-runbooks.dev/opt-out-" in str(failed.value.cause)
    assert node.acts == []


async def test_a_label_that_comes_in_mid_ladder_stops_it_and_asks(server):
    async with incident(server, "late", script={"pause": {"drain": asyncio.Event()}}) as (node, handle):
        await until(lambda: "drain" in node.calls)
        node.opted_out = True
        node.pause["drain"].set()
        seen = await seen_when(handle, "needs-operator")
        assert "opt-out" in seen.question
        assert "reset" not in node.calls
        node.opted_out = False
        await handle.execute_update("retry", WORD)
        assert (await handle.result()).outcome == "returned"


async def test_a_label_that_is_seen_at_the_block_leaves_the_node_alone(server):
    async with incident(server, "early", script={"opted_out": True}) as (node, handle):
        result = await handle.result()
    assert (result.outcome, node.acts, node.marker) == ("left-alone", ["block"], None)
    assert result.fingerprints == ()


async def test_a_bad_word_names_its_fields_and_leaves_no_event(server):
    async with incident(server, "bad", script={"drains": ["blocked"]}) as (_, handle):
        await seen_when(handle, "needs-operator")
        for update, said in (("pause", {"for": "soon"}), ("skip_rung", {"rung": "block"}), ("resume", {})):
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update(update, {**WORD, **said})
        accepted = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
        assert all(event.event_type != accepted for event in await events_of(server, handle.id))
        await handle.execute_update("abort", WORD)
        assert (await handle.result()).outcome == "aborted"
