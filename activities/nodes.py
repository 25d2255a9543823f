"""What a Node object says of its machine."""

import re

from gpu_runbooks.activities.kubernetes import Object
from gpu_runbooks.activities.model import NodeIdentity

PROVIDER_ID = re.compile(r"aws:///(?P<zone>[a-z0-9-]+)/(?P<instance>i-[0-9a-f]{8,17})")
"""Shape that the AWS cloud provider writes into `spec.providerID`."""


def identity_of(node: Object) -> NodeIdentity:
    """Identity of the machine behind a Node. Fields that the Node lacks are empty strings.

    An empty or foreign provider id gives an empty instance id: such a node can be blocked and drained, but
    nothing in EC2 may be touched on its account.
    """
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels = metadata.get("labels") or {}
    provider_id = spec.get("providerID") or ""
    machine = PROVIDER_ID.fullmatch(provider_id)
    return NodeIdentity(
        name=metadata["name"],
        uid=metadata["uid"],
        provider_id=provider_id,
        instance_id=machine["instance"] if machine else "",
        zone=machine["zone"] if machine else "",
        instance_type=labels.get("node.kubernetes.io/instance-type", ""),
        boot_id=(status.get("nodeInfo") or {}).get("bootID") or "",
    )
