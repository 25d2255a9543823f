"""What two policies say of recorded faults, and where they differ. Pure.

A month of faults has few kinds. So an answer is kept under all that can decide it: every field of the fault
but those listed here as only telling when, how often and about which piece it was. A field that a later
version adds therefore counts as deciding until somebody lists it.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from operator import attrgetter

from gpu_runbooks.activities.model.fault import Entity, Fault
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import Plan
from gpu_runbooks.workers.policy.plan_changes import plan_changes
from gpu_runbooks.workers.policy.recorded_faults import RecordedFault
from gpu_runbooks.workflows.policy.planning import PlanRefused, plan
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
"""Kinds of faults whose answers are kept: a file of nonsense fills no memory."""

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


def kind_of(event: RecordedFault) -> Hashable:
    """All that can decide what a policy says: two faults of one kind have one answer."""
    return (DECIDES(event.fault), tuple(sorted(event.labels.items())), event.instance_type)


class Comparison:
    """Two policies, asked about one fault after the other."""

    def __init__(self, old: Policy, new: Policy) -> None:
        self._old, self._new = old, new
        self._kept: dict[Hashable, Difference | None] = {}

    def of(self, event: RecordedFault) -> "Difference | None":
        """What the new policy does differently; None for the same."""
        kind = kind_of(event)
        if kind in self._kept:
            return self._kept[kind]
        found = difference(decide(self._old, event), decide(self._new, event))
        if len(self._kept) < KEPT_ANSWERS:
            self._kept[kind] = found
        return found


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
