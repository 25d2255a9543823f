"""Which NodeClaim is deleted, and when none is. Most of these Karpenter itself does not look at."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from cluster.conftest import block_request, until
from cluster.karpenter.conftest import delete_request, make_gpu_pod, node_of
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.karpenter.capacity import EVENTS, NO_CAPACITY, is_named_by
from gpu_runbooks.activities.karpenter.node_claims import delete_node_claim
from gpu_runbooks.activities.karpenter.objects import NODE_CLAIMS, NODE_POOLS, is_going
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from gpu_runbooks.activities.names import NODE_POOL_LABEL
from gpu_runbooks.activities.nodes.block import block
from gpu_runbooks.activities.nodes.node import identity_of
from testbed.api_faults import first


@pytest.fixture
async def make_claim(karpenter, admin):
    """Makes NodeClaims of another Karpenter's node class, which ours leaves alone."""
    made = []

    async def make(provider_id, node_name, *, pool="", name="", conditions=(), **metadata):
        name = name or f"{pool or 'loose'}-{uuid.uuid4().hex[:5]}"
        body = {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {"name": name, "labels": {NODE_POOL_LABEL: pool} if pool else {}} | metadata,
            "spec": {
                "nodeClassRef": {"group": "karpenter.example.com", "kind": "OtherClass", "name": "other"},
                "requirements": [{"key": "kubernetes.io/os", "operator": "Exists"}],
            },
        }
        created = await admin.request("POST", NODE_CLAIMS, body=body)
        made.append(name)
        status = {"providerID": provider_id, "nodeName": node_name, "conditions": list(conditions)}
        await admin.request(
            "PATCH",
            f"{NODE_CLAIMS}/{name}/status",
            body={"status": {key: value for key, value in status.items() if value}},
            content_type=MERGE_PATCH,
        )
        return created

    yield make
    for name in made:
        if await admin.find(f"{NODE_CLAIMS}/{name}"):
            await admin.request("DELETE", f"{NODE_CLAIMS}/{name}")


@pytest.fixture
async def owned(make_node, kubernetes):
    """A blocked node that says it is Karpenter's."""
    identity = identity_of(await make_node(labels={NODE_POOL_LABEL: "gpu"}))
    await block(kubernetes, block_request(identity))
    return identity


def condition(kind, status="True", *, ago=60, reason="", message=""):
    return {
        "type": kind,
        "status": status,
        "reason": reason or kind,
        "message": message,
        "lastTransitionTime": (datetime.now(UTC) - timedelta(seconds=ago)).isoformat(timespec="seconds"),
    }


async def refused(kubernetes, request):
    with pytest.raises(ApplicationError) as caught:
        await delete_node_claim(kubernetes, request, lambda _: None)
    assert caught.value.non_retryable
    return caught.value.type, caught.value.message


async def test_a_claim_without_a_pool_is_deleted_and_no_other(admin, kubernetes, owned, make_claim):
    mine = await make_claim(owned.provider_id, owned.name)
    other = await make_claim("aws:///us-west-2a/i-0bbbbbbbbbbbbbbb2", "gpu-other")
    deleted = await delete_node_claim(kubernetes, delete_request(owned), lambda _: None)
    assert (deleted.node_claim, deleted.uid) == (mine["metadata"]["name"], mine["metadata"]["uid"])
    assert (deleted.node_pool, deleted.static) == ("", False)
    assert await admin.find(f"{NODE_CLAIMS}/{deleted.node_claim}") is None
    assert await admin.find(f"{NODE_CLAIMS}/{other['metadata']['name']}") is not None


async def test_a_label_without_a_claim_is_no_owner(karpenter, faulty, proxy, owned):
    kind, told = await refused(faulty, delete_request(owned))
    assert kind == errors.NO_OWNER
    assert owned.provider_id in told
    assert proxy.count("DELETE") == 0


async def test_two_claims_of_one_machine_are_refused(faulty, proxy, owned, make_claim):
    claims = [await make_claim(owned.provider_id, owned.name) for _ in range(2)]
    kind, told = await refused(faulty, delete_request(owned))
    assert kind == errors.BAD_INPUT
    assert all(claim["metadata"]["name"] in told for claim in claims)
    assert proxy.count("DELETE") == 0


@pytest.mark.parametrize("named", ["gpu-other", ""])
async def test_a_claim_that_names_another_node_is_left(faulty, proxy, owned, make_claim, named):
    await make_claim(owned.provider_id, named)
    kind, _ = await refused(faulty, delete_request(owned))
    assert (kind, proxy.count("DELETE")) == (errors.BAD_INPUT, 0)


async def test_a_claim_that_the_node_does_not_name_as_its_owner_is_left(
    admin, faulty, proxy, owned, make_claim
):
    await make_claim(owned.provider_id, owned.name)
    elsewhere = await make_claim("aws:///us-west-2a/i-0bbbbbbbbbbbbbbb2", "gpu-other")
    owner = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "name": elsewhere["metadata"]["name"],
        "uid": elsewhere["metadata"]["uid"],
    }
    body = {"metadata": {"ownerReferences": [owner]}}
    await admin.request("PATCH", f"/api/v1/nodes/{owned.name}", body=body, content_type=MERGE_PATCH)
    kind, told = await refused(faulty, delete_request(owned))
    assert (kind, proxy.count("DELETE")) == (errors.BAD_INPUT, 0)
    assert elsewhere["metadata"]["name"] in told


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"incident": "node/test/somebody-else"}, errors.NOT_BLOCKED),
        ({"not_after": datetime(2026, 1, 1, tzinfo=UTC)}, errors.NOT_SENT),
    ],
)
async def test_nothing_is_deleted_on_an_old_look(faulty, proxy, owned, make_claim, changes, kind):
    await make_claim(owned.provider_id, owned.name)
    assert (await refused(faulty, delete_request(owned, **changes)))[0] == kind
    assert proxy.count("DELETE") == 0


@pytest.mark.parametrize("field", ["uid", "provider_id"])
async def test_another_machine_under_the_name_is_left(faulty, proxy, owned, make_claim, field):
    await make_claim(owned.provider_id, owned.name)
    pinned = owned.model_copy(update={field: "", "instance_id": owned.instance_id if field == "uid" else ""})
    kind, _ = await refused(faulty, delete_request(pinned, incident=f"node/test/{owned.name}"))
    assert kind in {errors.NODE_CHANGED, errors.NO_OWNER}
    assert proxy.count("DELETE") == 0


async def test_a_pool_that_is_gone_launches_nothing(faulty, proxy, owned, make_claim):
    await make_claim(owned.provider_id, owned.name, pool="no-such")
    kind, told = await refused(faulty, delete_request(owned))
    assert (kind, proxy.count("DELETE")) == (errors.NO_CAPACITY, 0)
    assert "NodePool no-such is gone" in told


async def test_a_claim_that_could_not_launch_stops_the_next_one(
    faulty, kubernetes, proxy, make_pool, admin, make_claim
):
    pool, old = await a_blocked_node(admin, kubernetes, make_pool)
    words = "creating instance, InsufficientInstanceCapacity: we currently do not have sufficient capacity"
    failed = condition("Launched", "Unknown", ago=-1, reason="LaunchFailed", message=words)
    await make_claim("", "", pool=pool, conditions=[failed])
    kind, told = await refused(faulty, delete_request(old))
    assert (kind, proxy.count("DELETE")) == (errors.NO_CAPACITY, 0)
    assert words in told
    # A launch since then shows that there is capacity again.
    await make_claim("", "", pool=pool, conditions=[condition("Launched", ago=-2)])
    assert (await delete_node_claim(kubernetes, delete_request(old), lambda _: None)).node_pool == pool


async def test_karpenters_own_word_of_no_capacity_stops_the_next_one(
    faulty, kubernetes, proxy, make_pool, admin, namespace
):
    """A NodeClaim whose launch finds no capacity is gone at once, and leaves only an event."""
    # no static pool: Karpenter may remove the claim as one too many before it launches it
    pool = await make_pool()
    await make_gpu_pod(admin, namespace, "job", pool)
    old = identity_of(await node_of(admin, pool))
    await block(kubernetes, block_request(old))
    name = f"{pool}-zzzzz"
    body = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": name, "labels": {NODE_POOL_LABEL: pool}},
        "spec": {
            # what the kwok provider calls a lack of capacity
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "no-such"},
            "requirements": [
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5.48xlarge"]}
            ],
        },
    }
    await admin.request("POST", NODE_CLAIMS, body=body)
    following = admin.follow(EVENTS, field_selector=f"reason={NO_CAPACITY},involvedObject.name={name}")
    async with asyncio.timeout(60):
        async for events in following:
            if events:
                break
    await following.aclose()
    await until(admin, NODE_CLAIMS, name, lambda claim: claim is None)
    kind, told = await refused(faulty, delete_request(old))
    assert (kind, proxy.count("DELETE")) == (errors.NO_CAPACITY, 0)
    assert f"the last launch of NodePool {pool} found no capacity" in told


async def test_karpenters_budget_is_waited_for(faulty, kubernetes, proxy, karpenter, make_pool, admin):
    pool, old = await a_blocked_node(admin, kubernetes, make_pool, budgets=[{"nodes": "0"}])
    kind, told = await refused(faulty, delete_request(old))
    assert (kind, proxy.count("DELETE")) == (errors.NOT_SENT, 0)
    assert f"budget 1 of NodePool {pool} (spec.disruption.budgets[0]: nodes 0)" in told
    beats = []
    deleting = asyncio.create_task(delete_node_claim(faulty, delete_request(old, seconds=60), beats.append))
    async with asyncio.timeout(60):
        while not beats:
            await asyncio.sleep(0.05)
    assert "nodes 0" in beats[0]
    assert proxy.count("DELETE") == 0
    open_again = {"spec": {"disruption": {"budgets": [{"nodes": "1"}]}}}
    await admin.request("PATCH", f"{NODE_POOLS}/{pool}", body=open_again, content_type=MERGE_PATCH)
    deleted = await deleting
    (claim,) = [each for each in await karpenter.claims(pool) if each["metadata"]["uid"] == deleted.uid]
    assert is_going(claim)


async def test_the_precondition_spares_a_namesake(admin, kubernetes, owned, make_claim, faulty, proxy):
    """Between look and call the NodeClaim went, and another of its name came."""
    claim = await make_claim(owned.provider_id, owned.name)
    name = claim["metadata"]["name"]

    async def replace():
        await admin.request("DELETE", f"{NODE_CLAIMS}/{name}")
        await make_claim("aws:///us-west-2a/i-0bbbbbbbbbbbbbbb2", "gpu-other", name=name)

    proxy.inject(first(replace), method="DELETE")
    deleted = await delete_node_claim(faulty, delete_request(owned), lambda _: None)
    now = await admin.request("GET", f"{NODE_CLAIMS}/{name}")
    assert now["metadata"]["uid"] != deleted.uid == claim["metadata"]["uid"]


@pytest.mark.parametrize(
    ("pool", "claim", "named"),
    [
        ("gpu", "gpu-x7k2p", True),
        ("gpu", "gpu-a-x7k2p", False),
        ("gpu-a", "gpu-a-x7k2p", True),
        ("gpu", "gpu-x7k2", False),
        ("g.u", "gpu-x7k2p", False),
        ("p" * 60, "p" * 58 + "x7k2p", True),
    ],
)
def test_the_pool_of_a_claim_that_is_gone(pool, claim, named):
    assert is_named_by(pool, claim) is named


async def a_blocked_node(admin, kubernetes, make_pool, **settings):
    pool = await make_pool(replicas=1, **settings)
    old = identity_of(await node_of(admin, pool))
    await block(kubernetes, block_request(old))
    return pool, old
