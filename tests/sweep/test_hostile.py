"""What anybody may have written on a Node: it is told as unreadable, and hides nothing of other nodes."""

import json
from datetime import UTC, datetime

import pytest
from cluster.conftest import change_taints

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from gpu_runbooks.activities.model.sweep import BadCondition, NodesPage, SweptNode
from gpu_runbooks.activities.sweep import cluster
from gpu_runbooks.activities.sweep.marks import marks_of
from gpu_runbooks.workflows import sweeping as module

TAINT = {"key": names.BLOCK_TAINT, "value": "xid-79", "effect": "NoSchedule"}
MARKER = {
    "incident": "node/test/n1",
    "run_id": "r",
    "reasons": ["x"],
    "since": "2026-01-01T00:00:00Z",
    "was_unschedulable": False,
}


@pytest.mark.parametrize(
    ("written", "marker"),
    [
        (json.dumps(MARKER), "ours"),
        (json.dumps(MARKER | {"incident": ""}), "unreadable"),
        (json.dumps(MARKER | {"incident": None}), "unreadable"),
        (json.dumps(MARKER | {"reasons": []}), "unreadable"),
        (json.dumps(MARKER | {"since": "once"}), "unreadable"),
        ("{", "unreadable"),
        ("null", "unreadable"),
        ("[]", "unreadable"),
        ("", ""),
    ],
)
def test_a_marker_is_ours_or_unreadable_and_nothing_between(written, marker):
    node = {"metadata": {"name": "n1", "uid": "u1", "annotations": {names.BLOCK_ANNOTATION: written}}}
    assert marks_of(node).marker == marker


async def test_a_sweep_ends_and_mends_whatever_one_node_has_and_whichever_raises(
    sweeping, admin, make_node, monkeypatch
):
    hostile, odd, failing, tainted = [(await make_node())["metadata"]["name"] for _ in range(4)]
    annotations = {names.BLOCK_ANNOTATION: json.dumps(MARKER | {"incident": ""})}
    await admin.request(
        "PATCH",
        f"/api/v1/nodes/{hostile}",
        body={"metadata": {"annotations": annotations}},
        content_type=MERGE_PATCH,
    )
    for name in (odd, failing, tainted):
        await change_taints(admin, name, lambda taints: [*taints, TAINT])

    def read(node, *given):
        if node["metadata"]["name"] == odd:
            raise KeyError("metadata")
        return marks_of(node, *given)

    judge = module.of_node

    def judged(node, *given):
        if node.name == failing:
            raise KeyError("incident")
        return judge(node, *given)

    monkeypatch.setattr(cluster, "marks_of", read)
    monkeypatch.setattr(module, "of_node", judged)
    async with sweeping.working():
        result = await (await sweeping.start()).result()
    found = {(each["subject"], each["kind"], each["did"]) for each in result["findings"]}
    assert {
        (hostile, "unreadable", "reported"),
        (tainted, "leftovers", "mended"),
        ("list of nodes", "unknown", "reported"),
        (f"list of node {failing}", "unknown", "reported"),
    } <= found
    assert not {each for each in found if each[0] in {odd, failing}}


def test_a_page_of_nodes_with_all_that_is_ours_fits_a_payload():
    name = "ip-10-123-200-117.eu-central-1.compute.internal"
    uid = "5f0e3b3a-0000-4000-8000-000000000000"
    bad = BadCondition(type="AcceleratedHardwareReady", status="Unknown", since=datetime.now(UTC))
    incident = f"node/production-eu-central-1/{name}"
    node = SweptNode(
        name=name,
        uid=uid,
        marker="unreadable",
        incident=incident,
        run_id=uid,
        taint=True,
        pause="ours",
        pause_incident=incident,
        pause_run_id=uid,
        bad=(bad, bad),
    )
    most = cluster.ENOUGH - 1 + cluster.AT_A_TIME
    page = NodesPage(nodes=(node,) * most, seen=5000, more="x" * 300)
    assert len(page.model_dump_json()) < 16 * 1024
