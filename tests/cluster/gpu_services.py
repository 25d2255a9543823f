"""GPU services as the GPU Operator runs them: a DaemonSet each, chosen by a label of the node."""

from typing import Any

from gpu_runbooks.activities import names
from gpu_runbooks.activities.gpu_services.labels import PREFIX
from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import PauseGpuServices, ResumeGpuServices

OPERATOR = {
    f"{PREFIX}{service}": "true"
    for service in (
        "driver",
        "container-toolkit",
        "operator-validator",
        "device-plugin",
        "gpu-feature-discovery",
        "dcgm",
        "dcgm-exporter",
        "node-status-exporter",
        "mig-manager",
    )
} | {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done", f"{PREFIX}nvsm": ""}
"""Labels of a node in service, as the operator and its driver manager leave them."""

TOLERATES_ALL = [{"operator": "Exists"}]


def daemon_set(service: str, node: str, **spec: Any) -> Object:
    """A service on this node alone. Its pods end as soon as they are asked to."""
    labels = {"app": service}
    template = {
        "nodeSelector": {f"{PREFIX}{service}": "true", "kubernetes.io/hostname": node},
        "tolerations": TOLERATES_ALL,
        "containers": [{"name": "main", "image": "registry.example/service:1"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": service},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {"gpu-runbooks.dev/stop-seconds": "0"}},
                "spec": template | spec,
            },
        },
    }


def pause(
    identity: NodeIdentity, deadline: Any, incident: str = "", run_id: str = "run-1"
) -> PauseGpuServices:
    incident = incident or f"node/test/{identity.name}"
    return PauseGpuServices(identity=identity, incident=incident, run_id=run_id, deadline=deadline)


def resume(identity: NodeIdentity, incident: str = "", run_id: str = "run-1") -> ResumeGpuServices:
    incident = incident or f"node/test/{identity.name}"
    return ResumeGpuServices(identity=identity, incident=incident, run_id=run_id)


async def operator_labels(admin: Kubernetes, name: str) -> dict[str, str]:
    """The NVIDIA labels of a node."""
    node = await admin.request("GET", f"/api/v1/nodes/{name}")
    return {key: value for key, value in node["metadata"]["labels"].items() if key.startswith("nvidia.com/")}


async def annotation(admin: Kubernetes, name: str) -> str | None:
    node = await admin.request("GET", f"/api/v1/nodes/{name}")
    return (node["metadata"].get("annotations") or {}).get(names.PAUSED_SERVICES_ANNOTATION)
