"""Owners that make their pods anew on the very node that is drained: they ignore cordon and taint. Pure."""

from dataclasses import dataclass

from gpu_runbooks.activities.draining.pods import Obstacle, full_name
from gpu_runbooks.activities.draining.workloads import owner_of
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.model.drain import BlockerReason

RESPAWNS = 3
"""Births after which it is no chance: one may have been bound just before the cordon."""

LONGEST_PAUSE = 60.0


@dataclass
class _Line:
    first: int = 0
    """Pods of the owner that were there before any of them left."""
    gone: int = 0
    births: int = 0
    """Pods that came after one had left."""

    @property
    def generation(self) -> int:
        return -(-self.births // max(1, self.first))


class Lineages:
    """Births by owner, or by name for pods without one, as this drain saw them."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def born(self, pod: Object) -> float:
        """Note a pod that is new on the node, and return how many seconds to leave it alone.

        The first that follows one that left is evicted at once; each further generation waits twice as long.
        """
        line = self._lines.setdefault(_key(pod), _Line())
        if not line.gone:
            line.first += 1
            return 0.0
        line.births += 1
        return 0.0 if line.generation <= 1 else min(2.0 ** (line.generation - 1), LONGEST_PAUSE)

    def left(self, pod: Object) -> None:
        """Note that a pod left the node."""
        self._lines.setdefault(_key(pod), _Line()).gone += 1

    def generation(self, pod: Object) -> int:
        """How often all pods of its owner were made anew; 0 where none was."""
        line = self._lines.get(_key(pod))
        return line.generation if line else 0

    def explain(self, pod: Object) -> Obstacle | None:
        """Why the pod is there in spite of all evictions; None where it is not its owner's doing."""
        generation = self.generation(pod)
        if generation < RESPAWNS:
            return None
        owner = owner_of(pod)
        name = str(owner) if owner else f"whoever makes {full_name(pod)}"
        return Obstacle(
            BlockerReason.RESPAWNING,
            f"{name} makes it anew on this node in spite of cordon and taint, {generation} times so far: "
            "take its tolerations or node name away, or scale it down",
            (name,),
        )


def _key(pod: Object) -> str:
    owner = owner_of(pod)
    return owner.uid if owner and owner.uid else full_name(pod)
