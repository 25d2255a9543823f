"""The steps of the ladder: what an incident may do next, each with what it needs to know."""

from dataclasses import dataclass, field
from datetime import datetime

from gpu_runbooks.activities.model.plan import Rung, RungName
from gpu_runbooks.workflows.phases import Outcome


@dataclass(frozen=True)
class Tolerate:
    """Wait: the fault may clear by itself, or another incident still owns the node."""

    until: datetime
    why: str = field(default="", compare=False)
    """What is waited for, where the notes are to say it."""


@dataclass(frozen=True)
class Look:
    """Look at the node: whether the conditions that were reported still stand."""


@dataclass(frozen=True)
class Reconsider:
    """Plan for faults whose toleration is over, or for those that stand when the decisive one does not."""


@dataclass(frozen=True)
class HoldSlot:
    """Ask the pool's budget for permission to disrupt this node."""


@dataclass(frozen=True)
class StayPaused:
    """Do nothing: a person said so."""

    until: datetime


@dataclass(frozen=True)
class Watch:
    """Watch the node that is back in service for the same fault."""

    until: datetime


@dataclass(frozen=True)
class Block:
    rung: Rung


@dataclass(frozen=True)
class GroupWait:
    """Leave the node at its block until others with the same cause had time to report."""

    until: datetime


@dataclass(frozen=True)
class Recall:
    """Ask the ledger how often this hardware was given back with the same fault."""


@dataclass(frozen=True)
class Examine:
    """Gather the evidence before a repair, and what the choice of it needs."""

    repair: Rung


@dataclass(frozen=True)
class Drain:
    rung: Rung
    pods: tuple[str, ...] | None = None
    """UIDs of the pods that have the GPU to be reset; None for all of the node."""


@dataclass(frozen=True)
class NotifyOwner:
    """Tell the owners of the pods on the node, and leave the node alone."""

    rung: Rung


@dataclass(frozen=True)
class RestartWorkload:
    """End the pods that hold the GPU of the evidence, and leave the node alone."""

    rung: Rung


@dataclass(frozen=True)
class Repair:
    """Reset, reboot or replace, and wait for the proof."""

    rung: Rung
    attempt: int


@dataclass(frozen=True)
class ResumeServices:
    """Have the GPU services run again that were stopped for a reset."""


@dataclass(frozen=True)
class Validate:
    rung: Rung


@dataclass(frozen=True)
class Return:
    rung: Rung


@dataclass(frozen=True)
class AskOperator:
    question: str
    approves: RungName | None = None
    """The rung that waits for a person's approval."""
    escalates: bool = False
    """Something stronger may follow from silence, where policy says so: it would be no worse."""


@dataclass(frozen=True)
class Close:
    outcome: Outcome
    reason: str


Step = (
    Tolerate
    | Look
    | Reconsider
    | HoldSlot
    | StayPaused
    | Watch
    | Block
    | GroupWait
    | Recall
    | Examine
    | Drain
    | NotifyOwner
    | RestartWorkload
    | Repair
    | ResumeServices
    | Validate
    | Return
    | AskOperator
    | Close
)

WITH_SLOT = (Examine, Drain, RestartWorkload, Repair)
"""Steps that end somebody's work, and the look that has to be fresh for them."""
