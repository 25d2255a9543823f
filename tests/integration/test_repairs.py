"""Repairs on the whole testbed, with what stands around them: scope, evidence, orders, repeat offenders."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from integration.driving import (
    begun,
    ended,
    instance_of,
    is_in_service,
    listed_as_closed,
    run_pod,
    start_by_hand,
    status_when,
    temporal,
    traces,
)

from gpu_runbooks.workflows.audit import Status
from testbed import gpus
from testbed.scenarios import SCENARIOS, fire
from testbed.testbed import CLUSTER

WORD = {"operator": "ana", "reason": "a test"}
CURED_BY_A_RESET = next(scenario for scenario in SCENARIOS if "reset_gpu" in scenario.acts)


async def order(testbed, verb: str, runbook: str, node: str, **given) -> tuple[int, str]:
    """Start a runbook with the `temporal` command."""
    return await temporal(
        testbed,
        *("workflow", verb, "--type", runbook, "--task-queue", "remediation", "--fail-existing"),
        *("--workflow-id", f"node/{CLUSTER}/{node}", "--input", json.dumps({"node": node, **WORD, **given})),
    )


@pytest.mark.parametrize(
    ("runbook", "done", "outcome"),
    [
        ("ResetGpu", (0, 0, 1), "returned"),
        ("RebootNode", (1, 0, 0), "returned"),
        ("ReplaceNode", (0, 1, 0), "replaced"),
        ("ValidateNode", (0, 0, 0), "returned"),
    ],
)
async def test_one_act_is_ordered_from_the_command_line(testbed, node, runbook, done, outcome):
    await testbed.agents.start(node)
    instance = await instance_of(testbed, node)
    status, output = await order(testbed, "execute", runbook, node)
    assert status == 0, output
    result, acts = await ended(await begun(testbed, node))
    assert (result.outcome, acts[-2:]) == (outcome, ["validate", "return"])
    left = traces(testbed, instance, node)
    assert (left.reboots, left.terminations, left.resets) == done
    assert await is_in_service(testbed, result.target)


async def test_an_order_for_a_node_with_an_incident_is_refused_with_the_incidents_run(testbed, node):
    await testbed.agents.start(node)
    instance = await instance_of(testbed, node)
    await run_pod(testbed, node, "stays", annotations={"karpenter.sh/do-not-disrupt": "true"})
    incident = await start_by_hand(testbed, node)
    await status_when(incident, lambda status: bool(status.blockers))
    status, output = await order(testbed, "start", "RebootNode", node)
    assert status != 0
    assert (await incident.describe()).run_id in output
    await incident.execute_update("abort", WORD)
    await ended(incident)
    assert instance not in {
        name for call in testbed.cloud.calls("RebootInstances") for name in call.instance_ids
    }


async def test_pods_on_other_gpus_outlive_a_reset_and_its_evidence_is_kept(testbed, node):
    await testbed.agents.start(node)
    machine = testbed.agents.machine(node)
    sick, other = (gpus.read_state(machine.gpus).gpus[index] for index in (3, 7))
    victim = await run_pod(testbed, node, "on-the-sick", annotations={"gpu-runbooks.dev/stop-seconds": "0"})
    survivor = await run_pod(testbed, node, "on-another", annotations={})
    machine.allocate(sick.uuid, victim)
    machine.hold(other.uuid, survivor)
    gpus.change_gpu(machine.gpus, 3, recovery_action=1, ecc_uncorrected=2)

    await fire(testbed, CURED_BY_A_RESET, node)
    incident = await begun(testbed, node)
    result, acts = await ended(incident)

    assert (result.outcome, acts) == ("returned", ["block", "drain", "reset_gpu", "validate", "return"])
    left = {pod["metadata"]["uid"] for pod in await testbed.fleet.pods_on(node)}
    assert survivor in left
    assert victim not in left
    seen = await incident.query("status", result_type=Status)
    (reset,) = (act for act in seen.acts if act.rung == "reset_gpu")
    digest, location = reset.evidence.split()[0], reset.evidence.split()[-1]
    content = await asyncio.to_thread(Path(location.removeprefix("file://")).read_bytes)
    assert digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    bundle = json.loads(content)
    assert bundle["missing"] == []
    assert bundle["agent"]["facts"]["gpus"][3]["recovery_action"] == 1


async def test_the_same_hardware_again_begins_at_the_repair_that_has_not_failed(testbed, node):
    await testbed.agents.start(node)
    first = await start_by_hand(testbed, node, ladder=None)
    result, acts = await ended(first)
    assert acts == ["block", "drain", "reset_gpu", "validate", "return"]
    await listed_as_closed(testbed, first)
    again = await start_by_hand(testbed, node, ladder=None)  # named by a person, it begins where they say
    result, acts = await ended(again)
    assert acts == ["block", "drain", "reboot", "validate", "return"]
    assert result.outcome == "returned"
