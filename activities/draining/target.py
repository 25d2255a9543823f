"""A pod that has to leave a node, and what comes next for it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from gpu_runbooks.activities.draining.memory import PodMemory
from gpu_runbooks.activities.draining.obstacles import NOT_TRIED
from gpu_runbooks.activities.draining.pod_record import PodRecord
from gpu_runbooks.activities.draining.pods import Obstacle
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.model.drain import PodOverride, PodRule

EVER = datetime.min.replace(tzinfo=UTC)
NEVER = datetime.max.replace(tzinfo=UTC)


class Act(StrEnum):
    """What a drain does for a pod."""

    EVICT = "evict"
    DELETE = "delete"
    """By an operator's order."""
    ASK_CHECKPOINT = "ask to checkpoint"
    LOOK_AT_BUDGETS = "look at budgets"
    """Instead of an eviction that two budgets never permit."""


@dataclass(frozen=True)
class Step:
    """What stands in the way of a pod now, and what comes next: an act, or another look."""

    obstacle: Obstacle
    act: Act | None = None
    at: datetime = NEVER


@dataclass(eq=False)
class Target:
    """A pod that has to leave."""

    pod: Object
    record: PodRecord
    rule: PodRule | None
    order: PodOverride | None
    since: datetime
    """Since when for the reason that it has now."""
    step: Step = Step(NOT_TRIED)
    attempts: int = 0
    """Acts asked for: every pod has its first before any has its second."""
    due: datetime = EVER
    """Moment of the next eviction."""
    ask_due: datetime = EVER
    """Moment of the next look at its checkpoint."""
    answer: Obstacle = NOT_TRIED
    """What the API server last said of its eviction."""
    given_up: bool = False
    """Evictions make no sense until fewer budgets select it."""
    remembered: PodMemory | None = None
    """What an earlier worker of this drain knew of it."""
    checkpoint: str = ""
    """How its checkpoint is coming on, in words."""
    judged: datetime = EVER
    """When its step was decided."""
    vanished: bool = False
    """Its object went while the node was silent."""
    asking: bool = False
    """A call is on its way."""
    understood: bool = True
    """Its object could be read when it was first seen."""

    @property
    def uid(self) -> str:
        return self.record.uid
