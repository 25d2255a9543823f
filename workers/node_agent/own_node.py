"""The agent's own Node, as far as the agent needs to know it.

`activities.nodes` knows more, but brings the Temporal client with it: 13 MiB on every node of a fleet.
"""

from dataclasses import dataclass

from gpu_runbooks.activities.aws.instance_types import expected_hardware
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.model.plan import ExpectedHardware

INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"


@dataclass(frozen=True)
class OwnNode:
    name: str
    uid: str
    expected: ExpectedHardware | None
    """None for an instance type that is not in the table."""


def read_own_node(node: Object) -> OwnNode:
    metadata = node["metadata"]
    instance_type = (metadata.get("labels") or {}).get(INSTANCE_TYPE_LABEL, "")
    return OwnNode(metadata["name"], metadata["uid"], expected_hardware(instance_type))
