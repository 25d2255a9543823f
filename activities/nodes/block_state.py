"""What our block on a Node should be, whether it stands, and the patches that make and undo it. No I/O.

Ours are exactly: the taint `names.BLOCK_TAINT` with effect NoSchedule (another effect of that key is somebody
else's), the marker annotation, the cordon and the vetoes against Karpenter where the marker says so, and our
claim of a replacement.
"""

from typing import Any

from gpu_runbooks.activities import names
from gpu_runbooks.activities.karpenter.objects import DO_NOT_DISRUPT, DO_NOT_REPAIR, belongs_to_karpenter
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.model.node import BlockMarker, BlockNode
from gpu_runbooks.activities.nodes.node import (
    annotations_of,
    is_our_taint,
    is_unschedulable,
    observe,
    taints_of,
)

VETOES = (DO_NOT_REPAIR, DO_NOT_DISRUPT)
"""Annotations that keep Karpenter off a node of its own."""

MOST_REASONS = 10
LONGEST_REASON = 200
"""Characters. The marker stays readable in `kubectl describe`."""

CORDON_TAINT = "node.kubernetes.io/unschedulable"
"""The node controller's shadow of `spec.unschedulable`: it comes and goes with the cordon."""


def marker_for(node: Object, request: BlockNode, standing: BlockMarker | None) -> BlockMarker:
    """The marker that should be on the node, given the marker of this incident that stands there already.

    A cordon that stood before our first write stays somebody else's, for as long as it stands. Limit: whoever
    runs `kubectl cordon` on a node that we have cordoned changes nothing on it, so nobody can know of it, and
    their cordon goes with ours. The same is true of the vetoes.
    """
    return BlockMarker(
        incident=request.incident,
        run_id=request.run_id,
        reasons=united(standing.reasons if standing else (), request.reason),
        since=standing.since if standing else request.since,
        was_unschedulable=is_unschedulable(node) and (standing is None or standing.was_unschedulable),
        set_do_not_repair=_is_veto_ours(node, DO_NOT_REPAIR, standing),
        set_do_not_disrupt=_is_veto_ours(node, DO_NOT_DISRUPT, standing),
        held=request.hold or (standing is not None and standing.held),
    )


def united(reasons: tuple[str, ...], reason: str) -> tuple[str, ...]:
    """The reasons with one more, oldest first. Beyond the most, the first and the newest stay."""
    cut = [each[:LONGEST_REASON] for each in (*reasons, reason)]
    unique = list(dict.fromkeys(cut))
    return (unique[0], *unique[1:][-(MOST_REASONS - 1) :])


def stands(node: Object, marker: BlockMarker, rule: str) -> bool:
    """The node carries exactly this block, with the value of its taint and what else the marker claims."""
    seen = observe(node, marker.incident)
    return (
        seen.blocked
        and seen.marker == marker
        and any(is_our_taint(taint) and taint.get("value", "") == rule for taint in taints_of(node))
        and all(annotations_of(node).get(veto) == "true" for veto in vetoes_of(marker))
    )


def blocking_patch(node: Object, marker: BlockMarker, rule: str) -> dict[str, Any]:
    """Merge patch that blocks exactly this version of the node and keeps every foreign taint."""
    annotations = {names.BLOCK_ANNOTATION: marker.model_dump_json()}
    annotations |= dict.fromkeys(vetoes_of(marker), "true")
    return {
        "metadata": {"resourceVersion": node["metadata"]["resourceVersion"], "annotations": annotations},
        "spec": {
            "unschedulable": True,
            "taints": [
                *(taint for taint in taints_of(node) if not is_our_taint(taint)),
                {"key": names.BLOCK_TAINT, "value": rule, "effect": "NoSchedule"},
            ],
        },
    }


def unblocking_patch(
    node: Object, marker: BlockMarker | None, incident: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Merge patch that takes away what is ours from this version of the node, and what that is in words."""
    annotations: dict[str, str | None] = {}
    spec: dict[str, Any] = {}
    going = []
    taints = taints_of(node)
    if any(is_our_taint(taint) for taint in taints):
        spec["taints"] = [taint for taint in taints if not is_our_taint(taint)] or None
        going.append(f"taint {names.BLOCK_TAINT}")
    if marker is not None:
        annotations[names.BLOCK_ANNOTATION] = None
        if not marker.was_unschedulable and is_unschedulable(node):
            spec["unschedulable"] = None
            going.append("cordon")
        annotations |= {
            veto: None for veto in vetoes_of(marker) if annotations_of(node).get(veto) in {None, "true"}
        }
    if annotations_of(node).get(names.REPLACES_ANNOTATION) == incident:
        annotations |= {names.REPLACES_ANNOTATION: None, names.REPLACED_ANNOTATION: incident}
    going += [
        f"annotation {key}"
        for key, left in annotations.items()
        if left is None and key in annotations_of(node)
    ]
    version = node["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version, "annotations": annotations}, "spec": spec}, tuple(going)


def kept_on(node: Object) -> tuple[str, ...]:
    """In words, what keeps pods or Karpenter off a node that has nothing of ours any more."""
    taints = [taint for taint in taints_of(node) if taint.get("key") != CORDON_TAINT]
    kept = [f"taint {taint.get('key')}:{taint.get('effect')}" for taint in taints]
    if is_unschedulable(node):
        kept.append("cordon")
    annotations = annotations_of(node)
    kept += [f"annotation {veto}={annotations[veto]}" for veto in VETOES if veto in annotations]
    return tuple(kept)


def vetoes_of(marker: BlockMarker) -> tuple[str, ...]:
    """The annotations against Karpenter that are ours."""
    ours = (marker.set_do_not_repair, marker.set_do_not_disrupt)
    return tuple(veto for veto, is_ours in zip(VETOES, ours, strict=True) if is_ours)


def _is_veto_ours(node: Object, veto: str, standing: BlockMarker | None) -> bool:
    """Whether a veto is ours to set, or ours and as we set it. Any other value is somebody's."""
    value = annotations_of(node).get(veto)
    if value is None:
        return belongs_to_karpenter(node)
    return value == "true" and standing is not None and veto in vetoes_of(standing)
