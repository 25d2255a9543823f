"""Block and unblock between many writers: everybody finds what they wrote, and ours is as wanted."""

import asyncio

import pytest
from cluster.blocks import OUR_TAINT, annotations, patch, read, taints, unblock_request
from cluster.conftest import KEEP_OTHERS_OFF, block_request, change_taints
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.karpenter.objects import DO_NOT_REPAIR
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, KubernetesError
from gpu_runbooks.activities.nodes.block import block, unblock
from gpu_runbooks.activities.nodes.node import identity_of, observe

CYCLES = 6
"""Blocks and unblocks between the writers."""

PACE = 0.1
"""Least seconds between two writes of each writer: one each 10 ms together, so most of ours meet another."""

READS = 10
"""Least time between them in reads of the node, so that on a slow machine not all of ours meet another."""


async def changes(admin, name, stop):
    """Numbers of a writer's changes until it may stop; the last one is even."""
    loop, number = asyncio.get_running_loop(), 0
    while number % 2 == 0 or not stop.is_set():
        yield number
        number += 1
        started = loop.time()
        await read(admin, name)
        await asyncio.sleep(max(PACE, READS * (loop.time() - started)))


async def toggle_taint(admin, name, stop, taint):
    """Puts its taint on and takes it off again; in the end it is on."""

    def others(found):
        return [each for each in found if (each["key"], each["effect"]) != (taint["key"], taint["effect"])]

    async for number in changes(admin, name, stop):
        if number % 2:
            await change_taints(admin, name, others)
        else:
            await change_taints(admin, name, lambda found: [*others(found), taint])


async def toggle_label(admin, name, stop, key):
    """Sets and removes a label without a version; in the end it is there. Returns its value."""
    count = 0
    async for number in changes(admin, name, stop):
        count = number
        value = None if number % 2 else str(number)
        await patch(admin, name, {"metadata": {"labels": {key: value}}})
    return str(count)


async def count_in_annotation(admin, name, stop, key):
    """Counts without a version. Returns the last count."""
    count = 0
    async for number in changes(admin, name, stop):
        count = number
        await patch(admin, name, {"metadata": {"annotations": {key: str(number)}}})
    return str(count)


async def toggle_cordon(admin, name, stop):
    """Cordons and uncordons while the node is not blocked by us; in the end it is cordoned.

    A cordon under our block changes nothing on the node, so nobody could tell whose it is.
    """
    async for number in changes(admin, name, stop):
        while not await cordoned(admin, name, None if number % 2 else True):
            await asyncio.sleep(0)


async def cordoned(admin, name, wanted):
    """True after the write; False where our block is on the node, or somebody wrote first."""
    node = await read(admin, name)
    if names.BLOCK_ANNOTATION in annotations(node):
        return False
    body = {
        "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
        "spec": {"unschedulable": wanted},
    }
    try:
        await admin.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)
    except KubernetesError as error:
        if error.status != 409:
            raise
        return False
    return True


async def until_it_stands(act, *arguments):
    """As Temporal tries it: as a whole, again and again."""
    while True:
        try:
            return await act(*arguments)
        except ApplicationError as error:
            if error.type != errors.NOT_VERIFIED or error.non_retryable:
                raise


@pytest.mark.parametrize("karpenter", [False, True])
async def test_many_writers_and_a_block_that_comes_and_goes(admin, kubernetes, make_node, karpenter):
    identity = identity_of(await make_node(labels={"karpenter.sh/nodepool": "p5"} if karpenter else {}))
    name, incident = identity.name, f"node/test/{identity.name}"
    foreign = [
        *({"key": f"example.com/writer-{number}", "effect": "NoSchedule"} for number in range(3)),
        {"key": "example.com/old", "value": "v", "effect": "PreferNoSchedule"},
        # our key with another effect is a person's
        {"key": names.BLOCK_TAINT, "value": "mine", "effect": "PreferNoSchedule"},
    ]
    labels, counters = ("example.com/a", "example.com/b"), ("example.com/c", "example.com/d")
    stop = asyncio.Event()
    writing = asyncio.gather(
        *(toggle_label(admin, name, stop, key) for key in labels),
        *(count_in_annotation(admin, name, stop, key) for key in counters),
        *(toggle_taint(admin, name, stop, taint) for taint in foreign),
        toggle_cordon(admin, name, stop),
    )
    for cycle in range(CYCLES):
        run = f"run-{cycle}"
        result = await until_it_stands(block, kubernetes, block_request(identity, run_id=run))
        assert result.marker.set_do_not_repair == karpenter
        assert observe(await read(admin, name), incident, run).blocked
        undone = await until_it_stands(unblock, kubernetes, unblock_request(identity, run_id=run))
        assert ("cordon" in undone.removed) is not result.marker.was_unschedulable
        now = await read(admin, name)
        assert OUR_TAINT not in taints(now)
        assert not {names.BLOCK_ANNOTATION, DO_NOT_REPAIR} & set(annotations(now))
    stop.set()
    last = await writing

    def assert_foreign_is_as_left(now):
        left = taints(now)
        left.pop(OUR_TAINT, None)
        wanted = {f"{taint['key']}:{taint['effect']}": taint.get("value", "") for taint in foreign}
        assert left == wanted | {f"{KEEP_OTHERS_OFF['key']}:NoSchedule": ""}
        assert now["spec"]["unschedulable"] is True
        assert tuple(now["metadata"]["labels"].get(key) for key in labels) == tuple(last[:2])
        assert tuple(annotations(now).get(key) for key in counters) == tuple(last[2:4])

    assert_foreign_is_as_left(await read(admin, name))
    await block(kubernetes, block_request(identity, run_id="last"))
    now = await read(admin, name)
    assert taints(now)[OUR_TAINT] == "xid-79"
    assert_foreign_is_as_left(now)
    await unblock(kubernetes, unblock_request(identity, run_id="last"))
    assert_foreign_is_as_left(await read(admin, name))


async def test_uncordoned_again_and_again_it_stands_in_the_end(admin, kubernetes, blocked):
    """Somebody's loop that uncordons without looking: each block is whole when it says so."""

    async def uncordon():
        for _ in range(50):
            await patch(admin, blocked.name, {"spec": {"unschedulable": None}})

    uncordoning = asyncio.create_task(uncordon())
    while not uncordoning.done():
        await until_it_stands(block, kubernetes, block_request(blocked))
    await uncordoning
    result = await block(kubernetes, block_request(blocked))
    assert observe(await read(admin, blocked.name), result.marker.incident).blocked
    assert not result.marker.was_unschedulable
