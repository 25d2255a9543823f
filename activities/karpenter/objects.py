"""Karpenter's names on a Node, a NodeClaim and a NodePool, and what they say.

A NodeClaim stands for one machine; a NodePool is what Karpenter launches NodeClaims by. Sources:
kubernetes-sigs/karpenter v1.15.0, pkg/apis/v1 (labels.go, taints.go, nodeclaim_status.go, nodepool.go).
"""

from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.names import NODE_POOL_LABEL

NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"


REGISTERED_LABEL = "karpenter.sh/registered"
INITIALIZED_LABEL = "karpenter.sh/initialized"
"""On a Node that has been Ready with all that its NodeClaim wants; only such nodes count for budgets."""

LABELS = frozenset({NODE_POOL_LABEL, REGISTERED_LABEL})

DO_NOT_REPAIR = "karpenter.sh/do-not-repair"
"""Annotation of a Node, a boolean: `true` keeps Karpenter's node repair off it, from v1.15 on."""

DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
"""Annotation of a Node, a boolean: `true` keeps consolidation and drift off it, not expiry and not repair."""

DISRUPTED_TAINT = "karpenter.sh/disrupted"
"""On a Node that Karpenter has chosen to disrupt, before and while its NodeClaim is deleted."""

REBOOTING_TAINT = "karpenter.sh/rebooting"
"""On a Node that Karpenter's own repair reboots, from v1.15 on."""


def belongs_to_karpenter(node: Object) -> bool:
    return not LABELS.isdisjoint(labels_of(node))


def labels_of(thing: Object) -> dict[str, str]:
    return thing["metadata"].get("labels") or {}


def pool_of(claim: Object) -> str:
    """Name of the NodePool of a NodeClaim; empty for one that stands alone."""
    return labels_of(claim).get(NODE_POOL_LABEL, "")


def is_going(thing: Object) -> bool:
    """Somebody has deleted it; it is there until its finalizers are done."""
    return bool(thing["metadata"].get("deletionTimestamp"))


def condition_of(thing: Object, kind: str) -> Object:
    """A condition of a NodeClaim or NodePool; empty where it has none of that type."""
    conditions = objects_in((thing.get("status") or {}).get("conditions"))
    return next((each for each in conditions if each.get("type") == kind), {})


def is_static(pool: Object) -> bool:
    """The NodePool keeps a number of nodes, whether pods need them or not."""
    return (pool.get("spec") or {}).get("replicas") is not None
