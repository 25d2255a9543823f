"""Workers killed at every rung, and Temporal restarted: the right end, and no act twice."""

import asyncio

import pytest
from integration.driving import (
    WORKERS,
    Traces,
    ended,
    holders,
    instance_of,
    is_in_service,
    scheduled,
    start_by_hand,
    traces,
)

from testbed import gpus

HARMLESS_ENDING = ["block", "drain", "reset_gpu", "validate", "return"]


async def kill_and_restart(testbed) -> None:
    for role in WORKERS:
        await testbed.product.kill(role)
    await asyncio.gather(*(testbed.product.start(role) for role in WORKERS))


@pytest.mark.parametrize(
    ("activity", "ladder", "acts", "left"),
    [
        ("block_node", "reset", HARMLESS_ENDING, Traces(0, 0, 1)),
        ("drain_pods", "reset", HARMLESS_ENDING, Traces(0, 0, 1)),
        ("run_node_task", "reset", HARMLESS_ENDING, Traces(0, 0, 1)),
        ("delete_node_task", "reset", HARMLESS_ENDING, Traces(0, 0, 1)),
        ("run_test_pod", "reset", HARMLESS_ENDING, Traces(0, 0, 1)),
        ("unblock_node", "reset", HARMLESS_ENDING, Traces(0, 0, 1)),
        ("await_reboot", "reboot", ["block", "drain", "reboot", "validate", "return"], Traces(1, 0, 0)),
        ("replace_instance", "replace", ["block", "drain", "replace", "validate", "return"], Traces(0, 1, 0)),
        (
            "claim_replacement",
            "replace",
            ["block", "drain", "replace", "validate", "return"],
            Traces(0, 1, 0),
        ),
        (
            "confirm_replacement",
            "replace",
            ["block", "drain", "replace", "validate", "return"],
            Traces(0, 1, 0),
        ),
    ],
)
async def test_workers_killed_in_the_middle_of_a_rung(testbed, node, activity, ladder, acts, left):
    await testbed.agents.start(node)
    instance = await instance_of(testbed, node)
    handle = await start_by_hand(testbed, node, ladder)
    await scheduled(handle, activity)
    await kill_and_restart(testbed)
    result, done = await ended(handle)
    assert done == acts
    assert traces(testbed, instance, node) == left
    assert await is_in_service(testbed, result.target)
    assert node not in await holders(testbed)


async def test_a_reboot_whose_outcome_died_with_the_worker_is_never_asked_for_again(testbed, node):
    """Whether the call went out before the death is chance; the proof tells, and no second call is made."""
    await testbed.agents.start(node)
    instance = await instance_of(testbed, node)
    handle = await start_by_hand(testbed, node, "reboot")
    await scheduled(handle, "reboot_instance")
    await kill_and_restart(testbed)
    result, done = await ended(handle)
    if traces(testbed, instance, node).reboots:
        assert done == ["block", "drain", "reboot", "validate", "return"]
        assert traces(testbed, instance, node) == Traces(1, 0, 0)
    else:
        assert done == ["block", "drain", "!reboot", "drain", "replace", "validate", "return"]
        assert traces(testbed, instance, node) == Traces(0, 1, 0)
    assert await is_in_service(testbed, result.target)


async def test_temporal_restarted_in_the_middle_of_a_drain(testbed, node):
    await testbed.agents.start(node)
    gpus.change_gpu(testbed.agents.machine(node).gpus, 2, recovery_action=1)
    instance = await instance_of(testbed, node)
    handle = await start_by_hand(testbed, node)
    await scheduled(handle, "drain_pods")
    await testbed.temporal.stop()
    await testbed.temporal.resume()
    result, done = await ended(handle)
    assert done == HARMLESS_ENDING
    assert traces(testbed, instance, node) == Traces(0, 0, 1)
    assert await is_in_service(testbed, result.target)
