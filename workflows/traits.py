"""What faults, and the nodes that have them, may have in common: signature and traits. Pure."""

import re
from collections.abc import Mapping

from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.names import NODE_POOL_LABEL

LONGEST_SIGNATURE = 200
LONGEST_TRAIT = 100
"""Characters. Both travel with each signal to the guard."""

LABELS = (
    ("driver", "nvidia.com/cuda.driver-version.full"),
    ("image", "karpenter.k8s.aws/instance-ami-id"),
    ("image", "eks.amazonaws.com/nodegroup-image"),
    ("node pool", NODE_POOL_LABEL),
    ("node pool", "eks.amazonaws.com/nodegroup"),
    ("rack", "topology.k8s.aws/network-node-layer-3"),
    ("network spine", "topology.k8s.aws/network-node-layer-2"),
)
"""Traits by Node label; the first label of a trait that a Node carries counts. Sources: NVIDIA GPU feature
discovery ("Generated Labels"), Karpenter ("Well-Known Labels"), EKS ("Managed node groups"), and EC2's
instance topology, whose layer 3 is the network node nearest to the instance."""

OLD_DRIVER = tuple(f"nvidia.com/cuda.driver.{part}" for part in ("major", "minor", "rev"))
"""The driver's version in three labels, as feature discovery wrote it first."""

ORDINAL = re.compile(r"(-(\d{1,6}|[bcdfghjklmnpqrstvwxz2456789]{5}))+\Z", re.ASCII)
"""What tells the pods of one job apart: an index, or the five characters that controllers draw from these."""


def signature(fault: Fault) -> str:
    """The same for the same kind of fault on any node: source, code, and the reason where there is one."""
    return " ".join(part for part in (fault.source, fault.code, fault.reason) if part)[:LONGEST_SIGNATURE]


def node_traits(identity: NodeIdentity, labels: Mapping[str, str]) -> dict[str, str]:
    """What a node may share with others: driver, image, node pool, rack, zone, instance type."""
    found = {"zone": identity.zone, "instance type": identity.instance_type}
    for trait, label in reversed(LABELS):
        found[trait] = labels.get(label) or found.get(trait, "")
    if not found["driver"]:
        found["driver"] = ".".join(labels[label] for label in OLD_DRIVER if labels.get(label))
    return {trait: value[:LONGEST_TRAIT] for trait, value in sorted(found.items()) if value}


def fault_traits(fault: Fault) -> dict[str, str]:
    """What a fault may share with others of its kind: who detected it, and the job at work there.

    No source names the job. It is guessed from the pod's name, for people to judge.
    """
    namespace, _, pod = fault.pod.partition("/")
    found = {"detector": fault.reporter, "job": f"{namespace}/{ORDINAL.sub('', pod)}" if pod else ""}
    return {trait: value[:LONGEST_TRAIT] for trait, value in found.items() if value}
