"""The agent's surroundings on a real API server: its node, its Pod with the bound token, its tasks."""

import asyncio
import uuid
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, KubernetesError, Object
from testbed.control_plane import NAMESPACE, ControlPlane
from testbed.nodes import gpu_node

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
TASKS = f"/apis/gpu-runbooks.dev/v1alpha1/namespaces/{NAMESPACE}/nodetasks"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
STRATEGIC = "application/strategic-merge-patch+json"


@dataclass(frozen=True)
class AgentNode:
    """A node with an agent."""

    node: Object
    kubeconfig: Path
    """Credentials of the agent's Pod."""

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self.name}"

    @property
    def identity(self) -> str:
        """Name of the token's kubeconfig in the control plane."""
        return f"node-agent-{self.name}"

    @property
    def boot_id(self) -> str:
        return str(self.node["status"]["nodeInfo"]["bootID"])


async def create_node(admin: Kubernetes, name: str) -> Object:
    """A GPU node as its kubelet would register it, with the condition that the tests try to forge."""
    await admin.request("POST", "/api/v1/nodes", body=gpu_node(name, f"i-{uuid.uuid4().hex[:17]}"))
    return await until(admin, "/api/v1/nodes", f"metadata.name={name}", is_ready)


@asynccontextmanager
async def agent_node(plane: ControlPlane, admin: Kubernetes, name: str):
    """A node, the Pod that the DaemonSet put there, and that Pod's token; the node is removed at the end."""
    node = await create_node(admin, name)
    try:
        pod = await until(admin, PODS, f"spec.nodeName={name}", is_agent)
        yield AgentNode(node, await plane.grant("node-agent", pod=pod))
    finally:
        await delete(admin, f"/api/v1/nodes/{name}")


def is_agent(pod: Object) -> bool:
    return (pod["metadata"].get("labels") or {}).get("app.kubernetes.io/component") == "node-agent"


def new_task(owner: AgentNode, kind: str = "ResetGPU", **changes: str) -> Object:
    now = datetime.now(UTC)
    return {
        "apiVersion": "gpu-runbooks.dev/v1alpha1",
        "kind": "NodeTask",
        "metadata": {"generateName": "task-"},
        "spec": {
            "nodeName": owner.name,
            "nodeUID": owner.node["metadata"]["uid"],
            "bootID": owner.boot_id,
            "kind": kind,
            "incident": f"node/test/{owner.name}",
            "startDeadline": (now + timedelta(minutes=5)).isoformat(),
            "deadline": (now + timedelta(minutes=10)).isoformat(),
            **changes,
        },
    }


async def create_task(admin: Kubernetes, owner: AgentNode, kind: str = "ResetGPU", **changes: str) -> Object:
    return await admin.request("POST", TASKS, body=new_task(owner, kind, **changes))


async def write_status(admin: Kubernetes, task: Object, status: Object) -> Object:
    path = f"{TASKS}/{task['metadata']['name']}/status"
    return await admin.request("PATCH", path, body={"status": status}, content_type=MERGE_PATCH)


async def end_of(admin: Kubernetes, task: Object) -> Object:
    """Status of a task that has ended."""
    task = await until(admin, TASKS, f"metadata.name={task['metadata']['name']}", ended)
    return dict(task["status"])


def ended(task: Object) -> bool:
    return phase(task) in {"Succeeded", "Failed"}


def phase(task: Object) -> str | None:
    return (task.get("status") or {}).get("phase")


def condition(node: Object, kind: str) -> Object:
    conditions = node["status"].get("conditions", ())
    return next((found for found in conditions if found["type"] == kind), {})


def is_ready(node: Object) -> bool:
    return condition(node, "Ready").get("status") == "True"


async def until(admin: Kubernetes, collection: str, selector: str, wanted) -> Object:
    """The first object of a field selector for which `wanted` holds, as soon as there is one."""
    async with asyncio.timeout(60), aclosing(admin.follow(collection, field_selector=selector)) as views:
        async for objects in views:
            for found in objects.values():
                if wanted(found):
                    return found
    raise AssertionError("follow ends only when left")


async def delete(admin: Kubernetes, path: str, *, query: dict[str, str] | None = None) -> None:
    """Delete; what is gone already is as wished."""
    try:
        await admin.request("DELETE", path, query=query)
    except KubernetesError as error:
        if error.status != 404:
            raise
