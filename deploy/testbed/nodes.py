"""Node objects as a p5.48xlarge and a small system machine would register them."""

import uuid
from typing import Final

from gpu_runbooks.activities.kubernetes.client import Object

POOL_LABEL = "gpu-runbooks.dev/pool"
POOL = "p5"
GPU_INSTANCE_TYPE: Final = "p5.48xlarge"
SYSTEM_INSTANCE_TYPE: Final = "m7i.large"
ZONE = "us-west-2a"
REGION = "us-west-2"


def gpu_node(name: str, instance_id: str, *, pool: str = POOL, zone: str = ZONE) -> Object:
    """Node of a p5.48xlarge: 192 processors, 2 TiB, 8 GPUs, 32 EFA interfaces (EC2's instance type page)."""
    capacity = {
        "cpu": "192",
        "memory": "2Ti",
        "pods": "110",
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "32",
    }
    node = _node(name, instance_id, GPU_INSTANCE_TYPE, zone, capacity)
    node["metadata"]["labels"][POOL_LABEL] = pool
    return node


def system_node(name: str, instance_id: str, *, zone: str = ZONE) -> Object:
    """Node without GPUs and outside of all pools: the product's own pods run there."""
    return _node(name, instance_id, SYSTEM_INSTANCE_TYPE, zone, {"cpu": "2", "memory": "8Gi", "pods": "29"})


def _node(name: str, instance_id: str, instance_type: str, zone: str, capacity: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": instance_type,
                "topology.kubernetes.io/region": zone[:-1],
                "topology.kubernetes.io/zone": zone,
            },
        },
        "spec": {"providerID": f"aws:///{zone}/{instance_id}"},
        "status": {
            "capacity": capacity,
            "allocatable": dict(capacity),
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": str(uuid.uuid4()),
                "containerRuntimeVersion": "containerd://2.1.4",
                "kernelVersion": "6.12.40",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.36.3",
                "machineID": uuid.uuid4().hex,
                "operatingSystem": "linux",
                "osImage": "Amazon Linux 2023",
                "systemUUID": str(uuid.uuid4()),
            },
        },
    }


def reboot_annotations(seconds: int, boot_id: str) -> dict[str, str]:
    """Annotations that ask kwok to reboot a Node into this boot; see stages/nodes.yaml."""
    return {"gpu-runbooks.dev/reboot": str(seconds), "gpu-runbooks.dev/reboot-to": boot_id}
