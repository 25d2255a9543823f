"""The block on a real API server: what it keeps, what it takes over, and what it refuses."""

import asyncio
import json

import pytest
from cluster.blocks import OUR_TAINT, add_taint, patch, read, taint_keys, taints, unblock_request
from cluster.conftest import KEEP_OTHERS_OFF, block_request
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.model.node import BlockMarker
from gpu_runbooks.activities.nodes.block import block, unblock
from gpu_runbooks.activities.nodes.node import identity_of, observe


async def test_block_taints_cordons_and_marks(admin, kubernetes, node):
    identity = identity_of(node)
    result = await block(kubernetes, block_request(identity))
    assert not result.adopted
    now = await read(admin, identity.name)
    assert observe(now, result.marker.incident).blocked
    assert KEEP_OTHERS_OFF["key"] in taint_keys(now)
    assert (
        BlockMarker.model_validate_json(now["metadata"]["annotations"][names.BLOCK_ANNOTATION])
        == result.marker
    )
    assert not result.marker.was_unschedulable


async def test_concurrent_writers_keep_their_taints(admin, kubernetes, node):
    identity = identity_of(node)
    others = [f"example.com/writer-{number}" for number in range(8)]
    incident = f"node/test/{identity.name}"
    await asyncio.gather(
        block(kubernetes, block_request(identity)), *(add_taint(admin, identity.name, key) for key in others)
    )
    now = await read(admin, identity.name)
    assert {*others, KEEP_OTHERS_OFF["key"], names.BLOCK_TAINT} <= taint_keys(now)

    more = [f"example.com/later-{number}" for number in range(8)]
    result, *_ = await asyncio.gather(
        unblock(kubernetes, unblock_request(identity)),
        *(add_taint(admin, identity.name, key) for key in more),
    )
    now = await read(admin, identity.name)
    assert {*others, *more, KEEP_OTHERS_OFF["key"]} <= taint_keys(now)
    assert names.BLOCK_TAINT not in taint_keys(now)
    assert not observe(now, incident).blocked
    assert not result.node_gone


async def test_own_block_is_adopted_with_what_was_there_before(admin, kubernetes, node):
    identity = identity_of(node)
    await patch(admin, identity.name, {"spec": {"unschedulable": True}})
    first = await block(kubernetes, block_request(identity))
    again = await block(kubernetes, block_request(identity, run_id="run-2", reason="another"))
    assert again.adopted
    assert again.marker.was_unschedulable
    assert again.marker.reasons == (*first.marker.reasons, "another")
    assert (again.marker.run_id, again.marker.since) == ("run-2", first.marker.since)


async def test_adopting_repairs_a_block_that_lost_a_part(admin, kubernetes, blocked):
    await patch(admin, blocked.name, {"spec": {"unschedulable": None}})
    result = await block(kubernetes, block_request(blocked))
    assert result.adopted
    assert observe(await read(admin, blocked.name), result.marker.incident).blocked


@pytest.mark.parametrize("change", [{"uid": "another"}, {"instance_id": "i-0aaaaaaaaaaaaaaaa"}])
async def test_another_machine_is_refused_and_untouched(admin, kubernetes, node, change):
    identity = identity_of(node).model_copy(update=change)
    with pytest.raises(ApplicationError) as refused:
        await block(kubernetes, block_request(identity))
    assert (refused.value.type, refused.value.non_retryable) == (errors.NODE_CHANGED, True)
    assert names.BLOCK_TAINT not in taint_keys(await read(admin, identity.name))


@pytest.mark.parametrize(
    "marker",
    [
        "who knows",
        json.dumps(
            {
                "incident": "node/test/other",
                "run_id": "r",
                "reasons": ["x"],
                "since": "2026-03-01T08:00:00Z",
                "was_unschedulable": False,
            }
        ),
    ],
)
async def test_anothers_marker_is_refused_and_untouched(admin, kubernetes, node, marker):
    identity = identity_of(node)
    await patch(admin, identity.name, {"metadata": {"annotations": {names.BLOCK_ANNOTATION: marker}}})
    with pytest.raises(ApplicationError) as refused:
        await block(kubernetes, block_request(identity))
    assert (refused.value.type, refused.value.non_retryable) == (errors.BLOCKED_BY_OTHER, True)
    now = await read(admin, identity.name)
    assert now["metadata"]["annotations"][names.BLOCK_ANNOTATION] == marker
    assert names.BLOCK_TAINT not in taint_keys(now)


async def test_two_incidents_race_for_one_node(admin, kubernetes, node):
    identity = identity_of(node)
    incidents = [f"node/test/racer-{number}" for number in range(6)]
    answers = await asyncio.gather(
        *(block(kubernetes, block_request(identity, incident)) for incident in incidents),
        return_exceptions=True,
    )
    won = [answer for answer in answers if not isinstance(answer, BaseException)]
    lost = [answer for answer in answers if isinstance(answer, ApplicationError)]
    assert (len(won), len(lost)) == (1, len(incidents) - 1)
    assert {error.type for error in lost} == {errors.BLOCKED_BY_OTHER}
    assert observe(await read(admin, identity.name), won[0].marker.incident).blocked


async def test_a_persons_own_taint_of_our_key_is_not_ours(admin, kubernetes, node):
    identity = identity_of(node)
    await add_taint(admin, identity.name, names.BLOCK_TAINT, "PreferNoSchedule", value="mine")
    await block(kubernetes, block_request(identity))
    assert taints(await read(admin, identity.name)) == {
        f"{KEEP_OTHERS_OFF['key']}:NoSchedule": "",
        f"{names.BLOCK_TAINT}:PreferNoSchedule": "mine",
        OUR_TAINT: "xid-79",
    }
    await unblock(kubernetes, unblock_request(identity))
    assert taints(await read(admin, identity.name)) == {
        f"{KEEP_OTHERS_OFF['key']}:NoSchedule": "",
        f"{names.BLOCK_TAINT}:PreferNoSchedule": "mine",
    }


async def test_the_value_of_our_taint_is_ours(admin, kubernetes, node):
    """Key and effect make a taint: the API server takes no second one beside it."""
    identity = identity_of(node)
    await add_taint(admin, identity.name, names.BLOCK_TAINT, value="somebody-elses")
    await block(kubernetes, block_request(identity))
    assert taints(await read(admin, identity.name))[OUR_TAINT] == "xid-79"


async def test_a_removed_cordon_of_somebody_is_put_back_as_ours(admin, kubernetes, node):
    identity = identity_of(node)
    await patch(admin, identity.name, {"spec": {"unschedulable": True}})
    assert (await block(kubernetes, block_request(identity))).marker.was_unschedulable
    await patch(admin, identity.name, {"spec": {"unschedulable": None}})
    again = await block(kubernetes, block_request(identity))
    assert not again.marker.was_unschedulable
    assert (await read(admin, identity.name))["spec"]["unschedulable"] is True
    assert "cordon" in (await unblock(kubernetes, unblock_request(identity))).removed
    assert "unschedulable" not in (await read(admin, identity.name))["spec"]


async def test_a_block_that_stands_is_not_written_again(faulty, proxy, blocked):
    await block(faulty, block_request(blocked))
    assert proxy.count("PATCH") == 0


async def test_observe_tells_the_marker_of_an_earlier_run_apart(admin, kubernetes, blocked):
    """The id of an incident is the node's name: a run that was aborted leaves a marker with the same id."""
    incident = f"node/test/{blocked.name}"
    left_over = await read(admin, blocked.name)
    assert observe(left_over, incident).blocked
    assert observe(left_over, incident, "run-1").blocked
    assert not observe(left_over, incident, "run-2").blocked
    assert not observe(left_over, "node/test/other").blocked
    await block(kubernetes, block_request(blocked, run_id="run-2"))
    taken_over = await read(admin, blocked.name)
    assert observe(taken_over, incident, "run-2").blocked
    assert not observe(taken_over, incident, "run-1").blocked


@pytest.mark.parametrize(
    "damage",
    [
        {"spec": {"unschedulable": None}},
        {"spec": {"taints": [KEEP_OTHERS_OFF]}},
        {"metadata": {"annotations": {names.BLOCK_ANNOTATION: None}}},
        {"metadata": {"annotations": {names.BLOCK_ANNOTATION: '{"incident": "node/test/x"}'}}},
    ],
    ids=["uncordoned", "taint removed", "marker removed", "marker unreadable"],
)
async def test_a_block_that_lost_a_part_is_no_block(admin, blocked, damage):
    await patch(admin, blocked.name, damage)
    assert not observe(await read(admin, blocked.name), f"node/test/{blocked.name}").blocked
