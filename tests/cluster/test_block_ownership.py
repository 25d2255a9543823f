"""Whose block it is: reasons that gather, a block held for a person, and one that is only taken over."""

import json

import pytest
from cluster.blocks import OUR_TAINT, annotations, marker, patch, read, taints, unblock_request
from cluster.conftest import block_request
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.nodes.block import block, unblock
from gpu_runbooks.activities.nodes.block_state import LONGEST_REASON, MOST_REASONS, united
from gpu_runbooks.activities.nodes.node import identity_of, marker_of, observe


async def refused(kubernetes, request):
    with pytest.raises(ApplicationError) as error:
        await block(kubernetes, request)
    assert error.value.non_retryable
    return error.value


async def test_a_second_fault_adds_its_reason_and_its_rule(admin, kubernetes, blocked):
    again = await block(kubernetes, block_request(blocked, reason="an EFA link is down", rule="efa-link"))
    assert again.adopted
    now = await read(admin, blocked.name)
    assert marker(now).reasons == ("the GPU fell off the bus", "an EFA link is down")
    assert taints(now)[OUR_TAINT] == "efa-link"


async def test_a_known_reason_with_another_rule_writes_the_rule(admin, kubernetes, blocked):
    await block(kubernetes, block_request(blocked, rule="xid-48"))
    now = await read(admin, blocked.name)
    assert marker(now).reasons == ("the GPU fell off the bus",)
    assert taints(now)[OUR_TAINT] == "xid-48"


async def test_repeats_of_every_reason_write_nothing(kubernetes, faulty, proxy, blocked):
    reasons = ["the GPU fell off the bus", "an EFA link is down", "x" * 500]
    for reason in reasons:
        await block(kubernetes, block_request(blocked, reason=reason))
    for reason in reasons:
        assert (await block(faulty, block_request(blocked, reason=reason))).adopted
    assert proxy.count("PATCH") == 0


def test_reasons_stay_few_and_short_with_the_first_and_the_newest():
    reasons = ()
    for number in range(MOST_REASONS + 5):
        reasons = united(reasons, f"fault {number} " + "x" * LONGEST_REASON)
    assert [reason.split()[1] for reason in reasons] == ["0", *(str(n) for n in range(6, MOST_REASONS + 5))]
    assert {len(reason) for reason in reasons} == {LONGEST_REASON}
    assert united(reasons, reasons[3]) == reasons


async def test_a_held_block_is_refused_to_the_next_incident_of_the_node(admin, kubernetes, node):
    identity = identity_of(node)
    await block(kubernetes, block_request(identity, hold=True, reason="ana: board is swapped by hand"))
    before = await read(admin, identity.name)
    error = await refused(kubernetes, block_request(identity, run_id="run-2", reason="Xid 79"))
    assert error.type == errors.HELD
    for part in ("ana: board is swapped by hand", "2026-03-01T08:00:00", "run-1", "`ReturnNode`"):
        assert part in error.message
    now = await read(admin, identity.name)
    assert (annotations(now), taints(now)) == (annotations(before), taints(before))
    assert now["spec"]["unschedulable"]


async def test_a_held_block_stays_held_for_its_own_run_and_for_who_takes_it(admin, kubernetes, node):
    identity = identity_of(node)
    await block(kubernetes, block_request(identity, hold=True))
    assert (await block(kubernetes, block_request(identity, reason="another"))).marker.held
    taken = await block(
        kubernetes,
        block_request(identity, run_id="run-2", take_held=True, only_adopt=True, reason="ana: it is mended"),
    )
    assert (taken.adopted, taken.marker.held, taken.marker.run_id) == (True, True, "run-2")
    late = await unblock(kubernetes, unblock_request(identity, run_id="run-1"))
    assert late.removed == ()
    assert observe(await read(admin, identity.name), taken.marker.incident, "run-2").blocked
    await unblock(kubernetes, unblock_request(identity, run_id="run-2"))
    now = await read(admin, identity.name)
    assert names.BLOCK_ANNOTATION not in annotations(now)
    assert OUR_TAINT not in taints(now)
    assert "unschedulable" not in now["spec"]


async def test_a_block_becomes_held_by_a_later_request(kubernetes, blocked):
    assert (await block(kubernetes, block_request(blocked, hold=True))).marker.held


async def test_only_adopt_never_makes_a_block(faulty, proxy, node):
    error = await refused(faulty, block_request(identity_of(node), only_adopt=True))
    assert error.type == errors.NOT_BLOCKED
    assert proxy.count("PATCH") == 0


async def test_only_adopt_names_whose_block_it_is(faulty, proxy, blocked):
    error = await refused(faulty, block_request(blocked, "node/test/other", only_adopt=True))
    assert error.type == errors.NOT_BLOCKED
    assert f"node/test/{blocked.name}" in error.message
    assert proxy.count("PATCH") == 0


async def test_only_adopt_leaves_a_marker_that_cannot_be_read(admin, faulty, proxy, blocked):
    await patch(admin, blocked.name, {"metadata": {"annotations": {names.BLOCK_ANNOTATION: "who knows"}}})
    error = await refused(faulty, block_request(blocked, only_adopt=True))
    assert error.type == errors.NOT_BLOCKED
    assert proxy.count("PATCH") == 0


async def test_only_adopt_blocks_again_what_kubectl_uncordoned(installed, admin, kubernetes, blocked):
    """Taint and marker are left, and the node is about to be validated: no pod may come meanwhile."""
    await installed.kubectl("uncordon", blocked.name)
    assert OUR_TAINT in taints(await read(admin, blocked.name))
    result = await block(kubernetes, block_request(blocked, run_id="run-2", only_adopt=True))
    assert (result.adopted, result.marker.was_unschedulable) == (True, False)
    assert observe(await read(admin, blocked.name), result.marker.incident, "run-2").blocked


def test_what_a_kubelet_writes_beyond_measure_does_not_get_into_the_history():
    """Provider id, boot id and annotations of its Node are its own to write, of any length."""
    forged = {
        "incident": "node/test/gpu-1",
        "run_id": "run-1",
        "reasons": ["x" * 100_000],
        "since": "2026-03-01T08:00:00Z",
        "was_unschedulable": False,
    }
    node = {
        "metadata": {
            "name": "gpu-1",
            "uid": "u",
            "annotations": {names.BLOCK_ANNOTATION: json.dumps(forged)},
        },
        "spec": {"providerID": "aws:///us-west-2a/" + "i" * 100_000},
        "status": {"nodeInfo": {"bootID": "b" * 100_000}},
    }
    seen = observe(node, "node/test/gpu-1")
    assert len(seen.model_dump_json()) < 1000
    assert (seen.identity.provider_id, seen.identity.boot_id, seen.marker) == ("", "", None)
    with pytest.raises(ValueError, match="characters"):
        marker_of(node)
