"""What a Node object says of its machine, and of our block on it."""

import re
from collections.abc import Collection
from typing import Literal

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.karpenter.objects import belongs_to_karpenter
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.model.node import BlockMarker, NodeIdentity, NodeObservation
from gpu_runbooks.activities.nodes.giving_back import given_back_by

PROVIDER_ID = re.compile(r"aws:///(?P<zone>[a-z0-9-]+)/(?P<instance>i-[0-9a-f]{8,17})")
"""Shape that the AWS cloud provider writes into `spec.providerID`."""

NODES = "/api/v1/nodes"

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
"""Label of a Node."""

LONGEST_PROVIDER_ID = 512
LONGEST_BOOT_ID = 64
"""As the CRD of NodeTasks has it."""
LONGEST_MARKER = 16 * 1024
LONGEST_STATUS = 16
"""Characters that a marker of ours may have: ten reasons of two hundred stay far below. All three are a
kubelet's to write, and go into the history with every look at the node."""


def identity_of(node: Object) -> NodeIdentity:
    """Identity of the machine behind a Node. Fields that the Node lacks are empty strings.

    An empty or foreign provider id gives an empty instance id: such a node can be blocked and drained, but
    nothing in EC2 may be touched on its account. What is longer than it can honestly be counts as missing.
    """
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels = metadata.get("labels") or {}
    provider_id = _at_most(LONGEST_PROVIDER_ID, spec.get("providerID"))
    machine = PROVIDER_ID.fullmatch(provider_id)
    return NodeIdentity(
        name=metadata["name"],
        uid=metadata["uid"],
        provider_id=provider_id,
        instance_id=machine["instance"] if machine else "",
        zone=machine["zone"] if machine else "",
        instance_type=labels.get(INSTANCE_TYPE, ""),
        boot_id=_at_most(LONGEST_BOOT_ID, (status.get("nodeInfo") or {}).get("bootID")),
    )


def _at_most(longest: int, text: str | None) -> str:
    return text if text and len(text) <= longest else ""


def require_same_machine(node: Object, pinned: NodeIdentity) -> None:
    """Refuse (NODE_CHANGED) a Node that is not the pinned machine. The boot id may differ."""
    found = identity_of(node)
    if (found.uid, found.instance_id) == (pinned.uid, pinned.instance_id):
        return
    raise errors.refusal(
        errors.NODE_CHANGED,
        f"node {pinned.name} is another machine now: UID {found.uid}, "
        f"instance {found.instance_id or 'unknown'}; the incident is about UID {pinned.uid}, "
        f"instance {pinned.instance_id or 'unknown'}. "
        "A fault of the new machine needs an incident of its own",
    )


def annotations_of(node: Object) -> dict[str, str]:
    return node["metadata"].get("annotations") or {}


def marker_of(node: Object) -> BlockMarker | None:
    """The block marker on a Node, whoever's it is; None where there is none.

    Raises `ValueError` for a marker that cannot be read: somebody's block, nobody knows whose.
    """
    text = annotations_of(node).get(names.BLOCK_ANNOTATION)
    if text and len(text) > LONGEST_MARKER:
        raise ValueError(f"the marker has {len(text)} characters")
    return BlockMarker.model_validate_json(text) if text else None


def is_held_from(marker: BlockMarker, run_id: str) -> bool:
    """A person holds the node by another run: without their word this run may not have it."""
    return marker.held and marker.run_id != run_id


def taints_of(node: Object) -> list[Object]:
    return objects_in((node.get("spec") or {}).get("taints"))


def is_our_taint(taint: Object) -> bool:
    return bool(taint.get("key") == names.BLOCK_TAINT and taint.get("effect") == "NoSchedule")


def is_unschedulable(node: Object) -> bool:
    return (node.get("spec") or {}).get("unschedulable") is True


def labels_of(node: Object) -> dict[str, str]:
    return node["metadata"].get("labels") or {}


def conditions_of(node: Object) -> list[Object]:
    return objects_in((node.get("status") or {}).get("conditions"))


def ready_condition(node: Object) -> Object:
    """The condition `Ready`; empty where the Node has none."""
    return next((condition for condition in conditions_of(node) if condition.get("type") == "Ready"), {})


def readiness(node: Object) -> Literal["True", "False", "Unknown"]:
    """Status of `Ready`. A missing condition and an unheard-of value are Unknown."""
    match ready_condition(node).get("status"):
        case "True":
            return "True"
        case "False":
            return "False"
        case _:
            return "Unknown"


def allocatable(node: Object, resource: str) -> int | None:
    """Allocatable count of a device; None where the key is missing or not a plain number."""
    value = ((node.get("status") or {}).get("allocatable") or {}).get(resource)
    return int(value) if isinstance(value, str) and value.isdecimal() else None


def observe(
    node: Object | None, incident: str, run_id: str = "", conditions: Collection[str] = ()
) -> NodeObservation:
    """What the Node shows to this incident; `identity=None` for a Node that does not exist.

    An incident id is a node's name, so an earlier run may have left a marker that names this incident. With a
    run id the node counts as blocked only by the marker of that run; without one, by that of any run.
    """
    if node is None:
        return NodeObservation(identity=None)
    try:
        marker = marker_of(node)
    except ValueError:
        marker = None
    return NodeObservation(
        identity=identity_of(node),
        ready=readiness(node),
        blocked=marker is not None
        and marker.incident == incident
        and run_id in {"", marker.run_id}
        and is_unschedulable(node)
        and any(is_our_taint(taint) for taint in taints_of(node)),
        marker=marker,
        gpus=allocatable(node, names.GPU_RESOURCE),
        efa_interfaces=allocatable(node, names.EFA_RESOURCE),
        karpenter=belongs_to_karpenter(node),
        opted_out=names.is_opted_out(labels_of(node)),
        given_back_by=given_back_by(node) if marker is not None and not is_unschedulable(node) else "",
        conditions={
            kind: str(condition.get("status"))[:LONGEST_STATUS]
            for condition in conditions_of(node)
            if (kind := condition.get("type")) in conditions
        },
    )
