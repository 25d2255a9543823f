"""Karpenter's names on a Node, and what they say.

Sources: kubernetes-sigs/karpenter, pkg/apis/v1/labels.go (v1), and PR 3311 for `do-not-repair` (v1.15).
"""

from gpu_runbooks.activities.kubernetes import Object

LABELS = frozenset({"karpenter.sh/nodepool", "karpenter.sh/registered"})
"""Each Node that Karpenter registers has the second, and the first unless its NodeClaim stands alone."""

DO_NOT_REPAIR = "karpenter.sh/do-not-repair"
"""Annotation of a Node or NodeClaim, a boolean: `true` keeps Karpenter's node repair off it."""


def belongs_to_karpenter(node: Object) -> bool:
    return not LABELS.isdisjoint(node["metadata"].get("labels") or {})
