"""What a drain did to one pod, for the evidence: small enough that 250 of them are a small file."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from gpu_runbooks.activities.draining.workloads import owner_of
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.model.drain import BlockerReason, DrainMethod, Workload

End = Literal["evicted", "checkpointed", "completed", "deleted", "removed", "abandoned", "stays", "left"]
"""How it ended: `removed` by somebody else, `stays` with the node, `left` behind by the drain."""


class Order(BaseModel):
    """What an operator ordered."""

    operator: str
    reason: str
    at: datetime


class PodRecord(BaseModel):
    """One pod of a drain. Fields that say nothing are not written."""

    namespace: str
    name: str
    uid: str
    workload: Workload = Workload.OTHER
    owner_kind: str = ""
    owner_name: str = ""
    rule: str = ""
    method: DrainMethod = DrainMethod.EVICT
    end: End = "left"
    seen: datetime
    asked_to_checkpoint: datetime | None = None
    acknowledged: datetime | None = None
    evictions: int = 0
    """Evictions, or deletions by order, asked for."""
    answer: str = ""
    """The last answer to them."""
    accepted: datetime | None = None
    """When the eviction or deletion was accepted."""
    deleted_by: Order | None = None
    evicted_by: Order | None = None
    abandoned_by: Order | None = None
    gone: datetime | None = None
    reason: BlockerReason | None = None
    """Why it is still there."""
    notes: list[str] = []

    @classmethod
    def of(cls, pod: Object, now: datetime) -> "PodRecord":
        """A record of a pod at first sight."""
        metadata, owner = pod["metadata"], owner_of(pod)
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            owner_kind=owner.kind if owner else "",
            owner_name=owner.name if owner else "",
            seen=now,
        )

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    def note(self, text: str) -> None:
        """Add a note once."""
        if text not in self.notes:
            self.notes.append(text)

    def as_json(self) -> Object:
        return self.model_dump(mode="json", exclude_defaults=True)
