"""A real API server, used with the rights of the cluster worker's own role; nodes and pods for each test."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_runbooks.activities.kubernetes import client
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.model.drain import DrainPods, DrainPolicy
from gpu_runbooks.activities.model.node import BlockNode, NodeIdentity
from gpu_runbooks.activities.nodes.block import block
from gpu_runbooks.activities.nodes.node import identity_of
from testbed.api_proxy import ApiProxy
from testbed.control_plane import ControlPlane
from testbed.nodes import gpu_node

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"

KEEP_OTHERS_OFF = {"key": "example.com/tests-only", "effect": "NoSchedule"}
"""Foreign taint on every node of these tests: the scheduler puts nobody else's pod there."""

NodeFactory = Callable[..., Awaitable[Object]]
PodFactory = Callable[..., Awaitable[Object]]


def soon(seconds: float = 30) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def block_request(identity: NodeIdentity, incident: str = "", **changes: Any) -> BlockNode:
    fields = {
        "identity": identity,
        "incident": incident or f"node/test/{identity.name}",
        "run_id": "run-1",
        "rule": "xid-79",
        "reason": "the GPU fell off the bus",
        "since": datetime(2026, 3, 1, 8, tzinfo=UTC),
    }
    return BlockNode(**(fields | changes))


def drain_request(identity: NodeIdentity, seconds: float = 30, **changes: Any) -> DrainPods:
    fields = {
        "identity": identity,
        "incident": f"node/test/{identity.name}",
        "run_id": "run-1",
        "started": datetime.now(UTC),
        "deadline": soon(seconds),
        "policy": DrainPolicy(),
    }
    return DrainPods(**(fields | changes))


@pytest.fixture(scope="session")
async def installed(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with the product's manifests."""
    await control_plane.apply_kustomization(MANIFESTS)
    return control_plane


@pytest.fixture(scope="session")
async def admin(installed: ControlPlane) -> AsyncIterator[Kubernetes]:
    async with installed.client() as kubernetes:
        yield kubernetes


@pytest.fixture(scope="session")
async def kubernetes(installed: ControlPlane) -> AsyncIterator[Kubernetes]:
    """A connection with the rights of the cluster worker."""
    await installed.grant("cluster-worker")
    async with installed.client("cluster-worker") as connection:
        yield connection


@pytest.fixture
async def proxy(installed: ControlPlane) -> AsyncIterator[ApiProxy]:
    """A proxy before the API server: it counts calls, and injects faults."""
    async with installed.proxy() as running:
        yield running


@pytest.fixture
async def faulty(
    installed: ControlPlane, kubernetes: Kubernetes, proxy: ApiProxy
) -> AsyncIterator[Kubernetes]:
    """A connection with the rights of the cluster worker, by way of the proxy."""
    async with installed.client("cluster-worker", through=proxy) as connection:
        yield connection


@pytest.fixture
async def make_node(admin: Kubernetes) -> AsyncIterator[NodeFactory]:
    """Makes Ready nodes, each with an instance of its own, and removes them in the end."""
    made = []

    async def make(
        *, pool: str = "", spec: dict[str, Any] | None = None, labels: dict[str, str] | None = None
    ) -> Object:
        name = f"gpu-{uuid.uuid4().hex[:8]}"
        body = gpu_node(name, f"i-{uuid.uuid4().hex[:17]}", pool=pool or f"pool-{name}")
        body["spec"] |= {"taints": [KEEP_OTHERS_OFF]} | (spec or {})
        body["metadata"]["labels"] |= labels or {}
        await admin.request("POST", "/api/v1/nodes", body=body)
        made.append(name)
        return await until(admin, "/api/v1/nodes", name, _is_ready)

    yield make
    for name in made:
        if await admin.find(f"/api/v1/nodes/{name}"):
            await admin.request("DELETE", f"/api/v1/nodes/{name}")


def _is_ready(node: Object | None) -> bool:
    """Ready, and free of the taint that the node controller puts on a node that was not."""
    if node is None:
        return False
    conditions = node["status"].get("conditions") or ()
    taints = {taint["key"] for taint in node["spec"].get("taints") or ()}
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "node.kubernetes.io/not-ready" not in taints


@pytest.fixture
async def node(make_node: NodeFactory) -> Object:
    return await make_node()


@pytest.fixture
async def blocked(kubernetes: Kubernetes, node: Object) -> NodeIdentity:
    """A node that is blocked by its incident."""
    identity = identity_of(node)
    await block(kubernetes, block_request(identity))
    return identity


@pytest.fixture
async def namespace(admin: Kubernetes) -> AsyncIterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await admin.request("POST", "/api/v1/namespaces", body=body)
    await until(
        admin, f"/api/v1/namespaces/{name}/serviceaccounts", "default", lambda account: account is not None
    )
    yield name
    for pod in await admin.items(f"/api/v1/namespaces/{name}/pods"):
        path = f"/api/v1/namespaces/{name}/pods/{pod['metadata']['name']}"
        if pod["metadata"].get("finalizers"):
            await admin.request(
                "PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE_PATCH
            )
    await admin.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
async def make_pod(admin: Kubernetes, namespace: str) -> PodFactory:
    """Makes running pods on a node. They end as soon as they are asked to, unless told otherwise."""

    async def make(name: str, node: str, *, spec: dict[str, Any] | None = None, **metadata: Any) -> Object:
        annotations = {"gpu-runbooks.dev/stop-seconds": "0"} | metadata.pop("annotations", {})
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations} | metadata,
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "main", "image": "registry.example/app:1"}],
            }
            | (spec or {}),
        }
        path = f"/api/v1/namespaces/{namespace}/pods"
        await admin.request("POST", path, body=body)
        return await until(admin, path, name, lambda pod: bool(pod) and pod["status"]["phase"] == "Running")

    return make


async def until(
    kubernetes: Kubernetes, collection: str, name: str, holds: Callable[[Object | None], bool]
) -> Object:
    """Wait until an object is as wanted, and return it; `holds` gets None while there is none."""
    following = kubernetes.follow(collection, field_selector=f"metadata.name={name}")
    async with asyncio.timeout(60), aclosing(following) as states:
        async for objects in states:
            found = next(iter(objects.values()), None)
            if holds(found):
                return found or {}
    raise AssertionError


async def change_taints(admin: Kubernetes, name: str, change: Callable[[list[Object]], list[Object]]) -> None:
    """As a well-behaved controller does it: read, modify, write under the version, again on conflict."""
    while True:
        node = await admin.request("GET", f"/api/v1/nodes/{name}")
        body = {
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "spec": {"taints": change(node["spec"].get("taints") or [])},
        }
        try:
            await admin.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)
            return
        except KubernetesError as error:
            if error.status != 409:
                raise


async def pod_names(admin: Kubernetes, namespace: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in await admin.items(f"/api/v1/namespaces/{namespace}/pods")}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short intervals of the client; the order of calls stays."""
    monkeypatch.setattr(client, "LIST_INTERVAL", 0.01)
    monkeypatch.setattr(client, "WATCH_TIMEOUT", 0.2)
    monkeypatch.setattr(client, "CALL_TIMEOUT", 5.0)
