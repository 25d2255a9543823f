"""The decision for one pod of a drain: hold it, ask it, evict it, or wait for it. Pure."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpu_runbooks.activities import names
from gpu_runbooks.activities.draining.lineage import Lineages
from gpu_runbooks.activities.draining.obstacles import DELETION_DUE, NOT_DELETED
from gpu_runbooks.activities.draining.pods import (
    Obstacle,
    Readiness,
    full_name,
    has_finished,
    is_mirror,
    is_terminating,
    protections,
    running_containers,
    spec_of,
    still_running,
    termination,
)
from gpu_runbooks.activities.draining.target import NEVER, Act, Step, Target
from gpu_runbooks.activities.model.drain import (
    BlockerReason,
    DrainMethod,
    DrainPods,
    OverrideMethod,
    PodRule,
)

OWN_WORKER = (
    "it is the worker that drains the node, and would not see the end of it: have a worker on another node "
    "take over, such as by deleting this pod"
)


GRACE = "terminationGracePeriodSeconds"

VANISHED = Obstacle(
    BlockerReason.DEAD_KUBELET,
    "its object was removed while the node was silent, which ends no container: have the machine rebooted or "
    "replaced, or order to abandon it",
)

UNCONFIRMED = Obstacle(
    BlockerReason.DEAD_KUBELET,
    "its grace period is 0, so that an eviction removes its object at once, and the node is not there to end "
    "its containers: have the machine rebooted or replaced, or order its eviction",
)


@dataclass
class Judge:
    """Decides by the request, and by what this drain saw of the pods' owners."""

    request: DrainPods
    own_pod_uid: str = ""
    lineages: Lineages = field(default_factory=Lineages)

    def __post_init__(self) -> None:
        request = self.request
        self.token = names.digest("checkpoint", request.incident, request.run_id, request.started.isoformat())
        """Stands for this drain's one request to checkpoint, however often it is resumed.

        A later drain of the incident asks again: a checkpoint of days ago is no fresh one.
        """

    def end_of(self, rule: PodRule) -> datetime:
        """When a rule's wait is over: it counts from the drain's start, so a resumed drain keeps it."""
        return min(self.request.started + rule.deadline, self.request.deadline)

    def step(
        self, target: Target, node_ready: Readiness, now: datetime, ready_since: datetime | None = None
    ) -> Step:
        """What stands in the way of a pod now, and what comes next for it."""
        pod = target.pod
        if target.vanished:
            return Step(VANISHED)
        if self.own_pod_uid and target.uid == self.own_pod_uid:
            return Step(Obstacle(BlockerReason.OWN_WORKER, OWN_WORKER, (full_name(pod),)))
        if is_terminating(pod):
            return Step(self.lineages.explain(pod) or termination(pod, node_ready, now, ready_since))
        if target.order is None and has_finished(pod) and (running := running_containers(pod)):
            return Step(still_running(running))
        if self.request.restart and is_mirror(pod):
            message = "it is a static pod: the API cannot restart it. Restart it on the node itself"
            return Step(Obstacle(BlockerReason.ESSENTIAL, message))
        if target.order is None:
            protected = next(
                protections(pod, self.request.policy, now, bare_stays=self.request.restart), None
            )
            if protected is not None:
                return Step(protected, at=protected.until or NEVER)
            if waiting := self._waiting(target, now):
                return waiting
        if node_ready != "True" and target.order is None and spec_of(pod).get(GRACE) == 0:
            return Step(UNCONFIRMED)
        act = Act.LOOK_AT_BUDGETS if target.given_up else Act.EVICT
        if target.order and target.order.method is OverrideMethod.DELETE:
            act = Act.DELETE
        return Step(self.lineages.explain(pod) or self._answer(target, now), act, target.due)

    def _answer(self, target: Target, now: datetime) -> Obstacle:
        accepted = target.record.accepted
        if target.answer.reason is BlockerReason.TERMINATING and accepted is not None:
            return NOT_DELETED if now >= accepted + timedelta(seconds=DELETION_DUE) else target.answer
        return target.answer

    def _waiting(self, target: Target, now: datetime) -> Step | None:
        """The wait that its rule grants the pod; None where there is none or it is over."""
        rule, record = target.rule, target.record
        if rule is None or rule.method is DrainMethod.EVICT or record.evictions or record.acknowledged:
            return None
        ends = self.end_of(rule)
        completion = rule.method is DrainMethod.WAIT_FOR_COMPLETION
        if now >= ends:
            record.note("did not complete in time" if completion else "checkpoint not acknowledged")
            return None
        if completion:
            message = (
                f"rule {rule.name} lets it run to its end until {ends:%Y-%m-%d %H:%M:%S} UTC, then evicts it"
            )
            return Step(Obstacle(BlockerReason.COMPLETION, message, (rule.name,), ends), at=ends)
        return self._checkpoint(target, rule, ends, now)

    def _checkpoint(self, target: Target, rule: PodRule, ends: datetime, now: datetime) -> Step | None:
        asked = False
        if rule.checkpoint_port is None:
            annotations = target.pod["metadata"].get("annotations") or {}
            if annotations.get(names.CHECKPOINTED_ANNOTATION) == self.token:
                target.record.acknowledged = now
                return None
            asked = annotations.get(names.CHECKPOINT_REQUESTED_ANNOTATION) == self.token
        progress = f"annotation {names.CHECKPOINT_REQUESTED_ANNOTATION} set" if asked else target.checkpoint
        message = (
            f"waiting for its checkpoint ({progress or 'not asked yet'}): rule {rule.name} evicts it at "
            f"{ends:%Y-%m-%d %H:%M:%S} UTC without one"
        )
        obstacle = Obstacle(BlockerReason.CHECKPOINT, message, (rule.name,), ends)
        if asked or target.ask_due >= ends:
            return Step(obstacle, at=ends)
        return Step(obstacle, Act.ASK_CHECKPOINT, target.ask_due)
