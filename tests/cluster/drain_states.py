"""States of a drain for tests of its decisions, without a cluster."""

from datetime import UTC, datetime, timedelta

from gpu_runbooks.activities.draining.eviction import (
    Answer,
    Verdict,
)
from gpu_runbooks.activities.draining.memory import remembered
from gpu_runbooks.activities.draining.obstacles import obstacle_of
from gpu_runbooks.activities.draining.outlook import blockers
from gpu_runbooks.activities.draining.state import DrainState
from gpu_runbooks.activities.model.drain import (
    DrainMethod,
    DrainPods,
    DrainPolicy,
    PodOverride,
    PodRule,
    Workload,
)
from gpu_runbooks.activities.model.node import NodeIdentity

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
LATER = NOW + timedelta(days=365)
BLOCKED = Answer(Verdict.BUDGET, "needs 2 healthy pods and has 2", ("web",))
ACCEPTED = Answer(Verdict.ACCEPTED)
NODE = NodeIdentity(
    name="gpu-a1", uid="n", provider_id="", instance_id="", zone="", instance_type="", boot_id=""
)
WAIT = PodRule(
    name="let-jobs-end",
    workloads=(Workload.TRAINING,),
    method=DrainMethod.WAIT_FOR_COMPLETION,
    deadline=timedelta(hours=1),
)
CHECKPOINT = WAIT.model_copy(update={"name": "save", "method": DrainMethod.CHECKPOINT_THEN_EVICT})


def seconds(count):
    return NOW + timedelta(seconds=count)


def pod(name, uid="", *, owner="ReplicaSet", spec=None, phase="Running", **metadata):
    base = {"name": name, "namespace": "blue", "uid": uid or f"u-{name}"}
    if owner:
        reference = {"kind": owner, "name": "o", "uid": f"o-{owner}", "controller": True}
        base["ownerReferences"] = [reference]
    return {
        "metadata": base | metadata,
        "spec": spec or {"containers": [{"name": "c"}]},
        "status": {"phase": phase},
    }


def going(name, uid="", **more):
    return pod(name, uid, deletionTimestamp="2026-03-01T10:00:30Z", deletionGracePeriodSeconds=30, **more)


def state_of(*pods, own="", ready="True", beat=None, **request):
    fields = {
        "identity": NODE,
        "incident": "node/test/gpu-a1",
        "run_id": "r",
        "started": NOW,
        "deadline": NOW + timedelta(days=30),
        "policy": DrainPolicy(),
    }
    state = DrainState(DrainPods(**(fields | request)), own, remembered(beat))
    state.see_node(ready, None)
    see(state, *pods)
    return state


def see(state, *pods, now=NOW):
    state.see({each["metadata"]["uid"]: each for each in pods}, now)


def with_rule(rule, **more):
    return DrainPolicy(rules=(rule,), **more)


def ask(state, now, answer, at_once=1000):
    """One round: act on what is due, at most so many, and get one answer for all."""
    asked = state.due(now)[:at_once]
    for target in asked:
        state.begin(target)
    for target in asked:
        state.answered(target, answer, obstacle_of(answer, target.pod), now)
    return [target.record.name for target in asked]


def reasons(state, now=NOW):
    state.review(now)
    return {blocker.name: str(blocker.reason) for blocker in blockers(state)}


def order(name, method):
    return PodOverride(uid=f"u-{name}", method=method, operator="ana", reason="owner agreed")


def ended(state):
    return {record.name: record.end for record in state.gone.values()}
