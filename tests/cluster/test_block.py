"""The block on a real API server: what it keeps, what it refuses, and what it takes away again."""

import asyncio
import json

import pytest
from cluster.conftest import KEEP_OTHERS_OFF, block_request, change_taints
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.block import block, unblock
from gpu_runbooks.activities.kubernetes import MERGE_PATCH
from gpu_runbooks.activities.model.node import BlockMarker, UnblockNode
from gpu_runbooks.activities.nodes import identity_of, observe


async def patch(admin, name, body):
    await admin.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)


async def read(admin, name):
    return await admin.request("GET", f"/api/v1/nodes/{name}")


def taint_keys(node):
    return {taint["key"] for taint in node["spec"].get("taints") or ()}


def unblock_request(identity, incident="", run_id="run-1"):
    return UnblockNode(identity=identity, incident=incident or f"node/test/{identity.name}", run_id=run_id)


async def add_taint(admin, name, key):
    await change_taints(admin, name, lambda taints: [*taints, {"key": key, "effect": "NoSchedule"}])


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


async def test_foreign_cordon_stays_and_ours_goes(admin, kubernetes, make_node):
    cordoned = identity_of(await make_node(spec={"unschedulable": True}))
    await block(kubernetes, block_request(cordoned))
    result = await unblock(kubernetes, unblock_request(cordoned))
    assert (await read(admin, cordoned.name))["spec"]["unschedulable"] is True
    assert "cordon" in result.kept
    assert "cordon" not in result.removed

    free = identity_of(await make_node())
    await block(kubernetes, block_request(free))
    result = await unblock(kubernetes, unblock_request(free))
    now = await read(admin, free.name)
    assert "unschedulable" not in now["spec"]
    assert names.BLOCK_ANNOTATION not in (now["metadata"].get("annotations") or {})
    assert "cordon" in result.removed
    assert result.kept == (f"taint {KEEP_OTHERS_OFF['key']}:NoSchedule",)


async def test_unblock_where_someone_uncordoned_already(admin, kubernetes, blocked):
    await patch(admin, blocked.name, {"spec": {"unschedulable": None}})
    result = await unblock(kubernetes, unblock_request(blocked))
    assert "cordon" not in result.removed
    assert names.BLOCK_TAINT not in taint_keys(await read(admin, blocked.name))


async def test_unblock_twice_is_one(kubernetes, blocked):
    await unblock(kubernetes, unblock_request(blocked))
    assert (await unblock(kubernetes, unblock_request(blocked))).removed == ()


async def test_unblock_removes_our_claim(admin, kubernetes, blocked):
    incident = f"node/test/{blocked.name}"
    await patch(admin, blocked.name, {"metadata": {"annotations": {names.REPLACES_ANNOTATION: incident}}})
    result = await unblock(kubernetes, unblock_request(blocked))
    assert f"annotation {names.REPLACES_ANNOTATION}" in result.removed


async def test_unblock_leaves_another_incident_alone(admin, kubernetes, blocked):
    before = await read(admin, blocked.name)
    result = await unblock(kubernetes, unblock_request(blocked, "node/test/other"))
    after = await read(admin, blocked.name)
    assert result.removed == ()
    assert f"node/test/{blocked.name}" in result.kept[0]
    assert (after["spec"], after["metadata"]["annotations"]) == (
        before["spec"],
        before["metadata"]["annotations"],
    )


async def test_unblock_of_a_node_that_is_gone(admin, kubernetes, blocked):
    await admin.request("DELETE", f"/api/v1/nodes/{blocked.name}")
    assert (await unblock(kubernetes, unblock_request(blocked))).node_gone


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


async def test_a_late_unblock_of_the_incident_before_leaves_the_block_of_the_next(kubernetes, admin, node):
    """Both have the same workflow id: one incident of a node follows another."""
    identity = identity_of(node)
    await block(kubernetes, block_request(identity, run_id="run-1"))
    await unblock(kubernetes, unblock_request(identity, run_id="run-1"))
    await block(kubernetes, block_request(identity, run_id="run-2"))
    undone = await unblock(kubernetes, unblock_request(identity, run_id="run-1"))
    assert undone.removed == ()
    now = await read(admin, identity.name)
    assert names.BLOCK_TAINT in taint_keys(now)
    assert now["spec"]["unschedulable"]
