"""An incident on a node of the real Karpenter, by the whole product."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from integration.driving import ended, is_in_service, start_by_hand

from gpu_runbooks.activities.karpenter.objects import NODE_CLAIMS
from gpu_runbooks.activities.names import NODE_POOL_LABEL
from testbed.karpenter import Karpenter
from testbed.nodes import POOL

CLAIMS_OF_POOL = f"{NODE_POOL_LABEL}={POOL}"


@pytest.fixture
async def karpenters_node(testbed) -> AsyncIterator[str]:
    """The one node of a static pool that belongs to the pool of the policy, with an agent."""
    async with Karpenter.start(testbed.plane) as karpenter:
        await karpenter.make_pool(POOL, replicas=1)
        yield await initialized(testbed)
        await karpenter.remove_pool(POOL)
        async with asyncio.timeout(60):
            while await karpenter.claims(POOL):
                await asyncio.sleep(0.2)


async def initialized(testbed) -> str:
    claims = await testbed.fleet.wait_until(
        NODE_CLAIMS,
        lambda claims: any(is_initialized(claim) for claim in claims),
        "an initialized NodeClaim",
        label_selector=CLAIMS_OF_POOL,
    )
    return next(claim["status"]["nodeName"] for claim in claims if is_initialized(claim))


def is_initialized(claim) -> bool:
    conditions = (claim.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Initialized" and each["status"] == "True" for each in conditions)


async def test_a_node_of_karpenter_is_replaced_through_its_node_claim(testbed, karpenters_node):
    await testbed.agents.start(karpenters_node)
    calls = len(testbed.cloud.calls())
    result, acts = await ended(await start_by_hand(testbed, karpenters_node, "replace"))
    assert (result.outcome, acts) == ("replaced", ["block", "drain", "replace", "validate", "return"])
    assert result.target != karpenters_node
    assert await is_in_service(testbed, result.target)
    names = [node["metadata"]["name"] for node in await testbed.fleet.nodes()]
    assert karpenters_node not in names
    assert len(testbed.cloud.calls()) == calls  # EC2 is never called behind Karpenter's back
