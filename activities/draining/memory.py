"""What a drain leaves to the worker that takes it over: it travels in the details of its heartbeats.

The world tells the rest: which pods are there, which are being deleted, and which were evicted.
"""

from datetime import datetime

from pydantic import BaseModel, ValidationError

from gpu_runbooks.activities.draining.pod_record import End, PodRecord
from gpu_runbooks.activities.model.drain import BlockerReason

MOST_PODS = 64
"""Pods that are remembered, those in the way first: a few KiB in each heartbeat."""


class PodMemory(BaseModel):
    """What the pod's object does not show. Fields that say nothing are not written."""

    attempts: int = 0
    reason: BlockerReason = BlockerReason.NOT_TRIED
    since: datetime | None = None
    """Since when for this reason."""
    accepted: datetime | None = None
    """When its eviction or deletion was accepted."""
    acknowledged: datetime | None = None
    """When it said that its work is saved."""
    deleted: bool = False
    """Its deletion by order was accepted."""
    gone: End | None = None
    """It counts as gone, how so, although its object is still listed."""

    @classmethod
    def of(
        cls, record: PodRecord, *, attempts: int, since: datetime | None = None, gone: End | None = None
    ) -> "PodMemory":
        return cls(
            attempts=attempts,
            reason=record.reason or BlockerReason.NOT_TRIED,
            since=since,
            accepted=record.accepted,
            acknowledged=record.acknowledged,
            deleted=record.deleted_by is not None,
            gone=gone,
        )

    @property
    def end(self) -> End:
        """How it ended, where it went while no worker looked."""
        if self.gone is not None or self.deleted:
            return self.gone or "deleted"
        if self.accepted is None:
            return "completed" if self.reason is BlockerReason.COMPLETION else "removed"
        return "checkpointed" if self.acknowledged else "evicted"


class DrainMemory(BaseModel):
    """What an earlier worker of the same drain knew when it last spoke."""

    ends: dict[End, int] = {}
    """Pods that are gone and no longer listed, by how they ended."""
    words: int = 0
    """Words that the incident was told."""
    pods: dict[str, PodMemory] = {}
    """By UID."""


def remembered(beat: object) -> DrainMemory:
    """The memory in the details of a heartbeat; an empty one where there is none that can be read."""
    if not isinstance(beat, dict):
        return DrainMemory()
    try:
        return DrainMemory.model_validate(beat.get("memory") or {})
    except ValidationError:
        return DrainMemory()
