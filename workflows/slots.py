"""Who may disrupt a node of a pool: the state of a disruption budget. Pure."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError

from gpu_runbooks.activities.model.slot import PoolRules, SlotRequest

LONGEST_ID = 1000
"""Bytes of a workflow id that Temporal takes."""


def read_request(raw: Any) -> SlotRequest | None:
    """A slot request from a signal; None for what is none.

    Signals cannot be refused and stay in the history: one that raises would stop its workflow for ever.
    """
    try:
        request = SlotRequest.model_validate(raw)
    except ValidationError:
        return None
    parts = request.incident.split("/")
    right = len(parts) == 3 and parts[0] == "node" and all(parts) and len(request.incident) <= LONGEST_ID
    return request if right and request.run_id else None


class Slots(BaseModel):
    """Holders and waiters of one pool, in order. All operations are idempotent."""

    cluster: str
    pool: str
    rules: PoolRules | None = None
    """By the policy of the latest request; unknown for a budget that nobody asked yet."""
    complete: bool = False
    """The holders are known. False for a budget that begins: another one may have given slots before it."""
    holders: list[SlotRequest] = []
    waiters: list[SlotRequest] = []

    def request(self, request: SlotRequest) -> None:
        """Queue a request. One of a holder or a waiter changes nothing, however often it is sent."""
        if not any(_same(request, known) for known in [*self.holders, *self.waiters]):
            self.waiters.append(request.model_copy(update={"rules": None}))
        self.rules = request.rules or self.rules

    def take_over(self, holders: Iterable[SlotRequest]) -> list[SlotRequest]:
        """Begin with the slots that an earlier budget gave away; returns the holders that ask again."""
        self.holders += [holder for holder in holders if not self.holds(holder)]
        again = [waiter for waiter in self.waiters if self.holds(waiter)]
        self.waiters = [waiter for waiter in self.waiters if waiter not in again]
        self.complete = True
        return again

    def give_up(self, request: SlotRequest) -> None:
        """Return a slot, or withdraw a request. Unknown ones are gone already."""
        self.holders = [holder for holder in self.holders if not _same(request, holder)]
        self.waiters = [waiter for waiter in self.waiters if not _same(request, waiter)]

    def grant(self) -> list[SlotRequest]:
        """Move waiters into free slots, most severe first, then oldest; returns those that moved."""
        free = max(0, self.limit() - len(self.holders))
        granted = sorted(self.waiters, key=lambda waiter: -waiter.severity)[:free]
        self.holders += granted
        self.waiters = [waiter for waiter in self.waiters if waiter not in granted]
        return granted

    def limit(self) -> int:
        """Slots of the pool."""
        return self.rules.budget.limit(0) if self.rules else 0

    def holds(self, request: SlotRequest) -> bool:
        """Whether this incident has a slot."""
        return any(_same(request, holder) for holder in self.holders)


def _same(one: SlotRequest, other: SlotRequest) -> bool:
    return (one.incident, one.run_id) == (other.incident, other.run_id)
