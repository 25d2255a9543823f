"""What leaves the node with our block on a real API server, and what stays."""

import re
from pathlib import Path

from cluster.blocks import OUR_TAINT, annotate, annotations, patch, read, taint_keys, taints, unblock_request
from cluster.conftest import KEEP_OTHERS_OFF, block_request

from gpu_runbooks.activities import names
from gpu_runbooks.activities.nodes.block import block, unblock
from gpu_runbooks.activities.nodes.node import identity_of, observe

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"


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
    assert annotations(await read(admin, blocked.name))[names.REPLACED_ANNOTATION] == incident


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


async def test_an_uncordoned_node_with_its_taint_removed_keeps_nothing_of_ours(
    installed, admin, kubernetes, blocked
):
    """A person gives the node back by hand, in the middle of an incident."""
    await installed.kubectl("uncordon", blocked.name)
    await installed.kubectl("taint", "node", blocked.name, f"{OUR_TAINT}-")
    assert not observe(await read(admin, blocked.name), f"node/test/{blocked.name}").blocked
    result = await unblock(kubernetes, unblock_request(blocked))
    assert result.removed == (f"annotation {names.BLOCK_ANNOTATION}",)
    now = await read(admin, blocked.name)
    assert not [key for key in (*annotations(now), *taint_keys(now)) if key.startswith(f"{names.PREFIX}/b")]
    assert OUR_TAINT not in taints(now)


async def test_a_cordon_that_nobody_can_account_for_stays(admin, kubernetes, blocked):
    await annotate(admin, blocked.name, **{names.BLOCK_ANNOTATION: None})
    result = await unblock(kubernetes, unblock_request(blocked))
    assert result.removed == (f"taint {names.BLOCK_TAINT}",)
    assert "cordon" in result.kept
    assert (await read(admin, blocked.name))["spec"]["unschedulable"] is True


async def test_a_marker_that_cannot_be_read_keeps_its_block(admin, faulty, proxy, blocked):
    await annotate(admin, blocked.name, **{names.BLOCK_ANNOTATION: "who knows"})
    result = await unblock(faulty, unblock_request(blocked))
    assert (result.removed, result.kept) == ((), ("a block marker that cannot be read, and its block",))
    assert proxy.count("PATCH") == 0


async def test_the_page_says_how_to_remove_a_left_over_block_by_hand(installed, admin, kubernetes, make_node):
    """Exactly the commands of docs/operating.md, on a node with all that can be ours, and foreign things."""
    identity = identity_of(await make_node(labels={"karpenter.sh/nodepool": "p5"}))
    await annotate(admin, identity.name, **{"example.com/owner": "ana"})
    before = await read(admin, identity.name)
    await block(kubernetes, block_request(identity))
    await annotate(admin, identity.name, **{names.REPLACES_ANNOTATION: "node/test/old"})
    page = OPERATING.read_text()
    by_hand = page[page.index("- By hand, without validation") :]
    commands = re.findall(r"^  kubectl ([^#\n]+)", by_hand[: by_hand.index("  ```\n\n")], re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        await installed.kubectl(*command.replace("NODE", identity.name).split())
    now = await read(admin, identity.name)
    assert taints(now) == taints(before)
    assert annotations(now) == annotations(before)
    assert "unschedulable" not in now["spec"]
