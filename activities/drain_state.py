"""Where each pod of a draining node stands. Pure: it is told what was seen and says what to do next.

Keyed by UID: a pod of the same name that is born again, here or elsewhere, is another pod.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from gpu_runbooks.activities.eviction import Answer, Verdict, pause
from gpu_runbooks.activities.kubernetes import Object
from gpu_runbooks.activities.model.drain import BlockerReason, PodBlocker
from gpu_runbooks.activities.pods import full_name, is_terminating, protection, stays, termination

MOST_BLOCKERS = 20
LONGEST_REASON = 250
"""Characters: twenty blockers stay far below 16 KiB."""

NOT_TRIED = "not tried yet"


@dataclass
class Target:
    """A pod that has to leave."""

    pod: Object
    since: datetime
    """When the drain first saw it."""
    attempts: int = 0
    reason: str = NOT_TRIED
    due: float = 0.0
    """Clock at which the next eviction may be asked for; infinite for never."""
    asking: bool = False
    """An eviction is on its way."""


@dataclass
class DrainState:
    """All pods of the node that this drain has seen."""

    own_pod_uid: str = ""
    targets: dict[str, Target] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    with_empty_dir: dict[str, str] = field(default_factory=dict)
    """Targets, by UID, whose emptyDir volumes end with them."""
    seen: bool = False
    """The node's pods were listed at least once: before, no pods means nothing."""
    forbidden: str = ""
    """The API server's words when we may not evict at all."""

    def see(self, pods: Iterable[Object], now: datetime) -> None:
        """Take in all pods that the node has now. A target that is absent, or finished, is gone."""
        present = set()
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if stays(pod):
                if uid not in self.targets:
                    self.skipped.add(uid)
                continue
            present.add(uid)
            if uid in self.targets:
                self.targets[uid].pod = pod
                continue
            self.targets[uid] = Target(pod, since=now)
            self.gone.discard(uid)
            if any(volume.get("emptyDir") is not None for volume in pod["spec"].get("volumes") or ()):
                self.with_empty_dir[uid] = full_name(pod)
        for uid in self.targets.keys() - present:
            del self.targets[uid]
            self.gone.add(uid)
        self.seen = True

    def due(self, clock: float) -> list[Target]:
        """Targets to evict now. Fewest attempts first: every pod has its first before any has its second."""
        ready = [
            target for target in self.targets.values() if target.due <= clock and self._may_be_asked(target)
        ]
        return sorted(ready, key=lambda target: target.attempts)

    def seconds_to_next(self, clock: float) -> float:
        """Time until a target falls due; infinite when only the world can change something."""
        moments = (target.due for target in self.targets.values() if self._may_be_asked(target))
        return max(0.0, min(moments, default=math.inf) - clock)

    def answered(self, target: Target, answer: Answer, budgets: tuple[str, ...], clock: float) -> None:
        """Note what the Eviction API said of a target, and when to ask again."""
        target.asking = False
        target.reason = reason_for(answer, budgets)
        wait = pause(answer, target.attempts)
        target.due = math.inf if wait is None else clock + wait
        if answer.verdict is Verdict.FORBIDDEN:
            self.forbidden = answer.message

    def blockers(self, node_ready: str, now: datetime) -> tuple[PodBlocker, ...]:
        """The first twenty pods that are still there, each with why."""
        return tuple(
            PodBlocker(
                namespace=target.pod["metadata"]["namespace"],
                name=target.pod["metadata"]["name"],
                uid=uid,
                reason=BlockerReason.NOT_TRIED,
                message=self._why(target, node_ready, now)[:LONGEST_REASON],
                attempts=target.attempts,
                since=target.since,
            )
            for uid, target in list(self.targets.items())[:MOST_BLOCKERS]
        )

    def _may_be_asked(self, target: Target) -> bool:
        return not (
            target.asking
            or is_terminating(target.pod)
            or protection(target.pod, self.own_pod_uid) is not None
        )

    def _why(self, target: Target, node_ready: str, now: datetime) -> str:
        if is_terminating(target.pod):
            return termination(target.pod, node_ready, now)
        return protection(target.pod, self.own_pod_uid) or target.reason


def reason_for(answer: Answer, budgets: tuple[str, ...]) -> str:
    """An answer in words that tell a person what to do."""
    names = ", ".join(budgets)
    match answer.verdict:
        case Verdict.ACCEPTED:
            return "eviction accepted, its deletion has not begun"
        case Verdict.BUDGET:
            named = f"PodDisruptionBudget {names}" if names else "a PodDisruptionBudget"
            return f"{named} does not permit it now: {answer.message}"
        case Verdict.TWO_BUDGETS:
            named = f" ({names})" if names else ""
            return (
                f"more than one PodDisruptionBudget selects it{named}, so it can never be evicted: remove one"
            )
        case Verdict.THROTTLED:
            return f"the API server is busy: {answer.message}"
        case Verdict.NAMESPACE_TERMINATING:
            return "its namespace is being deleted: waiting for the pod to go with it"
        case Verdict.GONE:
            return f"the API server says that it is gone, the list still has it: {answer.message}"
        case _:
            return answer.message
