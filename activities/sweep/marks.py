"""What a Node, a NodeTask and a test pod carry of ours. Pure."""

from datetime import UTC, datetime

from gpu_runbooks.activities import names
from gpu_runbooks.activities.gpu_services.labels import MANAGED, PAUSED, labels_of, pause_on
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.model.sweep import BadCondition, NodeWork, SweptNode
from gpu_runbooks.activities.nodes.node import annotations_of, is_our_taint, marker_of, taints_of
from gpu_runbooks.activities.nodes.node_tasks import is_ended, is_started

LONGEST_ID = 400
"""Characters of a workflow id or run id: ours are shorter, but anybody may have written what a Node has."""


def marks_of(node: Object, bad: tuple[BadCondition, ...] = ()) -> SweptNode:
    """What a Node carries of ours. A cordon, and a veto against Karpenter, is ours only by the marker."""
    seen = SweptNode(
        name=node["metadata"]["name"],
        uid=node["metadata"]["uid"],
        taint=any(is_our_taint(taint) for taint in taints_of(node)),
        replaces=str(annotations_of(node).get(names.REPLACES_ANNOTATION) or "")[:LONGEST_ID],
        bad=bad,
    )
    return seen.model_copy(update={**_marker(node), **_pause(node)})


def is_marked(seen: SweptNode) -> bool:
    """Whether a Node carries anything of ours, or shows something that somebody should know of."""
    return bool(seen.marker or seen.taint or seen.replaces or seen.pause or seen.bad)


def task_seen(task: Object, now: datetime) -> NodeWork:
    """A NodeTask. One that an agent has taken is left to it until its deadline."""
    metadata, spec = task["metadata"], task.get("spec") or {}
    late = (deadline := _moment(spec.get("deadline"))) is not None and deadline < now
    return NodeWork(
        kind="NodeTask",
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata.get("resourceVersion", ""),
        incident=str(spec.get("incident") or "")[:LONGEST_ID],
        digest=labels_of(task).get(names.INCIDENT_LABEL, ""),
        node=str(spec.get("nodeName") or ""),
        made=datetime.fromisoformat(metadata["creationTimestamp"]),
        runs=is_started(task) and not is_ended(task) and not late,
    )


def pod_seen(pod: Object) -> NodeWork:
    """A test pod: which incident it is of, only the digest in its label says."""
    metadata = pod["metadata"]
    return NodeWork(
        kind="test pod",
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata.get("resourceVersion", ""),
        digest=labels_of(pod).get(names.INCIDENT_LABEL, ""),
        node=_wanted_node(pod),
        made=datetime.fromisoformat(metadata["creationTimestamp"]),
    )


def _marker(node: Object) -> dict[str, str]:
    try:
        marker = marker_of(node)
    except ValueError:
        return {"marker": "unreadable"}
    if marker is None:
        return {}
    return {
        "marker": "held" if marker.held else "ours",
        "incident": marker.incident[:LONGEST_ID],
        "run_id": marker.run_id[:LONGEST_ID],
    }


def _pause(node: Object) -> dict[str, str]:
    try:
        pause = pause_on(node)
    except ValueError:
        return {"pause": "unreadable"}
    if pause is not None:
        return {
            "pause": "ours",
            "pause_incident": pause.incident[:LONGEST_ID],
            "pause_run_id": pause.run_id[:LONGEST_ID],
        }
    bare = any(labels_of(node).get(label) == PAUSED for label in MANAGED)
    return {"pause": "bare"} if bare else {}


def _wanted_node(pod: Object) -> str:
    """The node that the test pod asks for by its affinity; the scheduler may not have placed it yet."""
    affinity = ((pod.get("spec") or {}).get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in objects_in(required.get("nodeSelectorTerms")):
        for field in objects_in(term.get("matchFields")):
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def _moment(written: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(written))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
