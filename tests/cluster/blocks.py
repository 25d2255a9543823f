"""What the tests of block and unblock ask of a Node, and do to it as somebody else."""

from typing import Any

from cluster.conftest import change_taints

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, Object
from gpu_runbooks.activities.model.node import BlockMarker, NodeIdentity, UnblockNode
from gpu_runbooks.activities.nodes.block_state import CORDON_TAINT

OUR_TAINT = f"{names.BLOCK_TAINT}:NoSchedule"


async def patch(admin: Kubernetes, name: str, body: Object) -> Object:
    """Write without a version, as `kubectl patch` does."""
    return await admin.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)


async def annotate(admin: Kubernetes, name: str, **annotations: str | None) -> None:
    await patch(admin, name, {"metadata": {"annotations": annotations}})


async def read(admin: Kubernetes, name: str) -> Object:
    return await admin.request("GET", f"/api/v1/nodes/{name}")


def taint_keys(node: Object) -> set[str]:
    return {taint["key"] for taint in node["spec"].get("taints") or ()}


def taints(node: Object) -> dict[str, str]:
    """Value by `key:effect`, without the node controller's shadow of a cordon, which comes a moment later."""
    return {
        f"{taint['key']}:{taint['effect']}": taint.get("value", "")
        for taint in node["spec"].get("taints") or ()
        if taint["key"] != CORDON_TAINT
    }


def annotations(node: Object) -> dict[str, str]:
    return node["metadata"].get("annotations") or {}


def marker(node: Object) -> BlockMarker:
    return BlockMarker.model_validate_json(annotations(node)[names.BLOCK_ANNOTATION])


def unblock_request(identity: NodeIdentity, incident: str = "", run_id: str = "run-1") -> UnblockNode:
    return UnblockNode(identity=identity, incident=incident or f"node/test/{identity.name}", run_id=run_id)


async def add_taint(admin: Kubernetes, name: str, key: str, effect: str = "NoSchedule", **more: Any) -> None:
    await change_taints(admin, name, lambda taints: [*taints, {"key": key, "effect": effect, **more}])
