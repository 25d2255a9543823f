"""Where each pod of a draining node stands. Pure: it is told what was seen and says what to do next.

A pod is held (its owner or policy forbids the eviction, or it is given time to complete or to checkpoint),
then evicted, then waited for, until it is gone. Keyed by UID: a pod of the same name that is born again, here
or elsewhere, is another pod. Nothing but a list without the pod, or a pod that finished, makes it gone.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpu_runbooks.activities import names
from gpu_runbooks.activities.draining.budgets import BudgetsFound
from gpu_runbooks.activities.draining.eviction import LOOK_AT_BUDGETS, Answer, Verdict, pause
from gpu_runbooks.activities.draining.memory import DrainMemory
from gpu_runbooks.activities.draining.obstacles import obstacle_of
from gpu_runbooks.activities.draining.pod_record import End, Order, PodRecord
from gpu_runbooks.activities.draining.pods import (
    Obstacle,
    Readiness,
    belongs_to_node,
    containers_ended,
    empty_dirs,
    has_finished,
    is_terminating,
    moment,
    proven_finished,
    spec_of,
    tolerates_block,
    was_evicted,
)
from gpu_runbooks.activities.draining.step import Judge
from gpu_runbooks.activities.draining.target import EVER, NEVER, Act, Step, Target
from gpu_runbooks.activities.draining.workloads import owner_of, rule_for, workload_of
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.model.drain import (
    BlockerReason,
    DrainMethod,
    DrainPods,
    OverrideMethod,
    PodOverride,
    PodRule,
)

ODD = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What reading an object raises that is not as the API says: it may end no drain of the others."""

LONGEST_MESSAGE = 400
"""Characters: twenty blockers stay below 16 KiB."""

LONGEST_NAME = 253
"""Characters of a name in Kubernetes."""

YOUNGER = "younger than the fault"
"""Note of a pod that a restart leaves alone."""

SETTLING = timedelta(seconds=10)
"""Time in which an owner whose pods ignore our block makes the next: before, an empty node proves little."""


@dataclass
class DrainState:
    """All pods of the node that this drain has seen."""

    request: DrainPods
    own_pod_uid: str = ""
    memory: DrainMemory = field(default_factory=DrainMemory)
    """What an earlier worker of this drain knew."""
    targets: dict[str, Target] = field(default_factory=dict)
    gone: dict[str, PodRecord] = field(default_factory=dict)
    skipped: dict[str, PodRecord] = field(default_factory=dict)
    abandoned: dict[str, PodRecord] = field(default_factory=dict)
    """Still there, by an operator's order."""
    missing: int = 0
    """Pods of `only` that were gone before this drain looked."""
    earlier: Counter[End] = field(default_factory=Counter)
    """Pods that were gone before this worker took over, by how they ended."""
    node_ready: Readiness = "Unknown"
    node_ready_since: datetime | None = None
    unreadable: int = 0
    """Objects of the last list that nobody can read: they may be pods."""
    seen: bool = False
    """The node's pods were listed at least once: before, no pods means nothing."""
    forbidden: str = ""
    """The API server's words when we may not do what a drain has to."""
    settled: datetime = EVER
    """Before it, an owner that ignores our block may still be making the next pod."""
    left: datetime = EVER
    """When the last pod left."""
    listed: Collection[str] = ()
    """UIDs of what was last seen on the node."""
    _known: dict[str, Object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.earlier = Counter(self.memory.ends)
        self._judge = Judge(self.request, self.own_pod_uid)

    def end_of(self, rule: PodRule) -> datetime:
        """When a rule's wait is over."""
        return self._judge.end_of(rule)

    @property
    def token(self) -> str:
        """Stands for this incident's one request to checkpoint."""
        return self._judge.token

    # --- what was seen -------------------------------------------------------------------------------

    def see_node(self, ready: Readiness, since: datetime | None) -> None:
        """Take in what the node says of its kubelet."""
        self.node_ready_since = since
        if ready != self.node_ready:
            self.node_ready = ready
            self._known = {}  # every pod is to be judged anew

    def see(self, pods: Mapping[str, Object], now: datetime) -> None:
        """Take in all pods that the node has now. A target that is absent, or finished, is gone."""
        for uid in self.targets.keys() - pods.keys():
            self._miss(self.targets[uid], now)
        for uid in self.abandoned.keys() - pods.keys():
            self.gone[uid] = self.abandoned.pop(uid)
            self.gone[uid].gone, self.gone[uid].end = now, "removed"
            self.left = now
        if not self.seen:
            self._take_over(pods)
        for uid, pod in pods.items():
            if self._known.get(uid) is pod:
                continue
            try:
                self._take_in(uid, pod, now)
            except ODD as error:
                self._cannot_read(uid, pod, error, now)
        self._known = dict(pods)
        self.listed = self._known.keys()
        self.seen = True

    def _take_over(self, pods: Mapping[str, Object]) -> None:
        """Count what went while no worker looked."""
        for uid, known in self.memory.pods.items():
            if uid not in pods:
                self.earlier[known.end] += 1
        absent = len(set(self.request.only or ()) - pods.keys())
        self.missing = max(0, absent - self.earlier.total())

    def _take_in(self, uid: str, pod: Object, now: datetime) -> None:
        if uid in self.abandoned or not self._concerns(uid, pod, now):
            return
        target = self.targets.get(uid)
        if target is not None and not target.understood:
            del self.targets[uid]
            target = None
        if target is None and proven_finished(pod, self.node_ready):
            if uid in self.gone or uid in self.skipped:
                return
            if uid not in self.memory.pods:  # it ended before this drain began
                self._skip(uid, pod, now)
                return
        if target is None:
            target = self._adopt(uid, pod, now)
            if target is None:
                return
        target.pod, target.vanished = pod, False
        if proven_finished(pod, self.node_ready):
            self._leave(target, now)
        elif self._only_finalizers_keep(pod):
            target.record.note(
                f"kept by finalizer {', '.join(pod['metadata']['finalizers'])}, containers ended"
            )
            self._leave(target, now)
        else:
            self._consider(target, now)

    def _concerns(self, uid: str, pod: Object, now: datetime) -> bool:
        if (spec_of(pod).get("nodeName") or self.request.identity.name) != self.request.identity.name:
            return False  # something on the way lost our selector
        if self.request.only is not None and uid not in self.request.only:
            return False
        if self.request.restart:
            return not self._is_younger(uid, pod, now)
        if belongs_to_node(pod):
            self._skip(uid, pod, now)
            return False
        return True

    def _is_younger(self, uid: str, pod: Object, now: datetime) -> bool:
        """Whether a pod came after what is held against it: it took the GPU of another one."""
        seen, created = self.request.seen_until, pod["metadata"].get("creationTimestamp")
        younger = seen is not None and bool(created) and moment(created) > seen
        if younger and uid not in self.skipped:
            self.skipped[uid] = PodRecord.of(pod, now)
            self.skipped[uid].end = "stays"
            self.skipped[uid].note(YOUNGER)
        return younger

    def _skip(self, uid: str, pod: Object, now: datetime) -> None:
        if uid not in self.skipped:
            self.skipped[uid] = PodRecord.of(pod, now)
            self.skipped[uid].end = "stays"
            self.skipped[uid].note("finished" if has_finished(pod) else "belongs to the node")

    def _adopt(self, uid: str, pod: Object, now: datetime) -> Target | None:
        """Begin with a pod; None where an operator abandons it."""
        policy = self.request.policy
        record = self.gone.pop(uid, None) or PodRecord.of(pod, now)
        self.skipped.pop(uid, None)
        order = next((each for each in self.request.overrides if each.uid == uid), None)
        record.workload = workload_of(pod, policy)
        if order is not None and order.method is OverrideMethod.ABANDON:
            record.abandoned_by, record.end = _signed(order, now), "abandoned"
            self.abandoned[uid] = record
            return None
        rule = rule_for(pod, record.workload, policy)
        if rule is not None:
            record.rule, record.method = rule.name, rule.method
        if owner_of(pod) is None:
            record.note("bare: nobody makes it anew")
        target = Target(pod, record, rule, order, since=now)
        record.reason = target.step.obstacle.reason
        if order is not None and order.method is OverrideMethod.EVICT:
            record.evicted_by = _signed(order, now)
        if known := self.memory.pods.get(uid):
            target.remembered, target.attempts, record.evictions = known, known.attempts, known.attempts
            record.accepted, record.acknowledged = known.accepted, known.acknowledged
            if known.deleted and order is not None:
                record.deleted_by = _signed(order, now)
        self.targets[uid] = target
        if not self.request.restart and (wait := self._judge.lineages.born(pod)):
            target.due = now + timedelta(seconds=wait)
            record.note(f"its owner made it anew on the node: birth {self._judge.lineages.generation(pod)}")
        return target

    def _cannot_read(self, uid: str, pod: Object, error: Exception, now: datetime) -> None:
        """Nothing is known of the pod, so it counts as there, and nothing is done to it."""
        if uid in self.abandoned or (self.request.only is not None and uid not in self.request.only):
            return
        metadata = pod.get("metadata") or {}
        namespace, name = (str(metadata.get(key, ""))[:LONGEST_NAME] for key in ("namespace", "name"))
        record = PodRecord(namespace=namespace, name=name, uid=uid, seen=now)
        blind = Target(pod, record, None, None, since=now, understood=False)
        target = self.targets.setdefault(uid, blind)
        self._set(target, _not_understood(error), now)

    def _miss(self, target: Target, now: datetime) -> None:
        """Take note that a target is not listed any more: gone, unless its node could not have said so."""
        silent = self.node_ready == "Unknown" and target.understood and not containers_ended(target.pod)
        if not silent:
            self._leave(target, now)
        elif not target.vanished:
            target.vanished = True
            self._consider(target, now)

    def _leave(self, target: Target, now: datetime) -> None:
        record = target.record
        del self.targets[target.uid]
        self.gone[target.uid] = record
        record.gone, record.reason, record.end = now, None, "removed"
        self.left = now
        try:
            self._note_end(target, now)
        except ODD:  # it is gone all the same; whether its owner ignores the block is unknown
            self.settled = now + SETTLING

    def _note_end(self, target: Target, now: datetime) -> None:
        record, pod = target.record, target.pod
        record.end = _end_of(record, pod)
        if volumes := empty_dirs(pod):
            record.note(f"emptyDir volumes lost: {', '.join(volumes)}")
        self._judge.lineages.left(pod)
        if owner_of(pod) is not None and (tolerates_block(pod) or self._judge.lineages.generation(pod)):
            self.settled = now + SETTLING

    def _only_finalizers_keep(self, pod: Object) -> bool:
        return bool(
            self.request.policy.finalizers == "accept_when_stopped"
            and self.node_ready == "True"
            and is_terminating(pod)
            and pod["metadata"].get("finalizers")
            and containers_ended(pod)
        )

    # --- what comes next -----------------------------------------------------------------------------

    def due(self, now: datetime) -> list[Target]:
        """Targets to act on now, fewest attempts first."""
        ready = []
        for target in self.targets.values():
            if target.asking or target.step.at > now:
                continue
            # an act that was due when it was decided stays so until the pod changes or the next review
            if target.judged < target.step.at or target.step.act is None:
                self._consider(target, now)
            if target.step.act is not None and target.step.at <= now:
                ready.append(target)
        return sorted(ready, key=lambda target: target.attempts)

    def next_look(self, now: datetime) -> datetime:
        """When a target falls due next; `NEVER` when only the world can change something."""
        moments = (target.step.at for target in self.targets.values() if not target.asking)
        return min((moment for moment in moments if moment > now), default=NEVER)

    def review(self, now: datetime) -> None:
        """Bring every reason up to date: most change with time alone."""
        for target in self.targets.values():
            if target.step.obstacle.reason is not BlockerReason.UNREADABLE:
                self._consider(target, now)

    def _consider(self, target: Target, now: datetime) -> None:
        try:
            step = self._judge.step(target, self.node_ready, now, self.node_ready_since)
        except ODD as error:
            step = _not_understood(error)
        self._set(target, step, now)

    def _set(self, target: Target, step: Step, now: datetime) -> None:
        reason, known = step.obstacle.reason, target.remembered
        if reason is not target.step.obstacle.reason:
            target.since = now
            target.record.reason = reason
        if step.obstacle.since is not None:
            target.since = min(step.obstacle.since, now)
        elif known and known.since and known.reason is reason:
            target.since = min(known.since, now)
        if known and reason not in {known.reason, BlockerReason.NOT_TRIED}:
            target.remembered = None
        target.step, target.judged = step, now

    # --- what became of it ---------------------------------------------------------------------------

    def begin(self, target: Target) -> Act:
        """Note that the due act of a target is on its way, and return it."""
        act = target.step.act
        if act is None:
            raise ValueError(f"no act is due for pod {target.record.full_name}")
        target.asking = True
        if act in {Act.EVICT, Act.DELETE}:
            target.attempts += 1
            target.record.evictions += 1
        return act

    def answered(
        self, target: Target, answer: Answer, obstacle: Obstacle, now: datetime, chance: float = 0.0
    ) -> None:
        """Note what the API server said of an eviction or deletion, and when to ask again."""
        target.asking = False
        target.answer = obstacle
        target.record.answer = f"{answer.verdict}: {answer.message}"[:LONGEST_MESSAGE].removesuffix(": ")
        if answer.verdict is Verdict.ACCEPTED:
            target.record.accepted = now
            if target.order is not None and target.order.method is OverrideMethod.DELETE:
                target.record.deleted_by = _signed(target.order, now)
        if target.uid in self.gone:  # it left before the answer came
            target.record.end = _end_of(target.record, target.pod)
            return
        if answer.verdict is Verdict.FORBIDDEN:
            self.forbidden = answer.message
        wait = pause(answer, target.attempts, chance)
        target.given_up = wait is None and answer.verdict is Verdict.TWO_BUDGETS
        if target.given_up:
            wait = LOOK_AT_BUDGETS
        target.due = NEVER if wait is None else now + timedelta(seconds=wait)
        self._consider(target, now)

    def budgets_seen(self, target: Target, found: BudgetsFound, now: datetime) -> None:
        """Note which budgets select a pod whose eviction was given up; ask again where they permit it."""
        target.asking = False
        target.given_up = bool(found.problem) or len(found.budgets) > 1
        target.due = now + timedelta(seconds=LOOK_AT_BUDGETS) if target.given_up else now
        if target.given_up:
            target.answer = obstacle_of(Answer(Verdict.TWO_BUDGETS), target.pod, found)
        self._consider(target, now)

    def checkpoint_asked(
        self, target: Target, progress: str, again: float, now: datetime, *, reached: bool
    ) -> None:
        """Note how a pod's checkpoint is coming on, and look again after so many seconds."""
        target.asking = False
        target.checkpoint = progress
        if reached and target.record.asked_to_checkpoint is None:
            target.record.asked_to_checkpoint = now
        target.ask_due = now + timedelta(seconds=again)
        self._consider(target, now)

    def checkpoint_done(self, target: Target, now: datetime) -> None:
        """Note that a pod says its work is saved."""
        target.asking = False
        target.record.asked_to_checkpoint = target.record.asked_to_checkpoint or now
        target.record.acknowledged = now
        self._consider(target, now)

    # --- what to tell --------------------------------------------------------------------------------

    @property
    def gone_total(self) -> int:
        """Pods that are gone, those before this worker took over included."""
        return len(self.gone) + self.missing + self.earlier.total()

    @property
    def remaining(self) -> int:
        return len(self.targets) + self.unreadable

    def ends(self) -> Counter[End]:
        """The pods that are gone, by how they ended."""
        return self.earlier + Counter(record.end for record in self.gone.values())

    def attempts(self) -> int:
        return sum(target.attempts for target in self.targets.values())

    def asked_by_annotation(self) -> list[Target]:
        """Targets that carry our request to checkpoint."""
        name = names.CHECKPOINT_REQUESTED_ANNOTATION
        return [
            target
            for target in self.targets.values()
            if target.understood and (target.pod["metadata"].get("annotations") or {}).get(name) == self.token
        ]

    def records(self) -> list[PodRecord]:
        """Every pod of this drain."""
        still = [target.record for target in self.targets.values()]
        return [*still, *self.abandoned.values(), *self.gone.values(), *self.skipped.values()]


def _end_of(record: PodRecord, pod: Object) -> End:
    """How a pod that left ended, by what was done to it and its last state that was seen."""
    if record.deleted_by is not None:
        return "deleted"
    if record.accepted is not None or was_evicted(pod):
        return "checkpointed" if record.acknowledged else "evicted"
    awaited = record.method is DrainMethod.WAIT_FOR_COMPLETION and not is_terminating(pod)
    return "completed" if has_finished(pod) or awaited else "removed"


def _not_understood(error: Exception) -> Step:
    message = f"its object cannot be understood ({error!r}): read it with kubectl get pod -o yaml"
    return Step(Obstacle(BlockerReason.UNREADABLE, message))


def _signed(order: PodOverride, now: datetime) -> Order:
    return Order(operator=order.operator, reason=order.reason, at=now)
