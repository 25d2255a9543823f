"""Claims of new Nodes on a real API server: one Node, one incident."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from cluster.conftest import KEEP_OTHERS_OFF, block_request, soon, until

from gpu_runbooks.activities import names
from gpu_runbooks.activities.karpenter.objects import DO_NOT_REPAIR
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from gpu_runbooks.activities.model.node import NodeIdentity, UnblockNode
from gpu_runbooks.activities.model.repair import ClaimReplacement
from gpu_runbooks.activities.nodes.block import block, unblock
from gpu_runbooks.activities.nodes.node import identity_of, marker_of, observe
from gpu_runbooks.activities.nodes.replacement import claim_replacement, is_candidate
from testbed.api_faults import respond, status
from testbed.nodes import POOL_LABEL

OLD = NodeIdentity(
    name="gpu-old",
    uid="u-old",
    provider_id="aws:///us-west-2a/i-00000000000000001",
    instance_id="i-00000000000000001",
    zone="us-west-2a",
    instance_type="p5.48xlarge",
    boot_id="A",
)


@pytest.fixture
def pool():
    return f"pool-{uuid.uuid4().hex[:8]}"


def claim(pool, incident, seconds=30, **changes):
    fields = {
        "replaced": OLD,
        "pool_selector": {POOL_LABEL: pool},
        "incident": incident,
        "run_id": "run-1",
        "rule": "xid-79",
        "reason": "replacement, not validated yet",
        "launched_after": datetime.now(UTC),
        "deadline": soon(seconds),
    }
    return ClaimReplacement(**(fields | changes))


async def test_a_node_of_another_group_is_nobodys_successor(kubernetes, make_node, pool):
    """Pools hold nodes of several groups: one that another group launched meanwhile is not ours to block."""
    machine = identity_of(await make_node(pool=pool))
    mine = claim(pool, "node/test/a", seconds=2, launched_after=datetime.now(UTC) - timedelta(minutes=1))
    strangers = mine.model_copy(update={"instances": ("i-00000000000000009",)})
    assert not (await claim_replacement(kubernetes, strangers)).proven
    proof = await claim_replacement(kubernetes, mine.model_copy(update={"instances": (machine.instance_id,)}))
    assert proof.identity == machine


async def test_an_incident_whose_machine_another_one_took_says_so_and_asks_for_a_newer_list(
    kubernetes, make_node, pool
):
    """Each of two may take the machine that was launched for the other. The one in service is left alone."""
    since = datetime.now(UTC) - timedelta(minutes=1)
    first = identity_of(await make_node(pool=pool))
    taken = claim(pool, "node/test/b", launched_after=since, instances=(first.instance_id,))
    assert (await claim_replacement(kubernetes, taken)).proven
    mine = claim(pool, "node/test/a", launched_after=since, instances=(first.instance_id,))
    robbed = await claim_replacement(kubernetes, mine)
    assert (robbed.proven, robbed.taken) == (False, True)
    await unblock(kubernetes, UnblockNode(identity=first, incident=taken.incident, run_id=taken.run_id))
    assert (await claim_replacement(kubernetes, mine)).taken
    second = identity_of(await make_node(pool=pool))
    newer = mine.model_copy(update={"instances": (first.instance_id, second.instance_id)})
    assert (await claim_replacement(kubernetes, newer)).identity == second


async def test_new_node_is_claimed_blocked_and_ready(admin, kubernetes, make_node, pool):
    claiming = asyncio.create_task(claim_replacement(kubernetes, claim(pool, "node/test/a")))
    name = (await make_node(pool=pool))["metadata"]["name"]
    proof = await claiming
    assert proof.proven
    assert proof.identity is not None
    assert (proof.identity.name, bool(proof.identity.boot_id)) == (name, True)
    now = await admin.request("GET", f"/api/v1/nodes/{name}")
    assert now["metadata"]["annotations"][names.REPLACES_ANNOTATION] == "node/test/a"
    assert observe(now, "node/test/a").blocked
    assert KEEP_OTHERS_OFF["key"] in {taint["key"] for taint in now["spec"]["taints"]}
    marker = marker_of(now)
    assert marker is not None
    assert not marker.was_unschedulable


async def test_claims_of_many_incidents_never_meet(admin, kubernetes, make_node, pool):
    incidents = [f"node/test/{number}" for number in range(4)]
    asked = datetime.now(UTC)
    claiming = [
        asyncio.create_task(claim_replacement(kubernetes, claim(pool, incident, launched_after=asked)))
        for incident in incidents
    ]
    made = {(await make_node(pool=pool))["metadata"]["name"] for _ in incidents}
    proofs = await asyncio.gather(*claiming)
    assert all(proof.proven for proof in proofs)
    assert {proof.identity.name for proof in proofs} == made
    for incident, proof in zip(incidents, proofs, strict=True):
        now = await admin.request("GET", f"/api/v1/nodes/{proof.identity.name}")
        assert observe(now, incident).blocked


async def test_one_node_for_two_incidents_has_one_winner(kubernetes, make_node, pool):
    asked = datetime.now(UTC)
    await make_node(pool=pool)
    proofs = await asyncio.gather(
        *(
            claim_replacement(kubernetes, claim(pool, incident, seconds=5, launched_after=asked))
            for incident in ("node/test/a", "node/test/b")
        )
    )
    assert sorted(proof.proven for proof in proofs) == [False, True]
    assert "no new Node" in next(proof.message for proof in proofs if not proof.proven)


async def test_own_claim_is_adopted_and_no_second_made(admin, kubernetes, make_node, pool):
    request = claim(pool, "node/test/a")
    await make_node(pool=pool)
    first = await claim_replacement(kubernetes, request)
    await make_node(pool=pool)
    again = await claim_replacement(kubernetes, request)
    assert again.identity == first.identity
    nodes = await admin.items("/api/v1/nodes", label_selector=f"{POOL_LABEL}={pool}")
    assert sum(observe(node, "node/test/a").blocked for node in nodes) == 1


async def test_node_of_another_incident_is_passed_over(kubernetes, make_node, pool):
    request = claim(pool, "node/test/a", seconds=4)
    taken = identity_of(await make_node(pool=pool))
    await block(kubernetes, block_request(taken, "node/test/b"))
    assert not (await claim_replacement(kubernetes, request)).proven


async def test_claimed_node_without_gpus_is_not_proven(admin, kubernetes, make_node, pool):
    request = claim(pool, "node/test/a", seconds=5)
    name = (await make_node(pool=pool))["metadata"]["name"]
    body = {"status": {"allocatable": {"nvidia.com/gpu": "0"}}}
    await admin.request("PATCH", f"/api/v1/nodes/{name}/status", body=body, content_type=MERGE_PATCH)
    proof = await claim_replacement(kubernetes, request)
    assert not proof.proven
    assert "allocatable nvidia.com/gpu 0" in proof.message


async def test_claimed_node_that_dies_is_succeeded_by_the_next(admin, kubernetes, make_node, pool):
    request = claim(pool, "node/test/a")
    first = (await make_node(pool=pool))["metadata"]["name"]
    body = {"status": {"allocatable": {"nvidia.com/gpu": "0"}}}
    await admin.request("PATCH", f"/api/v1/nodes/{first}/status", body=body, content_type=MERGE_PATCH)
    claiming = asyncio.create_task(claim_replacement(kubernetes, request))
    await until(admin, "/api/v1/nodes", first, lambda node: observe(node, "node/test/a").blocked)
    await admin.request("DELETE", f"/api/v1/nodes/{first}")
    second = (await make_node(pool=pool))["metadata"]["name"]
    proof = await claiming
    assert proof.identity is not None
    assert (proof.proven, proof.identity.name) == (True, second)


async def test_a_claimed_node_of_karpenter_is_not_repaired_by_it(admin, kubernetes, make_node, pool):
    request = claim(pool, "node/test/a")
    name = (await make_node(pool=pool, labels={"karpenter.sh/nodepool": "p5"}))["metadata"]["name"]
    assert (await claim_replacement(kubernetes, request)).proven
    now = await admin.request("GET", f"/api/v1/nodes/{name}")
    assert now["metadata"]["annotations"][DO_NOT_REPAIR] == "true"
    marker = marker_of(now)
    assert marker is not None
    assert marker.set_do_not_repair


async def test_a_claim_of_an_earlier_run_becomes_one_of_this_run(admin, kubernetes, make_node, pool):
    """Otherwise this run could not unblock the node in the end: it removes only what its own run made."""
    request = claim(pool, "node/test/a")
    name = (await make_node(pool=pool))["metadata"]["name"]
    await claim_replacement(kubernetes, request)
    again = await claim_replacement(kubernetes, request.model_copy(update={"run_id": "run-2"}))
    assert again.identity is not None
    assert (again.proven, again.identity.name) == (True, name)
    marker = marker_of(await admin.request("GET", f"/api/v1/nodes/{name}"))
    assert marker is not None
    assert (marker.run_id, marker.was_unschedulable) == ("run-2", False)


async def test_a_node_that_a_person_holds_is_passed_over(kubernetes, make_node, pool):
    request = claim(pool, "node/test/a", seconds=4, run_id="run-2")
    held = identity_of(await make_node(pool=pool))
    await block(kubernetes, block_request(held, "node/test/a", hold=True))
    assert not (await claim_replacement(kubernetes, request)).proven


async def test_a_claim_that_never_stands_is_given_up_at_the_deadline(faulty, proxy, make_node, pool):
    request = claim(pool, "node/test/a", seconds=3)
    await make_node(pool=pool)
    conflict = status(409, "Conflict", "the object has been modified")
    proxy.inject(respond(409, conflict), method="PATCH", path="/api/v1/nodes/.*", times=None)
    async with asyncio.timeout(60):
        proof = await claim_replacement(faulty, request)
    assert not proof.proven
    assert "did not stand by the deadline" in proof.message
    assert proxy.count("PATCH") < 10  # others have their turn in between


LAUNCHED = datetime(2026, 3, 1, 10, tzinfo=UTC)


def new_node(*, age=timedelta(0), instance="i-0aaaaaaaaaaaaaaa1", deleted=False, **annotations):
    metadata = {
        "name": "gpu-new",
        "uid": "u-new",
        "creationTimestamp": (LAUNCHED + age).isoformat().replace("+00:00", "Z"),
        "annotations": annotations,
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-03-01T10:10:00Z"
    return {"metadata": metadata, "spec": {"providerID": f"aws:///us-west-2a/{instance}" if instance else ""}}


@pytest.mark.parametrize(
    ("node", "fits"),
    [
        (new_node(), True),
        (new_node(age=timedelta(seconds=-2)), True),  # clocks differ a little
        (new_node(age=timedelta(minutes=-2)), False),
        (new_node(instance=OLD.instance_id), False),  # the old machine registered again
        (new_node(instance=""), False),  # no provider id yet
        (new_node(deleted=True), False),
        (new_node(**{names.REPLACES_ANNOTATION: "node/test/other"}), False),
        (new_node(**{names.REPLACES_ANNOTATION: "node/test/a"}), True),
        (new_node(**{names.REPLACED_ANNOTATION: "node/test/other"}), False),  # back in service
        (new_node(**{names.REPLACED_ANNOTATION: "node/test/a"}), False),
        (new_node(**{names.BLOCK_ANNOTATION: "who knows"}), False),
    ],
)
def test_who_may_be_claimed(node, fits):
    assert is_candidate(node, claim("p", "node/test/a", launched_after=LAUNCHED)) is fits
