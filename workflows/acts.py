"""What an incident did and saw: its acts with their proofs, the lines of its audit, an examination."""

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel

from gpu_runbooks.activities.model.plan import RungName


class Act(BaseModel):
    """One attempt at a rung, or one validation, and what it showed."""

    rung: RungName
    attempt: int
    proven: bool
    proof: str
    """What was read back, or why there is no proof."""
    evidence: str = ""
    """Digest and place of the list that belongs to it."""
    started: datetime
    ended: datetime


class Note(BaseModel):
    """A line of the audit that is no act: a fault that joined, an operator's word, a reminder."""

    at: datetime
    text: str


class DrainScope(StrEnum):
    """What a drain has emptied."""

    GPU = "gpu"
    """The GPU to be reset: other pods work on."""
    NODE = "node"


class Examined(BaseModel):
    """What the examination before a repair showed."""

    evidence: str
    """Digest and place of the bundle."""
    gpu: tuple[str | None, str | None] = (None, None)
    """UUID and PCI address of the one GPU that a reset is for; nothing for all of them."""
    pods: tuple[str, ...] | None = None
    """UIDs of the pods that have this GPU, used or allocated. None, not known: the node is drained."""
