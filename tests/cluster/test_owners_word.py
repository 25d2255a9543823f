"""What the owners of a node say of it with kubectl: leave it alone, and give it back."""

import asyncio

import pytest
from cluster.conftest import block_request, drain_request
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import names
from gpu_runbooks.activities.draining.drain import drain
from gpu_runbooks.activities.nodes.block import block
from gpu_runbooks.activities.nodes.giving_back import given_back_by
from gpu_runbooks.activities.nodes.node import identity_of, observe

OPT_OUT = f"{names.OPT_OUT_LABEL}=true"


async def seen(kubernetes, name: str):
    node = await kubernetes.request("GET", f"/api/v1/nodes/{name}")
    return observe(node, f"node/test/{name}", "run-1")


async def test_an_opted_out_node_is_not_blocked_and_says_how_to_opt_in(kubernetes, installed, make_node):
    node = await make_node()
    name = node["metadata"]["name"]
    await installed.kubectl("label", "node", name, OPT_OUT)
    with pytest.raises(
        ApplicationError, match=f"kubectl label node {name} {names.OPT_OUT_LABEL}-"
    ) as refused:
        await block(kubernetes, block_request(identity_of(node)))
    assert refused.value.type == "OptedOut"
    found = await seen(kubernetes, name)
    assert (found.opted_out, found.blocked, found.marker) == (True, False, None)
    await block(kubernetes, block_request(identity_of(node), take_opted_out=True))
    assert (await seen(kubernetes, name)).blocked


async def test_a_block_that_stands_is_kept_on_a_node_that_opts_out(kubernetes, installed, make_node):
    node = await make_node()
    name = node["metadata"]["name"]
    await block(kubernetes, block_request(identity_of(node)))
    await installed.kubectl("label", "node", name, OPT_OUT)
    assert (await block(kubernetes, block_request(identity_of(node)))).adopted
    found = await seen(kubernetes, name)
    assert (found.opted_out, found.blocked) == (True, True)


async def test_an_uncordon_shows_when_it_was(kubernetes, installed, make_node):
    node = await make_node()
    name = node["metadata"]["name"]
    await block(kubernetes, block_request(identity_of(node)))
    assert (await seen(kubernetes, name)).given_back_by == ""
    await installed.kubectl("uncordon", name)
    async with asyncio.timeout(30):
        while "by about" not in (found := await seen(kubernetes, name)).given_back_by:
            await asyncio.sleep(0.1)
    assert not found.blocked
    assert "does not tell by whom" in found.given_back_by


@pytest.mark.parametrize("word", ["uncordon", "opt out"])
async def test_a_running_drain_stops_at_the_owners_word(
    kubernetes, installed, admin, make_node, make_pod, word
):
    node = await make_node()
    name = node["metadata"]["name"]
    pod = await make_pod("stays", name, annotations={"karpenter.sh/do-not-disrupt": "true"})
    await block(kubernetes, block_request(identity_of(node)))
    running = asyncio.create_task(drain(kubernetes, drain_request(identity_of(node), 60)))
    await installed.kubectl(*(("uncordon", name) if word == "uncordon" else ("label", "node", name, OPT_OUT)))
    async with asyncio.timeout(20):
        report = await running
    assert report.result.outcome == "cancelled"
    assert ("someone removed it" if word == "uncordon" else "want nothing done") in report.result.message
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
    assert "deletionTimestamp" not in (await admin.request("GET", path))["metadata"]


def test_a_writer_of_the_cordon_is_named():
    entry = {"time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
    node = {"metadata": {"managedFields": [{**entry, "manager": "cluster-api"}]}}
    assert given_back_by(node) == "by cluster-api at 2026-01-01T00:00:00Z"
    assert given_back_by({"metadata": {}}) == ""
