"""Karpenter's node repair is held off while a node of its own is ours, and never beyond that."""

import pytest
from cluster.blocks import annotate, annotations, marker, read, unblock_request
from cluster.conftest import block_request

from gpu_runbooks.activities.karpenter.objects import DO_NOT_REPAIR, belongs_to_karpenter
from gpu_runbooks.activities.nodes.block import block, unblock
from gpu_runbooks.activities.nodes.node import identity_of

KARPENTER = {"karpenter.sh/nodepool": "p5"}


@pytest.fixture
async def karpenters(make_node):
    """A node that Karpenter has launched."""
    return identity_of(await make_node(labels=KARPENTER))


@pytest.mark.parametrize(
    ("labels", "belongs"),
    [
        ({"karpenter.sh/nodepool": "p5"}, True),
        ({"karpenter.sh/registered": "true"}, True),  # of a NodeClaim without a NodePool
        ({"karpenter.sh/capacity-type": "spot"}, False),  # people put it on other nodes for scheduling
        ({}, False),
    ],
)
def test_whose_node_it_is(labels, belongs):
    assert belongs_to_karpenter({"metadata": {"labels": labels}}) is belongs


async def test_repair_is_held_off_while_blocked(admin, kubernetes, karpenters):
    assert (await block(kubernetes, block_request(karpenters))).marker.set_do_not_repair
    now = await read(admin, karpenters.name)
    assert annotations(now)[DO_NOT_REPAIR] == "true"
    assert marker(now).set_do_not_repair
    result = await unblock(kubernetes, unblock_request(karpenters))
    assert DO_NOT_REPAIR not in annotations(await read(admin, karpenters.name))
    assert f"annotation {DO_NOT_REPAIR}" in result.removed


async def test_a_node_of_nobody_gets_no_annotation(admin, kubernetes, blocked):
    now = await read(admin, blocked.name)
    assert DO_NOT_REPAIR not in annotations(now)
    assert not marker(now).set_do_not_repair


@pytest.mark.parametrize("value", ["true", "false", ""])
async def test_what_was_there_before_stays(admin, kubernetes, karpenters, value):
    await annotate(admin, karpenters.name, **{DO_NOT_REPAIR: value})
    assert not (await block(kubernetes, block_request(karpenters))).marker.set_do_not_repair
    assert annotations(await read(admin, karpenters.name))[DO_NOT_REPAIR] == value
    result = await unblock(kubernetes, unblock_request(karpenters))
    assert annotations(await read(admin, karpenters.name))[DO_NOT_REPAIR] == value
    assert f"annotation {DO_NOT_REPAIR}={value}" in result.kept


@pytest.mark.parametrize("block_again", [False, True])
async def test_what_somebody_changed_meanwhile_stays(admin, kubernetes, karpenters, block_again):
    await block(kubernetes, block_request(karpenters))
    await annotate(admin, karpenters.name, **{DO_NOT_REPAIR: "false"})
    if block_again:
        assert not (await block(kubernetes, block_request(karpenters))).marker.set_do_not_repair
    result = await unblock(kubernetes, unblock_request(karpenters))
    assert annotations(await read(admin, karpenters.name))[DO_NOT_REPAIR] == "false"
    assert f"annotation {DO_NOT_REPAIR}=false" in result.kept
    assert f"annotation {DO_NOT_REPAIR}" not in result.removed


async def test_what_somebody_removed_is_set_again_with_the_block(admin, kubernetes, karpenters):
    await block(kubernetes, block_request(karpenters))
    await annotate(admin, karpenters.name, **{DO_NOT_REPAIR: None})
    await block(kubernetes, block_request(karpenters))
    assert annotations(await read(admin, karpenters.name))[DO_NOT_REPAIR] == "true"


async def test_a_repeat_leaves_it_ours_and_writes_nothing(faulty, proxy, kubernetes, karpenters):
    await block(kubernetes, block_request(karpenters))
    assert (await block(faulty, block_request(karpenters))).marker.set_do_not_repair
    assert proxy.count("PATCH") == 0
