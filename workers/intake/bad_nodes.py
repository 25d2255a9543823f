"""What is to be handed on about one node, and what became of it. Pure."""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpu_runbooks.activities.model.fault import ConditionCleared, Fault
from gpu_runbooks.workers.intake.condition_faults import Look

NOW = float("-inf")
"""Loop time of what is to be handed on at once."""

WITH_INCIDENT = frozenset({"started", "joined", "duplicate"})
"""Answers after which an open incident has the fault."""


@dataclass(frozen=True)
class Answered:
    """What became of a fault."""

    type: str
    again: float
    """Loop time when it is handed on again."""
    refusal: str = ""
    """Why policy refused it."""
    taken: bool = True
    """An open incident has it: another label of the node changes nothing about that."""


@dataclass
class Later:
    """A fault that another one may be by now, since its transition time was rewritten."""

    fault: Fault
    follows: bool | None = None
    """Whether it is handed on in place of the other; None where nobody knows yet."""


@dataclass
class Bad:
    """What is to be handed on about one node."""

    name: str
    uid: str
    created: datetime | None
    covered: str = ""
    """Stands for all that policy makes of the Node itself, such as its pool."""
    faults: dict[str, Fault] = field(default_factory=dict)
    """All that is bad now, by fingerprint."""
    answered: dict[str, Answered] = field(default_factory=dict)
    """By fingerprint."""
    later: dict[str, Later] = field(default_factory=dict)
    """By fingerprint of the earlier fault."""
    booting: frozenset[str] = frozenset()
    """Fingerprints of what only says that the node has not joined the cluster yet."""
    held: dict[str, float] = field(default_factory=dict)
    """By fingerprint: loop time before which it is not handed on."""
    delivering: str = ""
    """Type of the fault that is being handed on."""
    taken: set[str] = field(default_factory=set)
    """Types that an incident may know."""
    cleared: dict[str, ConditionCleared] = field(default_factory=dict)
    """Types whose incident does not know yet that they were good again."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    work: asyncio.Task[None] | None = None
    gone: bool = False
    """Nobody needs it any more. Temporal's client takes a cancellation for a failed call and goes on."""

    def see(self, look: Look, covered: str) -> None:
        """Take in what the node shows now."""
        for cleared in look.cleared:
            if cleared.type in self.taken | self.cleared.keys() | {self.delivering}:
                self.cleared[cleared.type] = cleared
            self.taken.discard(cleared.type)
            self._forget(cleared.type)
        for fingerprint, fault in look.anew.items():
            if fingerprint not in self.later:
                self.later[fingerprint] = Later(fault)
                self._ask_again(fingerprint)  # it depends on whether its incident is over
        for fingerprint in [key for key, each in self.later.items() if each.follows is None]:
            if fingerprint not in look.anew:
                del self.later[fingerprint]
        self.faults = {fault.fingerprint: fault for fault in map(self._as_handed_on, look.faults)}
        self.booting = look.booting
        if covered != self.covered:
            self.covered = covered
            for fingerprint in [key for key, each in self.answered.items() if not each.taken]:
                self._ask_again(fingerprint)
        self.news.set()

    def _ask_again(self, fingerprint: str) -> None:
        if answered := self.answered.get(fingerprint):
            self.answered[fingerprint] = replace(answered, again=NOW)

    def _forget(self, kind: str) -> None:
        """Forget the answers about a type that is good again."""
        self.answered = {key: each for key, each in self.answered.items() if each.type != kind}
        self.later = {key: each for key, each in self.later.items() if each.fault.code != kind}

    def _as_handed_on(self, fault: Fault) -> Fault:
        later = self.later.get(fault.fingerprint)
        if later is None or not later.follows:
            return fault
        update = {"first_seen": later.fault.first_seen, "fingerprint": later.fault.fingerprint}
        return fault.model_copy(update=update)

    def take_answer(self, fault: Fault, status: str, reason: str, again: float) -> None:
        """Take in what became of a fault; `again` is the loop time when it is handed on again."""
        stands = fault.fingerprint in self.faults
        if status in WITH_INCIDENT and (stands or fault.code not in self.cleared):
            self.taken.add(fault.code)
        if not stands:
            return
        refusal = reason if status == "refused" else ""
        self.answered[fault.fingerprint] = Answered(fault.code, again, refusal, status in WITH_INCIDENT)
        later = self.later.get(fault.fingerprint)
        if later is None or later.follows is not None or refusal:
            return
        # While an incident has the fault, another time of it is no news.
        later.follows = status == "ignored"
        if later.follows:
            follower = self._as_handed_on(self.faults.pop(fault.fingerprint))
            self.faults[follower.fingerprint] = follower

    def refusal_of(self, fault: Fault) -> str:
        """Why policy refused a fault when it was handed on last; empty where it did not."""
        answered = self.answered.get(fault.fingerprint)
        return answered.refusal if answered else ""

    def due(self, now: float) -> Fault | None:
        """A fault that is to be handed on now: what was never answered first."""
        waiting = [(self._due_at(key), fault.first_seen, key) for key, fault in self.faults.items()]
        moment, _, fingerprint = min(waiting, default=(float("inf"), None, ""))
        return self.faults[fingerprint] if moment <= now else None

    def seconds_until_due(self, now: float) -> float | None:
        """Seconds until the next fault is due; None where only news can change anything."""
        nearest = min(map(self._due_at, self.faults), default=float("inf"))
        return max(0.0, nearest - now) if nearest < float("inf") else None

    def _due_at(self, fingerprint: str) -> float:
        answered = self.answered.get(fingerprint)
        return answered.again if answered else self.held.get(fingerprint, NOW)
