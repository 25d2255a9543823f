"""The real Karpenter beside the control plane that the other tests of this folder's parent use too."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from cluster.conftest import soon, until

from gpu_runbooks.activities.karpenter.objects import NODE_CLAIMS, condition_of
from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import AwaitNodeClaim, DeleteNodeClaim, NodeClaimDeleted
from gpu_runbooks.activities.names import NODE_POOL_LABEL
from gpu_runbooks.activities.nodes.node import NODES
from testbed.control_plane import ControlPlane
from testbed.karpenter import TOLERATIONS, Karpenter

PoolFactory = Callable[..., Awaitable[str]]


def delete_request(identity: NodeIdentity, seconds: float = 0, **changes: Any) -> DeleteNodeClaim:
    fields = {
        "identity": identity,
        "incident": f"node/test/{identity.name}",
        "run_id": "run-1",
        "reason": "the GPU fell off the bus",
        "not_after": soon(30),
        "deadline": soon(seconds),
    }
    return DeleteNodeClaim(**(fields | changes))


def await_request(identity: NodeIdentity, deleted: NodeClaimDeleted, seconds: float = 30) -> AwaitNodeClaim:
    return AwaitNodeClaim(identity=identity, deadline=soon(seconds), **deleted.model_dump())


@pytest.fixture(scope="session")
async def karpenter(installed: ControlPlane) -> AsyncIterator[Karpenter]:
    """Started where a test asks for it first, node repair and static capacity switched on."""
    async with Karpenter.start(installed) as running:
        yield running


@pytest.fixture
async def make_pool(karpenter: Karpenter, admin: Kubernetes, namespace: str) -> AsyncIterator[PoolFactory]:
    """Makes NodePools; in the end their nodes go, and before them the pods that could hold those."""
    made = []

    async def make(**settings: Any) -> str:
        name = f"kp-{uuid.uuid4().hex[:8]}"
        made.append(name)
        await karpenter.make_pool(name, **settings)
        return name

    yield make
    for pod in await admin.items(f"/api/v1/namespaces/{namespace}/pods"):
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
        await admin.request("DELETE", path, body={"gracePeriodSeconds": 0})
    await asyncio.gather(*map(karpenter.remove_pool, made))


async def node_of(admin: Kubernetes, pool: str, *, besides: str = "") -> Object:
    """Wait for an initialized node of the pool, and return it."""

    def is_there(claim: Object | None) -> bool:
        return claim is not None and condition_of(claim, "Initialized").get("status") == "True"

    claim = await first_claim(admin, pool, is_there, besides=besides)
    return await admin.request("GET", f"{NODES}/{claim['status']['nodeName']}")


async def first_claim(
    admin: Kubernetes, pool: str, holds: Callable[[Object], bool], *, besides: str = ""
) -> Object:
    """Wait until a NodeClaim of the pool is as wanted, and return it."""
    following = admin.follow(NODE_CLAIMS, label_selector=f"{NODE_POOL_LABEL}={pool}")
    async with asyncio.timeout(90):
        async for claims in following:
            for claim in claims.values():
                if (claim.get("status") or {}).get("nodeName") != (besides or None) and holds(claim):
                    await following.aclose()
                    return claim
    raise AssertionError


async def make_gpu_pod(
    admin: Kubernetes, namespace: str, name: str, pool: str, *, gpus: int = 8, **metadata: Any
) -> None:
    """Create a pod that only a node of this NodePool can take."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {"gpu-runbooks.dev/stop-seconds": "0"},
        }
        | metadata,
        "spec": {
            "nodeSelector": {NODE_POOL_LABEL: pool},
            "tolerations": TOLERATIONS,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/app:1",
                    "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
                }
            ],
        },
    }
    await admin.request("POST", f"/api/v1/namespaces/{namespace}/pods", body=body)


async def runs(admin: Kubernetes, namespace: str, name: str) -> Object:
    """Wait until a pod runs."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    return await until(admin, path, name, lambda pod: bool(pod) and pod["status"]["phase"] == "Running")


async def show(admin: Kubernetes, node: str, kind: str, status: str = "True", *, since: datetime) -> None:
    """Give a node a condition, as a node monitoring agent would."""
    condition = {
        "type": kind,
        "status": status,
        "reason": "Broken",
        "message": "acted out by a test",
        "lastTransitionTime": since.isoformat(),
        "lastHeartbeatTime": datetime.now(UTC).isoformat(),
    }
    await admin.request(
        "PATCH",
        f"{NODES}/{node}/status",
        body={"status": {"conditions": [condition]}},
        content_type="application/strategic-merge-patch+json",
    )
