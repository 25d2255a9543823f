"""Every name of ours that other systems see: labels, annotations, taints, conditions, queues."""

import hashlib
from collections.abc import Mapping

PREFIX = "gpu-runbooks.dev"

BLOCK_TAINT = f"{PREFIX}/remediation"
"""Taint key of the block; effect NoSchedule, value is the rule of the fault."""

BLOCK_ANNOTATION = f"{PREFIX}/block"
"""Marker of the block on a Node: JSON of `model.node.BlockMarker`, with what was there before."""

PAUSED_SERVICES_ANNOTATION = f"{PREFIX}/paused-gpu-services"
"""On a Node whose GPU services we stopped: JSON of `gpu_service_labels.PauseMarker`."""

OPT_OUT_LABEL = f"{PREFIX}/opt-out"
"""On a Node, by its owners: `true` has every incident leave it alone."""

REPLACES_ANNOTATION = f"{PREFIX}/replaces"
"""On the Node of a replacement: the incident that claimed it, set by compare-and-swap."""

REPLACED_ANNOTATION = f"{PREFIX}/replaced"
"""On the Node of a replacement that was let go: the incident that had claimed it. Nobody claims it again."""

INCIDENT_LABEL = f"{PREFIX}/incident"
"""On pods and NodeTasks that we create: digest of the incident's workflow id (a label value holds 63)."""

WORKLOAD_LABEL = f"{PREFIX}/workload"
"""On a pod, by its owners: what it is to them, a value of `model.drain.Workload`."""

CHECKPOINT_REQUESTED_ANNOTATION = f"{PREFIX}/checkpoint-requested"
"""On a pod, by a drain: please save the work. The value is a token that stands for this one request."""

CHECKPOINTED_ANNOTATION = f"{PREFIX}/checkpointed"
"""On a pod, by the pod: the work is saved. The value is the token of the request that it answers."""

HEALTHY_CONDITION = f"{PREFIX}/GPUHealthy"
"""The Node condition that the node agent owns."""

NODE_POOL_LABEL = "karpenter.sh/nodepool"
"""On Karpenter's Nodes and NodeClaims: the NodePool that launched them."""

GPU_RESOURCE = "nvidia.com/gpu"
EFA_RESOURCE = "vpc.amazonaws.com/efa"

NODE_TASK_GROUP = PREFIX
NODE_TASK_VERSION = "v1alpha1"
NODE_TASK_PLURAL = "nodetasks"

REMEDIATION_QUEUE = "remediation"
TEMPORAL_QUEUE = "temporal"
CLUSTER_QUEUE = "cluster"
CLOUD_QUEUE = "cloud"

RUNBOOKS = (
    "NodeRemediation",
    "DrainNode",
    "ResetGpu",
    "RebootNode",
    "ReplaceNode",
    "ValidateNode",
    "ReturnNode",
)
"""Workflow types of an incident."""


def is_opted_out(labels: Mapping[str, str]) -> bool:
    """Whether the owners of a node with these labels want nothing done to it."""
    return labels.get(OPT_OUT_LABEL, "").lower() == "true"


def incident_id(cluster: str, node: str) -> str:
    """Workflow id of the incident of a node: one incident is open per node at any time."""
    return f"node/{cluster}/{node}"


def job_id(cluster: str, namespace: str, name: str) -> str:
    """Workflow id of the record of a job's application faults."""
    return f"job/{cluster}/{namespace}/{name}"


def budget_id(cluster: str, pool: str) -> str:
    """Workflow id of the disruption budget of a pool."""
    return f"budget/{cluster}/{pool}"


def fleet_id(cluster: str) -> str:
    """Workflow id of the guard of a cluster."""
    return f"fleet/{cluster}"


def sweep_id(cluster: str) -> str:
    """Id of the Schedule of a cluster's sweep. Temporal adds the time to the workflow ids of its runs."""
    return f"sweep/{cluster}"


def digest(*parts: str) -> str:
    """Twenty hex digits that stand for these parts in names and label values, which are short."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
