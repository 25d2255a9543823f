"""The five faults of the demo, each through the real Alertmanager to its end."""

import asyncio

import pytest
from intake.aws_messages import health
from integration.driving import (
    Traces,
    begun,
    ended,
    holders,
    instance_of,
    is_in_service,
    scheduled,
    start_by_hand,
    traces,
)

from gpu_runbooks.workflows.audit import Status
from gpu_runbooks.workflows.severity import REPAIRS
from testbed.scenarios import SCENARIOS, fire


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
async def test_a_fault_comes_to_its_right_end(testbed, node, scenario):
    await scenario.prepare(testbed, node)
    instance = await instance_of(testbed, node)
    before = await testbed.fleet.node(node)
    pods = {pod["metadata"]["uid"] for pod in await testbed.fleet.pods_on(node)}

    await fire(testbed, scenario, node)
    result, acts = await ended(await begun(testbed, node))

    assert (result.outcome, tuple(acts)) == (scenario.outcome, scenario.acts)
    assert await is_in_service(testbed, result.target)
    assert node not in await holders(testbed)
    left = traces(testbed, instance, node)
    done = [act.lstrip("!") for act in acts]
    assert left.reboots == done.count("reboot")
    assert left.terminations == done.count("replace")
    if not set(done) & set(REPAIRS):
        after = await testbed.fleet.node(node)
        assert after["spec"] == before["spec"]
        assert after["metadata"]["labels"] == before["metadata"]["labels"]
        assert {pod["metadata"]["uid"] for pod in await testbed.fleet.pods_on(node)} >= pods
    if result.outcome == "replaced":
        assert result.target != node
        names = [other["metadata"]["name"] for other in await testbed.fleet.nodes()]
        assert node not in names


async def test_a_machine_that_aws_retires_is_replaced(testbed, node):
    """By its announcement, from the queue of the intake."""
    await testbed.agents.start(node)
    instance = await instance_of(testbed, node)

    await testbed.cloud.announce(health(instance))
    handle = await begun(testbed, node)

    assert (await (await handle.describe()).static_summary()) == "aws instance-retirement: ladder replace"
    result, acts = await ended(handle)
    assert (result.outcome, acts[-3:]) == ("replaced", ["replace", "validate", "return"])
    assert traces(testbed, instance, node) == Traces(reboots=0, terminations=1, resets=0)


@pytest.mark.parametrize("outcome", ["nothing", "never"])
async def test_a_reboot_without_proof_is_asked_for_once_and_the_machine_replaced(testbed, node, outcome):
    """EC2 took the call, and nothing happened, or the node went down for good."""
    await testbed.agents.start(node)
    instance = await instance_of(testbed, node)
    await testbed.fleet.set_reboot_outcome(node, outcome)
    result, acts = await ended(await start_by_hand(testbed, node, "reboot"))
    assert acts == ["block", "drain", "!reboot", "drain", "replace", "validate", "return"]
    assert traces(testbed, instance, node) == Traces(reboots=1, terminations=1, resets=0)
    assert await is_in_service(testbed, result.target)
    assert result.target != node


async def test_a_node_whose_test_pod_fails_stays_blocked_and_a_person_is_asked(testbed, node):
    """Healthy when idle, sick under load: every check of the agent passes."""
    await testbed.agents.start(node)
    await testbed.fleet.set_test_pods_fail(node)
    handle = await start_by_hand(testbed, node, "block")
    await scheduled(handle, "block_node")
    async with asyncio.timeout(60):
        while (await handle.query("status", result_type=Status)).phase != "needs-operator":
            await asyncio.sleep(0.2)
    await handle.execute_update("retry", {"operator": "ana", "reason": "is it healthy?"})
    await scheduled(handle, "run_test_pod")
    async with asyncio.timeout(60):
        while (seen := await handle.query("status", result_type=Status)).phase != "needs-operator":
            await asyncio.sleep(0.2)
    assert [("" if act.proven else "!") + act.rung for act in seen.acts] == ["block", "!validate"]
    assert "test pod" in seen.acts[-1].proof
    assert not await is_in_service(testbed, node)
    assert node in await holders(testbed)
    await handle.execute_update("abort", {"operator": "ana", "reason": "to the vendor"})
    assert (await ended(handle))[0].outcome == "aborted"
    assert not await is_in_service(testbed, node)
    assert node not in await holders(testbed)
