"""What two policies say of recorded faults, and where they differ. Pure.

A month of faults has few kinds. So what differs is kept under all that can decide it: every field of the
fault but those listed here as only telling when, how often and about which piece it was. A field that a later
version adds therefore counts as deciding until somebody lists it. Of a new kind only the answer is worked
out: all else of a plan is the same for a pool and an instance type, for a ladder, or for the drain's rules.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter

from gpu_runbooks.activities.model.drain import DrainPolicy
from gpu_runbooks.activities.model.fault import Entity, Fault
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import Plan, Treatment
from gpu_runbooks.workers.policy.plan_changes import plan_changes
from gpu_runbooks.workers.policy.recorded_faults import RecordedFault
from gpu_runbooks.workflows.policy.answers import answer_to
from gpu_runbooks.workflows.policy.built_in import Answer
from gpu_runbooks.workflows.policy.planning import PlanRefused, plan, pool_of, treatment_by
from gpu_runbooks.workflows.policy.policy import Policy

NEVER_DECIDES = frozenset(
    {"summary", "first_seen", "last_seen", "count", "fingerprint", "reporter", "boot_id", "pod"}
)
"""Fields of a fault that no policy can match and no built-in answer reads."""

NEVER_DECIDES_OF_ENTITY = frozenset({"uuid", "pci_address"})

DECIDES = attrgetter(
    *(name for name in Fault.model_fields if name not in NEVER_DECIDES | {"entity"}),
    *(f"entity.{name}" for name in Entity.model_fields if name not in NEVER_DECIDES_OF_ENTITY),
)

KEPT_ANSWERS = 10_000
"""Kinds of faults whose answers are kept, and as many grounds: a file of nonsense fills no memory."""

ANY_NODE = "with these labels"
"""In the place of a node's name: an answer is the same for all nodes of one kind."""


@dataclass(frozen=True)
class Decision:
    """What a policy says of one kind of fault."""

    plan: Plan | None
    refused: str = ""

    def in_words(self) -> str:
        """Rule and ladder, or why it is refused."""
        if self.plan is None:
            return f"refused: {self.refused}"
        treatment = self.plan.treatment
        observed = "" if self.plan.enforce else ", observed only"
        return f"{treatment.rule}: {treatment.ladder}{observed}"


def decide(policy: Policy, event: RecordedFault, node: str = ANY_NODE) -> Decision:
    """What a policy says of a recorded fault, worked out anew."""
    identity = NodeIdentity(
        name=node,
        uid="",
        provider_id="",
        instance_id="",
        zone="",
        instance_type=event.instance_type,
        boot_id="",
    )
    try:
        return Decision(plan(policy, event.fault, identity, event.labels, namespace=""))
    except PlanRefused as refused:
        return Decision(None, str(refused))


@dataclass(frozen=True)
class Grounds:
    """What a policy decides a fault by. Two faults with the same grounds have one plan."""

    pool: str
    instance_type: str
    answer: Answer


class Decisions:
    """What one policy says of recorded faults. Parts of plans are kept, since few of them differ."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._plans: dict[tuple[str, str], Plan] = {}
        """By pool and instance type, each with the treatment of the fault that was the first."""
        self._treatments: dict[tuple[str, bool, timedelta], Treatment] = {}
        """By all of an answer but the name of its rule."""
        self._drains: dict[tuple[bool, ...], DrainPolicy] = {}
        """By the drain's rules that count."""

    def grounds(self, event: RecordedFault) -> Grounds | str:
        """What decides, or why the node is in no pool."""
        try:
            pool = pool_of(self._policy, ANY_NODE, event.labels)
        except PlanRefused as refused:
            return str(refused)
        return Grounds(pool.name, event.instance_type, answer_to(self._policy, event.fault))

    def by(self, grounds: Grounds | str, event: RecordedFault) -> Decision:
        """The same as `decide` says of the event, whose grounds they are."""
        if isinstance(grounds, str):
            return Decision(None, grounds)
        node = (grounds.pool, grounds.instance_type)
        if node not in self._plans:
            decided = decide(self._policy, event)
            if decided.plan is not None:
                self._plans[node] = decided.plan
            return decided
        treatment = self._treatment(grounds.answer)
        drain = self._drain(treatment.rule)
        return Decision(self._plans[node].model_copy(update={"treatment": treatment, "drain": drain}))

    def _treatment(self, answer: Answer) -> Treatment:
        nameless = (answer.ladder, answer.application, answer.toleration)
        if nameless not in self._treatments:
            self._treatments[nameless] = treatment_by(self._policy, answer)
        return self._treatments[nameless].model_copy(update={"rule": answer.rule})

    def _drain(self, rule: str) -> DrainPolicy:
        counting = tuple(each.counts_for(rule) for each in self._policy.drain.rules)
        if counting not in self._drains:
            self._drains[counting] = self._policy.drain.wire(rule)
        return self._drains[counting]


def kind_of(event: RecordedFault) -> Hashable:
    """All that can decide what a policy says: two faults of one kind have one answer."""
    return (DECIDES(event.fault), tuple(sorted(event.labels.items())), event.instance_type)


class Comparison:
    """Two policies, asked about one fault after the other."""

    def __init__(self, old: Policy, new: Policy) -> None:
        self._old, self._new = Decisions(old), Decisions(new)
        self._kept: dict[Hashable, Difference | None] = {}
        self._by_grounds: dict[Hashable, Difference | None] = {}

    def of(self, event: RecordedFault) -> "Difference | None":
        """What the new policy does differently; None for the same."""
        kind = kind_of(event)
        if kind in self._kept:
            return self._kept[kind]
        grounds = (self._old.grounds(event), self._new.grounds(event))
        if grounds in self._by_grounds:
            found = self._by_grounds[grounds]
        else:
            found = difference(self._old.by(grounds[0], event), self._new.by(grounds[1], event))
            _keep(self._by_grounds, grounds, found)
        _keep(self._kept, kind, found)
        return found


def _keep(kept: "dict[Hashable, Difference | None]", key: Hashable, found: "Difference | None") -> None:
    if len(kept) < KEPT_ANSWERS:
        kept[key] = found


@dataclass(frozen=True)
class Difference:
    """How two policies differ about one kind of fault."""

    before: str
    after: str
    changes: tuple[str, ...]
    """What is done differently, such as `toleration: 0s -> 10m`."""
    around: tuple[str, ...]
    """What differs for the whole pool, such as its budget."""


def difference(before: Decision, after: Decision) -> Difference | None:
    """What differs between two answers. Refused for whatever reason is the same: nothing is done."""
    if before.plan is None and after.plan is None:
        return None
    if before.plan is None or after.plan is None:
        return Difference(before.in_words(), after.in_words(), ("refused by one of them",), ())
    changes, around = plan_changes(before.plan, after.plan)
    if not changes and not around:
        return None
    return Difference(before.in_words(), after.in_words(), changes, around)
