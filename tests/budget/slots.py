"""Requests, pools and rounds for the tests of budgets."""

from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_runbooks.activities.model.fleet import StormRule
from gpu_runbooks.activities.model.slot import PoolBudget, PoolRules, PoolSeen, SlotRequest, UnavailableNode
from gpu_runbooks.workflows.slots import Slots

T0 = datetime(2026, 1, 1, tzinfo=UTC)

NEVER = StormRule(unhealthy_percent=100)
"""No share of a pool is too much."""


def ask(node: str, run: str = "r1", *, severity: int = 2, age: int = 0, **budget: Any) -> SlotRequest:
    """A request of an incident that is so many minutes old at T0."""
    rule = budget.pop("storm", NEVER)
    rules = PoolRules(
        budget=PoolBudget(**(budget or {"max_unavailable": 2})), selector={"pool": "p5"}, storm=rule
    )
    return SlotRequest(
        incident=f"node/test/{node}",
        run_id=run,
        node=node,
        severity=severity,
        since=T0 - timedelta(minutes=age),
        rules=rules,
    )


def bad(name: str, *, ready: bool = True, cordoned: bool = False, ours: bool = False, **more: Any):
    return UnavailableNode(name=name, ready=ready, cordoned=cordoned, ours=ours, **more)


def pool(nodes: int = 100, *unavailable: UnavailableNode, **more: Any) -> PoolSeen:
    return PoolSeen(nodes=nodes, unavailable=unavailable, **more)


def waiting(*requests: SlotRequest) -> Slots:
    slots = Slots(cluster="test", pool="p5", complete=True)
    for request in requests:
        slots.request(request)
    return slots


def round_of(slots: Slots, seen: PoolSeen | None = None, now: datetime = T0) -> list[str]:
    """Two looks that see the same; returns the nodes that have a slot by it."""
    seen = pool() if seen is None else seen
    slots.look()
    slots.grant(seen, now)
    slots.look()
    return nodes(slots.confirm(seen, now))


def nodes(requests) -> list[str]:
    return [request.node for request in requests]
