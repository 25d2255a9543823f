"""Whether a NodePool could launch a node in place of one that goes: nothing is deleted where it could not.

A NodeClaim whose launch found no capacity is deleted by Karpenter itself and leaves an event behind; where
its cloud gives no clear answer the NodeClaim stays, with the cloud's words in its condition `Launched`
(kubernetes-sigs/karpenter v1.15.0, pkg/controllers/nodeclaim/lifecycle/launch.go).
"""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from gpu_runbooks.activities.karpenter.objects import condition_of, is_going
from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object

EVENTS = "/api/v1/namespaces/default/events"
"""Where events of objects without a namespace are kept."""

RECENT = timedelta(minutes=30)
"""A failure counts for so long. Karpenter tries again within minutes while there are pods to serve."""

NO_CAPACITY = "InsufficientCapacityError"
"""Reason of Karpenter's event."""

WORDS = (
    "InsufficientCapacity",
    "InsufficientInstanceCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientFreeAddressesInSubnet",
    "MaxFleetCountExceeded",
    "MaxSpotInstanceCountExceeded",
    "ReservationCapacityExceeded",
    "UnfulfillableCapacity",
    "VcpuLimitExceeded",
)
"""Error codes of EC2 that Karpenter's AWS provider takes for a lack of capacity."""

LONGEST_BASE = 58
"""Characters of a name that the API server keeps before the five that it makes up."""

LONGEST_CAUSE = 300


async def failed_launch(kubernetes: Kubernetes, pool: str, claims: Iterable[Object], now: datetime) -> str:
    """The latest launch in the NodePool that failed for lack of capacity, in words.

    Empty where there was none lately, or one has succeeded since. `claims` are those of the NodePool.
    """
    claims = list(claims)
    events = await kubernetes.items(
        EVENTS, field_selector=f"reason={NO_CAPACITY},involvedObject.kind=NodeClaim"
    )
    failures = [
        *((moment_of(event), str(event.get("message", ""))) for event in events if _is_of(event, pool)),
        *(_failure(claim) for claim in claims if _failed(claim)),
    ]
    last, cause = max(failures, default=(None, ""))
    if last is None or last < now - RECENT or any(launched > last for launched in _launches(claims)):
        return ""
    return (
        f"the last launch of NodePool {pool} found no capacity ({last:%H:%M:%S} UTC): {cause[:LONGEST_CAUSE]}"
    )


def moment_of(event: Object) -> datetime:
    """When an event was last seen."""
    text = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(text)


def is_named_by(pool: str, claim: str) -> bool:
    """Whether Karpenter made this NodeClaim's name from the NodePool's. The NodeClaim itself is gone."""
    return re.fullmatch(re.escape(f"{pool}-"[:LONGEST_BASE]) + "[a-z0-9]{5}", claim) is not None


def _is_of(event: Object, pool: str) -> bool:
    return is_named_by(pool, str((event.get("involvedObject") or {}).get("name", "")))


def _failed(claim: Object) -> bool:
    launched = condition_of(claim, "Launched")
    told = f"{launched.get('reason', '')} {launched.get('message', '')}"
    return launched.get("status") in {"False", "Unknown"} and any(word in told for word in WORDS)


def _failure(claim: Object) -> tuple[datetime, str]:
    launched = condition_of(claim, "Launched")
    cause = f"NodeClaim {claim['metadata']['name']}: {launched.get('message') or launched.get('reason')}"
    return datetime.fromisoformat(launched["lastTransitionTime"]), cause


def _launches(claims: Iterable[Object]) -> list[datetime]:
    """When the NodeClaims that stand were launched."""
    conditions = (condition_of(claim, "Launched") for claim in claims if not is_going(claim))
    return [
        datetime.fromisoformat(each["lastTransitionTime"])
        for each in conditions
        if each.get("status") == "True"
    ]
