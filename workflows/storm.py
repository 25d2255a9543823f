"""The record of one storm: what it is, how long it brakes, and its words for people. Pure."""

from datetime import datetime, timedelta
from typing import Literal

from pydantic import BaseModel

from gpu_runbooks.activities.model.fleet import StormRule
from gpu_runbooks.activities.names import digest
from gpu_runbooks.workflows import common_cause

NAMED = 20
"""Nodes and pools of a storm that are kept by name."""

MOST_COUNTED = 500
"""Nodes that are told apart. Beyond it each telling counts for one more."""

PATIENCE = timedelta(hours=1)
"""How long budgets may be silent while they are paced. They give a sign of life every few minutes."""

LONGEST_PATIENCE = timedelta(hours=24)
"""How long budgets may be paced, beside the time that the pace itself takes."""


class Sighting(BaseModel):
    """One node with one signature, or several that nobody named."""

    node: str = ""
    pool: str = ""
    signature: str
    traits: dict[str, str] = {}
    hidden: int = 0
    """Alerts that were cut off a delivery: as many nodes, and nobody knows which."""
    at: datetime
    until: datetime
    """End of the window that it counts in."""


class Storm(BaseModel):
    """Many nodes with one signature, or too much of one pool unhealthy: nothing is disrupted for now."""

    id: str
    signature: str
    pool: str = ""
    """The pool that it brakes alone; empty where it brakes all."""
    rule: StormRule
    began: datetime
    first: datetime
    """When the first of its faults was told."""
    latest: datetime
    """When the last one was: quiet counts from here."""
    nodes: int = 0
    names: list[str] = []
    """The first of them."""
    pools: list[str] = []
    hidden: int = 0
    of: int = 0
    """Nodes of the pool, where it is about one."""
    known: list[str] = []
    """Digests of its nodes, to tell them apart."""
    traits: common_cause.Counts = {}
    cause: str = ""
    explained: int = 0
    """Of how many nodes the cause was sought."""
    mode: Literal["stop", "pace"] = "stop"
    paced: datetime | None = None
    """Since when it only paces."""
    heard: datetime | None = None
    """When one of the budgets that it paces last gave a sign of life."""
    caught_up: list[str] = []
    """Pools in which nobody waits any more."""
    again: int = 0
    """How often the same faults came back while it paced."""
    paged_until: datetime | None = None
    """Its alert stands until then."""
    ended: datetime | None = None
    how: str = ""
    """Why it is over."""

    def brakes(self, pool: str) -> bool:
        """Whether it is about this pool."""
        return self.pool in {"", pool}

    def add(self, seen: Sighting) -> None:
        """Take in what was seen: it is not quiet yet."""
        self.first, self.latest = min(self.first, seen.at), max(self.latest, seen.at)
        if seen.pool and seen.pool not in self.pools and len(self.pools) < NAMED:
            self.pools.append(seen.pool)
        self.hidden += seen.hidden
        if not seen.node or self.knows(seen.node):
            return
        if len(self.known) < MOST_COUNTED:
            self.known.append(_mark(seen.node))
        if len(self.names) < NAMED:
            self.names.append(seen.node)
        self.nodes += 1
        common_cause.add(self.traits, seen.traits)

    def quiet_at(self) -> datetime:
        """When it has been quiet for long enough, if nothing more comes."""
        return self.latest + self.rule.cool_down

    def patience_ends(self) -> datetime:
        """Until when budgets may take to catch up."""
        paced = self.paced or self.latest
        longest = LONGEST_PATIENCE + self.rule.pace * min(self.nodes + self.hidden, MOST_COUNTED)
        return min((self.heard or paced) + PATIENCE, paced + longest)

    def pace(self, now: datetime) -> None:
        """Let nodes be taken up again, one by one."""
        self.mode, self.paced, self.heard, self.caught_up = "pace", now, now, []

    def stop(self) -> None:
        """Stop, for the first time or again."""
        if self.mode == "pace":
            self.mode, self.paced, self.caught_up = "stop", None, []
            self.again += 1

    def widen(self, signature: str) -> None:
        """It is not about one pool, but about a signature."""
        self.signature, self.pool, self.nodes, self.of = signature, "", 0, 0

    def knows(self, node: str) -> bool:
        """Whether this is one of its nodes."""
        return bool(node) and _mark(node) in self.known

    def in_words(self) -> str:
        """What happened, in one line."""
        if self.pool:
            return (
                f"storm: {self.nodes} of {self.of} nodes of pool {self.pool} are unhealthy, more than the "
                f"{self.rule.unhealthy_percent} % of the policy"
            )
        span = max(1, round((self.latest - self.first).total_seconds()))
        hidden = f" and {self.hidden} alerts that were cut off their deliveries" if self.hidden else ""
        return f"storm: {self.nodes} nodes{hidden} with {self.signature} in {span} s"


def _mark(node: str) -> str:
    return digest(node)[:8]
