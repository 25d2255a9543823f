"""Which nodes of a pool count as unavailable for its budget. Pure."""

from collections.abc import Collection
from datetime import datetime

from pydantic import BaseModel

from gpu_runbooks.activities.model.slot import PoolSeen, SlotRequest


class Missing(BaseModel):
    """A node whose incident gave its slot back: gone without a successor, for all that is known."""

    node: str
    nodes: int
    """Of the pool when its incident got the slot: with as many again, its successor has come."""
    until: datetime
    """Then it counts no longer."""
    looked_for: bool = False
    """The last look asked for it."""

    def may_be_gone(self, seen: PoolSeen) -> bool:
        """Whether it may be missing in the pool. One that nobody looked for yet may be."""
        return seen.nodes < self.nodes and (self.node in seen.absent or not self.looked_for)


def busy_nodes(
    seen: PoolSeen, holders: Collection[SlotRequest], waiters: Collection[SlotRequest]
) -> set[str]:
    """Nodes with a slot, united with those that are unavailable for any other reason.

    A node of a waiter does not count, or those who wait would starve each other. Neither does the successor
    that an incident marked for itself: it is that incident's node by another name.
    """
    known = {(each.incident, each.run_id) for each in (*holders, *waiters)}
    foreign = {node.name for node in seen.unavailable if (node.incident, node.run_id) not in known}
    return (foreign - {each.node for each in waiters}) | {each.node for each in holders}


def count_missing(missing: Collection[Missing], seen: PoolSeen) -> int:
    """How many nodes are to come again: no more than went away, nor than the pool lacks."""
    gone = [each for each in missing if each.may_be_gone(seen)]
    return min(len(gone), max((each.nodes for each in gone), default=0) - seen.nodes) if gone else 0


def unhealthy_nodes(seen: PoolSeen, incidents: Collection[SlotRequest]) -> int:
    """Nodes that are not Ready, united with those of open incidents. A cordon alone is no ill health."""
    known = {(each.incident, each.run_id) for each in incidents}
    named = {
        node.name for node in seen.unavailable if not node.ready and (node.incident, node.run_id) not in known
    }
    named |= {each.node for each in incidents} - set(seen.absent)
    return len(named) + seen.unlisted_not_ready


def in_words(seen: PoolSeen, holders: Collection[SlotRequest], used: int, limit: int) -> str:
    """Why no slot is free, with the nodes that have none of ours and count all the same."""
    held = {each.node for each in holders}
    others = [node.name for node in seen.unavailable if node.name not in held]
    more = f", and {len(others) - 5} more" if len(others) > 5 else ""
    named = f"; unavailable without a slot: {', '.join(others[:5])}{more}" if others else ""
    return f"{used} of at most {limit} nodes are unavailable, {len(held)} of them with a slot{named}"
