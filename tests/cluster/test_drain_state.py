"""The state machine of a drain: holds, order of acts, reasons, ends. Without a cluster."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from gpu_runbooks.activities.draining.budgets import Budget, BudgetsFound
from gpu_runbooks.activities.draining.eviction import (
    ATTEMPTS_AGAINST_TWO_BUDGETS,
    LOOK_AT_BUDGETS,
    Answer,
    Verdict,
)
from gpu_runbooks.activities.draining.lineage import RESPAWNS
from gpu_runbooks.activities.draining.memory import MOST_PODS, remembered
from gpu_runbooks.activities.draining.obstacles import obstacle_of
from gpu_runbooks.activities.draining.outlook import MOST_BLOCKERS, blockers, grace_ends, stuck_on_silent_node
from gpu_runbooks.activities.draining.progress import INTERVALS, PATIENCE, ProgressPace
from gpu_runbooks.activities.draining.report import LONGEST_MESSAGE, heartbeat_of, report_of
from gpu_runbooks.activities.draining.state import DrainState
from gpu_runbooks.activities.draining.target import NEVER, Act
from gpu_runbooks.activities.model.drain import (
    DrainMethod,
    DrainPods,
    DrainPolicy,
    OverrideMethod,
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


# --- order and pace ---------------------------------------------------------------------------------------


def test_every_pod_has_its_first_attempt_before_any_second():
    state = state_of(*(pod(f"p{number}") for number in range(11)))
    first = [name for second in range(4) for name in ask(state, seconds(second), BLOCKED, at_once=3)]
    assert sorted(first) == sorted(f"p{number}" for number in range(11))
    see(state, *(target.pod for target in state.targets.values()), pod("late"))
    assert ask(state, seconds(1000), BLOCKED, at_once=1) == ["late"]


def test_pod_that_waits_is_not_due_and_then_is():
    state = state_of(pod("web"))
    ask(state, NOW, BLOCKED)
    assert ask(state, seconds(1), BLOCKED) == []
    assert NOW < state.next_look(NOW) < seconds(15)
    assert ask(state, seconds(20), BLOCKED) == ["web"]


def test_pod_under_way_is_not_asked_again():
    state = state_of(pod("web"))
    state.begin(state.due(NOW)[0])
    assert state.due(LATER) == []


def test_terminating_pods_are_never_asked():
    state = state_of(going("going"))
    assert state.due(LATER) == []
    assert state.next_look(NOW) == NEVER


def given_up():
    state = state_of(pod("web"))
    answer = Answer(Verdict.TWO_BUDGETS, "more than one")
    for attempt in range(ATTEMPTS_AGAINST_TWO_BUDGETS):
        assert ask(state, seconds(attempt * 1000), answer) == ["web"]
    return state, seconds(1000 * ATTEMPTS_AGAINST_TWO_BUDGETS)


def budgets(*names):
    return BudgetsFound(tuple(Budget(name, False, 1, 1, True) for name in names))


NOT_KNOWN = BudgetsFound(problem="the budgets cannot be listed")


def test_two_budgets_are_given_up_and_looked_at_instead():
    state, now = given_up()
    for look in range(5):
        (target,) = state.due(now + timedelta(seconds=look * LOOK_AT_BUDGETS))
        assert state.begin(target) is Act.LOOK_AT_BUDGETS
        state.budgets_seen(target, budgets("front", "web"), now + timedelta(seconds=look * LOOK_AT_BUDGETS))
        assert state.due(now + timedelta(seconds=(look + 0.9) * LOOK_AT_BUDGETS)) == []
    (blocker,) = blockers(state)
    assert (blocker.reason, blocker.attempts) == ("two-budgets", ATTEMPTS_AGAINST_TWO_BUDGETS)
    assert blocker.names == ("front", "web")


@pytest.mark.parametrize(
    ("found", "act"),
    [
        (budgets("web"), Act.EVICT),
        (budgets(), Act.EVICT),
        (budgets("front", "web"), Act.LOOK_AT_BUDGETS),
        (NOT_KNOWN, Act.LOOK_AT_BUDGETS),
    ],
)
def test_pod_is_asked_again_once_fewer_than_two_budgets_select_it(found, act):
    state, now = given_up()
    (target,) = state.due(now)
    state.begin(target)
    state.budgets_seen(target, found, now)
    (target,) = state.due(now + timedelta(seconds=LOOK_AT_BUDGETS))
    assert state.begin(target) is act
    assert target.attempts == ATTEMPTS_AGAINST_TWO_BUDGETS + (act is Act.EVICT)


def test_forbidden_is_kept_for_the_result():
    state = state_of(pod("web"))
    ask(state, NOW, Answer(Verdict.FORBIDDEN, "cannot create resource"))
    assert state.forbidden == "cannot create resource"
    assert state.due(LATER) == []


def test_accepted_eviction_without_deletion_is_named_and_asked_again():
    state = state_of(pod("web"))
    ask(state, NOW, ACCEPTED)
    assert reasons(state, seconds(20)) == {"web": "terminating"}
    assert reasons(state, seconds(31)) == {"web": "not-deleted"}
    assert ask(state, seconds(31), ACCEPTED) == ["web"]


def test_since_is_when_the_reason_began():
    state = state_of(pod("web"))
    ask(state, seconds(5), BLOCKED)
    ask(state, seconds(30), BLOCKED)
    (blocker,) = blockers(state)
    assert (blocker.since, blocker.attempts, blocker.names) == (seconds(5), 2, ("web",))


# --- identity ---------------------------------------------------------------------------------------------


def test_pod_of_the_same_name_is_another_pod():
    state = state_of(pod("db-0", "old"))
    ask(state, NOW, BLOCKED)
    see(state, pod("db-0", "new"))
    assert set(state.gone) == {"old"}
    (target,) = state.targets.values()
    assert (target.attempts, target.uid) == (0, "new")


def test_answer_for_a_pod_that_left_meanwhile_is_harmless():
    state = state_of(pod("web"))
    (target,) = state.due(NOW)
    state.begin(target)
    see(state)
    state.answered(target, Answer(Verdict.GONE), obstacle_of(Answer(Verdict.GONE), target.pod), NOW)
    assert (state.targets, set(state.gone)) == ({}, {"u-web"})


def test_nothing_seen_is_not_empty():
    state = DrainState(state_of().request)
    assert not state.seen
    assert state_of().seen


def test_answer_that_comes_after_the_pod_left_still_says_how():
    state = state_of(pod("web"))
    (target,) = state.due(NOW)
    state.begin(target)
    see(state)
    state.answered(target, ACCEPTED, obstacle_of(ACCEPTED, target.pod), NOW)
    assert {record.end for record in state.gone.values()} == {"evicted"}


# --- how a pod ended --------------------------------------------------------------------------------------


def ended(state):
    return {record.name: record.end for record in state.gone.values()}


def test_how_a_pod_ended():
    asked = pod("evicted")
    taken = going("taken")
    resumed = going("resumed")
    resumed["status"]["conditions"] = [{"type": "DisruptionTarget", "reason": "EvictionByEvictionAPI"}]
    state = state_of(asked, pod("job"), taken, resumed)
    for target in state.due(NOW):
        if target.record.name == "evicted":
            state.begin(target)
            state.answered(target, ACCEPTED, obstacle_of(ACCEPTED, asked), NOW)
    see(state, pod("job", phase="Succeeded"))
    assert ended(state) == {
        "evicted": "evicted",
        "job": "completed",
        "taken": "removed",
        "resumed": "evicted",  # by an earlier attempt of this drain
    }
    result = report_of(state, "drained").result
    assert (result.gone, result.evicted, result.completed, result.skipped) == (4, 2, 1, 0)


def test_pod_that_somebody_else_took_did_not_complete():
    state = state_of(pod("db-0", owner="StatefulSet"))
    ask(state, NOW, BLOCKED)
    see(state)  # deleted without a grace period, and made anew elsewhere
    result = report_of(state, "drained").result
    assert ended(state) == {"db-0": "removed"}
    assert (result.gone, result.completed, result.evicted) == (1, 0, 0)


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_phase_is_no_end_while_a_container_runs(phase):
    subject = pod("web", phase=phase)
    subject["status"]["containerStatuses"] = [{"name": "c", "state": {"running": {}}}]
    state = state_of(subject)
    assert state.due(LATER) == []  # an eviction would delete it at once, with its container running
    (blocker,) = blockers(state)
    assert (blocker.reason, blocker.names) == ("not-ended", ("c",))
    see(state, pod("web", phase=phase))
    assert ended(state) == {"web": "completed"}


def test_pod_that_was_given_up_on_a_silent_node_is_still_there():
    lost = going("web", phase="Failed")
    state = state_of(lost, ready="Unknown")
    assert reasons(state) == {"web": "dead-kubelet"}
    state.see_node("True", seconds(5))
    see(state, lost, now=seconds(5))
    assert (set(state.targets), len(state.gone)) == (set(), 1)
    state.see_node("Unknown", seconds(9))
    see(state, lost, now=seconds(9))
    assert (set(state.targets), len(state.gone)) == ({"u-web"}, 0)


def test_losses_are_noted_and_told():
    bare = pod("bare", owner="", spec={"volumes": [{"name": "cache", "emptyDir": {}}]})
    state = state_of(bare)
    ask(state, NOW, ACCEPTED)
    see(state)
    (record,) = state.gone.values()
    assert record.notes == ["bare: nobody makes it anew", "emptyDir volumes lost: cache"]
    message = report_of(state, "drained").result.message
    assert "1 pods lost their emptyDir volumes: blue/bare" in message
    assert "had no controller" in message


def test_pods_of_the_node_are_skipped_and_recorded():
    state = state_of(pod("agent", owner="DaemonSet"), pod("done", phase="Failed"))
    report = report_of(state, "drained")
    assert (report.result.skipped, report.result.gone) == (2, 0)
    assert {record.end for record in report.pods} == {"stays"}


def test_record_is_small_json():
    state = state_of(pod("web"))
    ask(state, NOW, BLOCKED)
    (record,) = report_of(state, "blocked").pods
    assert record.as_json() == {
        "namespace": "blue",
        "name": "web",
        "uid": "u-web",
        "workload": "inference",
        "owner_kind": "Deployment",
        "owner_name": "o",
        "seen": "2026-03-01T10:00:00Z",
        "evictions": 1,
        "answer": "budget: needs 2 healthy pods and has 2",
        "reason": "budget",
    }


# --- finalizers and silent nodes --------------------------------------------------------------------------


def stopped(name, state="terminated"):
    subject = going(name, finalizers=["a.example/flush"])
    subject["metadata"]["deletionGracePeriodSeconds"] = 0
    subject["status"]["containerStatuses"] = [{"name": "c", "state": {state: {"exitCode": 0}}}]
    return subject


@pytest.mark.parametrize(
    ("policy", "ready", "containers", "gone"),
    [
        ("accept_when_stopped", "True", "terminated", True),
        ("accept_when_stopped", "True", "running", False),
        ("accept_when_stopped", "Unknown", "terminated", False),
        ("wait", "True", "terminated", False),
    ],
)
def test_finalizer_counts_as_gone_only_by_policy_and_proof(policy, ready, containers, gone):
    state = state_of(stopped("held", containers), ready=ready, policy=DrainPolicy(finalizers=policy))
    assert (not state.targets) is gone
    if not gone:
        (blocker,) = blockers(state)
        assert (blocker.reason, blocker.names) == ("finalizer", ("a.example/flush",))


def test_node_that_falls_silent_takes_its_proof_back():
    held = stopped("held")
    state = state_of(held, policy=DrainPolicy(finalizers="accept_when_stopped"))
    assert not state.targets
    state.see_node("Unknown", NOW)
    see(state, held)
    assert set(state.targets) == {"u-held"}
    assert not state.gone


@pytest.mark.parametrize(
    ("left", "after", "stuck"),
    [
        (going("a"), 119, False),
        (going("a"), 121, True),
        (pod("a"), 121, False),  # not tried yet
    ],
)
def test_silent_node_ends_a_drain_early(left, after, stuck):
    state = state_of(left, ready="Unknown")
    state.review(seconds(after))
    assert stuck_on_silent_node(state, seconds(after)) is stuck


def test_silence_counts_from_when_the_node_fell_silent():
    state = state_of(going("a"))
    state.see_node("Unknown", seconds(600))
    state.review(seconds(700))
    assert not stuck_on_silent_node(state, seconds(700))
    assert stuck_on_silent_node(state, seconds(721))
    assert reasons(state, seconds(721)) == {"a": "dead-kubelet"}


def test_protected_pod_of_a_silent_node_waits_for_a_person_and_a_wait_goes_on():
    protected = pod("t", annotations={"karpenter.sh/do-not-disrupt": "true"})
    assert stuck_on_silent_node(state_of(protected, ready="Unknown"), seconds(500))
    waiting = state_of(pod("j", owner="Job"), ready="Unknown", policy=with_rule(WAIT))
    assert not stuck_on_silent_node(waiting, seconds(500))


# --- respawns ---------------------------------------------------------------------------------------------


def test_owner_that_ignores_the_block_is_named_and_paced():
    state = state_of(pod("db-0", "g0", owner="StatefulSet"))
    now, waits = NOW, []
    for birth in range(1, 6):
        now += timedelta(minutes=5)
        see(state, pod("db-0", f"g{birth}", owner="StatefulSet"), now=now)
        (target,) = state.targets.values()
        waits.append(max(0.0, (target.due - now).total_seconds()))
        assert (reasons(state, now)["db-0"] == "respawning") is (birth >= RESPAWNS)
    assert waits == [0.0, 2.0, 4.0, 8.0, 16.0]
    (blocker,) = blockers(state)
    assert blocker.names == ("StatefulSet o",)
    assert "StatefulSet o" in blocker.message


def test_several_pods_of_one_owner_that_arrive_once_are_no_respawn():
    state = state_of(*(pod(f"w{number}", owner="Job") for number in range(4)))
    see(state, *(pod(f"x{number}", owner="Job") for number in range(4)), now=seconds(10))
    assert set(reasons(state, seconds(10)).values()) == {"not-tried"}


def test_bare_pod_of_the_same_name_is_its_successor():
    state = state_of(pod("p", "g0", owner=""))
    for birth in range(1, RESPAWNS + 1):
        see(state, pod("p", f"g{birth}", owner=""), now=seconds(100 * birth))
    assert reasons(state, seconds(1000)) == {"p": "respawning"}


def test_emptiness_has_to_last_where_the_next_pod_would_ignore_the_block():
    tolerant = {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "c"}]}
    state = state_of(pod("a", spec=tolerant))
    see(state, now=seconds(5))
    assert state.settled > seconds(5)
    ordinary = state_of(pod("a"))
    see(ordinary, now=seconds(5))
    assert ordinary.settled < NOW


# --- holds ------------------------------------------------------------------------------------------------


def test_protected_pod_is_asked_once_its_annotation_goes():
    state = state_of(pod("training", annotations={"karpenter.sh/do-not-disrupt": "true"}))
    assert ask(state, NOW, BLOCKED) == []
    assert reasons(state) == {"training": "do-not-disrupt"}
    see(state, pod("training"))
    assert ask(state, NOW, BLOCKED) == ["training"]


def test_protection_for_a_time_ends():
    subject = pod("training", annotations={"karpenter.sh/do-not-disrupt": "5m"})
    subject["status"]["startTime"] = "2026-03-01T09:59:00Z"
    state = state_of(subject)
    assert state.next_look(NOW) == seconds(240)
    assert ask(state, seconds(239), BLOCKED) == []
    assert ask(state, seconds(240), BLOCKED) == ["training"]


def test_own_worker_is_never_asked_even_by_order():
    state = state_of(pod("w"), own="u-w", overrides=(order("w", OverrideMethod.EVICT),))
    assert state.due(LATER) == []
    assert reasons(state) == {"w": "own-worker"}


def test_completion_is_waited_for_until_the_rule_ends_from_the_start_of_the_drain():
    state = state_of(pod("job", owner="Job"), pod("web"), policy=with_rule(WAIT))
    assert ask(state, NOW, BLOCKED) == ["web"]
    assert reasons(state)["job"] == "waiting-for-completion"
    resumed = state_of(pod("job", owner="Job"), policy=with_rule(WAIT), started=NOW - timedelta(minutes=59))
    assert ask(resumed, seconds(30), BLOCKED) == []
    assert ask(resumed, seconds(60), BLOCKED) == ["job"]
    assert resumed.targets["u-job"].record.notes == ["did not complete in time"]


def test_job_that_goes_by_itself_completed():
    state = state_of(
        pod("finished", owner="Job"),
        pod("swept", owner="Job"),
        pod("taken", owner="Job"),
        policy=with_rule(WAIT),
    )
    see(
        state,
        pod("finished", owner="Job", phase="Succeeded"),
        pod("swept", owner="Job"),
        going("taken", owner="Job"),
    )
    see(state)
    assert ended(state) == {"finished": "completed", "swept": "completed", "taken": "removed"}


def test_checkpoint_by_annotation_is_asked_once_and_acknowledged():
    state = state_of(pod("job", owner="Job"), policy=with_rule(CHECKPOINT))
    (target,) = state.due(NOW)
    assert state.begin(target) is Act.ASK_CHECKPOINT
    state.checkpoint_asked(target, "asked", 5.0, NOW, reached=True)
    requested = {"gpu-runbooks.dev/checkpoint-requested": state.token}
    see(state, pod("job", owner="Job", annotations=requested), now=seconds(1))
    assert state.due(seconds(600)) == []
    assert reasons(state, seconds(600)) == {"job": "waiting-for-checkpoint"}
    other = requested | {"gpu-runbooks.dev/checkpointed": "of another incident"}
    see(state, pod("job", owner="Job", annotations=other), now=seconds(700))
    assert state.due(seconds(700)) == []
    saved = requested | {"gpu-runbooks.dev/checkpointed": state.token}
    see(state, pod("job", owner="Job", annotations=saved), now=seconds(800))
    assert ask(state, seconds(800), ACCEPTED) == ["job"]
    see(state, now=seconds(801))
    assert ended(state) == {"job": "checkpointed"}
    (record,) = state.gone.values()
    assert (record.asked_to_checkpoint, record.acknowledged) == (NOW, seconds(800))


def test_resumed_drain_asks_for_no_second_checkpoint():
    token = state_of().token
    requested = pod("job", owner="Job", annotations={"gpu-runbooks.dev/checkpoint-requested": token})
    state = state_of(requested, policy=with_rule(CHECKPOINT))
    assert state.due(seconds(600)) == []
    assert [target.uid for target in state.asked_by_annotation()] == ["u-job"]


def test_checkpoint_that_is_not_acknowledged_in_time_is_noted():
    state = state_of(pod("job", owner="Job"), policy=with_rule(CHECKPOINT))
    (target,) = state.due(NOW)
    state.begin(target)
    state.checkpoint_asked(target, "no answer", 5.0, NOW, reached=False)
    assert state.begin(state.due(seconds(6))[0]) is Act.ASK_CHECKPOINT
    state.checkpoint_asked(target, "no answer", 5.0, seconds(6), reached=False)
    (target,) = state.due(seconds(3600))
    assert state.begin(target) is Act.EVICT
    assert target.record.notes == ["checkpoint not acknowledged"]


def test_waits_end_with_the_drain_at_the_latest():
    state = state_of(pod("job", owner="Job"), policy=with_rule(WAIT), deadline=seconds(600))
    assert state.end_of(WAIT) == seconds(600)


# --- orders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "policy"),
    [
        (pod("p", annotations={"karpenter.sh/do-not-disrupt": "true"}), DrainPolicy()),
        (pod("p", owner="Job"), with_rule(WAIT)),
        (pod("p", owner="Job"), with_rule(CHECKPOINT)),
        (pod("p", owner=""), DrainPolicy(bare_pods="block")),
        (pod("p", labels={"app.kubernetes.io/name": "temporal"}), DrainPolicy()),
    ],
)
@pytest.mark.parametrize("method", [OverrideMethod.EVICT, OverrideMethod.DELETE])
def test_order_overrules_every_hold_of_its_pod_only(subject, policy, method):
    twin = subject | {"metadata": subject["metadata"] | {"name": "q", "uid": "u-q"}}
    state = state_of(subject, twin, policy=policy, overrides=(order("p", method),))
    acts = {target.record.name: state.begin(target) for target in state.due(NOW)}
    assert acts.pop("p") is (Act.EVICT if method is OverrideMethod.EVICT else Act.DELETE)
    assert set(acts.values()) <= {Act.ASK_CHECKPOINT}


def test_deletion_is_recorded_with_who_and_why():
    state = state_of(pod("p"), overrides=(order("p", OverrideMethod.DELETE),))
    ask(state, NOW, ACCEPTED)
    see(state)
    report = report_of(state, "drained")
    assert (report.result.deleted, report.result.evicted) == (1, 0)
    assert report.pods[0].deleted_by.model_dump() == {"operator": "ana", "reason": "owner agreed", "at": NOW}


def test_abandoned_pod_counts_no_more_and_is_named():
    state = state_of(pod("p"), overrides=(order("p", OverrideMethod.ABANDON),))
    assert (state.targets, state.due(NOW)) == ({}, [])
    see(state, pod("p", labels={"changed": "yes"}))
    result = report_of(state, "drained").result
    assert (result.abandoned, result.gone) == (1, 0)
    assert "blue/p by order of ana (owner agreed)" in result.message


def test_abandoned_pod_that_leaves_is_gone():
    state = state_of(pod("p"), overrides=(order("p", OverrideMethod.ABANDON),))
    see(state)
    result = report_of(state, "drained").result
    assert (result.abandoned, result.gone) == (0, 1)


# --- only some --------------------------------------------------------------------------------------------


def test_only_the_named_pods_are_restarted_and_none_is_adopted():
    state = state_of(pod("a"), pod("b"), only=("u-a", "u-left-before"))
    assert ask(state, NOW, ACCEPTED) == ["a"]
    see(state, pod("b"), pod("a", "reborn"))
    assert not state.targets
    assert state.missing == 1
    assert report_of(state, "drained").result.gone == 2


def test_bare_pod_is_not_restarted_unless_ordered():
    assert reasons(state_of(pod("a", owner=""), only=("u-a",))) == {"a": "bare-pod"}
    ordered = state_of(pod("a", owner=""), only=("u-a",), overrides=(order("a", OverrideMethod.EVICT),))
    assert ask(ordered, NOW, ACCEPTED) == ["a"]


def test_daemon_set_pod_can_be_restarted_and_a_static_one_cannot():
    assert ask(state_of(pod("a", owner="DaemonSet"), only=("u-a",)), NOW, ACCEPTED) == ["a"]
    static = state_of(pod("a", owner="Node"), only=("u-a",))
    assert static.due(LATER) == []
    assert reasons(static) == {"a": "essential"}


# --- what is told -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        {"tolerations": [None]},
        {"tolerations": 7},
        {"volumes": [{"emptyDir": {}}]},
        {"volumes": ["x", None]},
    ],
)
def test_odd_pod_that_leaves_is_gone_and_the_others_go_on(spec):
    state = state_of(pod("odd", spec=spec), pod("web"))
    see(state, pod("web"), now=seconds(1))
    assert ended(state) == {"odd": "removed"}
    assert state.targets["u-web"].step.act is Act.EVICT


def test_pod_that_becomes_odd_is_unreadable_and_the_others_go_on():
    odd = pod("odd", annotations={"karpenter.sh/do-not-disrupt": "5m"})
    odd["status"]["startTime"] = "9999-12-31T23:59:59Z"
    state = state_of(odd, pod("web"))
    state.review(seconds(1))
    assert reasons(state) == {"odd": "unreadable", "web": "not-tried"}


def test_deletion_at_the_end_of_time_is_waited_for():
    far = pod("far", deletionTimestamp="9999-12-31T23:59:59Z", deletionGracePeriodSeconds=10**11)
    state = state_of(far, pod("web"))
    assert reasons(state) == {"far": "terminating", "web": "not-tried"}
    see(state, far)
    assert grace_ends(state, seconds(7200)) == seconds(7200)
    west = pod("west", deletionTimestamp="9999-12-31T23:59:59-01:00")
    assert reasons(state_of(west)) == {"west": "unreadable"}


@pytest.mark.parametrize(
    "odd",
    [
        {"metadata": {"name": "p", "namespace": "blue", "uid": "u-p", "deletionTimestamp": "yesterday"}},
        {
            "metadata": {
                "name": "p",
                "namespace": "blue",
                "uid": "u-p",
                "finalizers": 7,
                "deletionTimestamp": 8,
            }
        },
        {"metadata": {"name": "p", "uid": "u-p"}},
        {"metadata": {"name": "p", "namespace": "blue", "uid": "u-p", "labels": ["x"]}},
        {
            "metadata": {"name": "p", "namespace": "blue", "uid": "u-p"},
            "status": {"conditions": 7},
            "spec": 1,
        },
    ],
)
def test_odd_pod_counts_as_there_until_it_can_be_read(odd):
    state = state_of(odd, pod("web"))
    see(state, odd | {"status": odd.get("status", {})}, pod("web"))
    assert "u-p" in state.targets
    assert state.targets["u-web"].step.act is Act.EVICT
    see(state, pod("p"))
    assert reasons(state) == {"p": "not-tried"}
    see(state)
    assert not state.targets


def test_blockers_are_few_and_short_and_those_that_need_somebody_come_first():
    many = [going(f"g{number}") for number in range(100)]
    state = state_of(*many, *(pod(f"p{number}") for number in range(30)))
    ask(state, NOW, Answer(Verdict.DENIED, "x" * 100_000, ("guard.example",)))
    blockers = report_of(state, "blocked").result.blockers
    assert len(blockers) == MOST_BLOCKERS
    assert {blocker.reason for blocker in blockers} == {"denied"}
    assert len("".join(blocker.model_dump_json() for blocker in blockers)) < 16 * 1024


def test_result_is_short_whatever_the_server_says():
    state = state_of(pod("web"), pod("b"))
    ask(state, NOW, Answer(Verdict.BUDGET, "x" * 100_000, ("n" * 100_000,)))
    result = report_of(state, "failed", "y" * 100_000).result
    assert len(result.message) == LONGEST_MESSAGE
    assert len(result.model_dump_json()) < 4096


def test_heartbeat_says_what_is_in_the_way():
    state = state_of(pod("web"))
    ask(state, NOW, BLOCKED)
    beat = heartbeat_of(state)
    assert (beat["remaining"], beat["gone"]) == (1, 0)
    (blocker,) = beat["blockers"]
    assert blocker["reason"] == "budget"
    assert blocker["names"] == ["web"]
    assert blocker["since"] == "2026-03-01T10:00:00Z"


def test_objects_that_nobody_can_read_are_told():
    state = state_of()
    state.unreadable = 2
    result = report_of(state, "blocked").result
    assert result.blocked_total == 2
    assert "2 objects" in result.message


def told(pace, changes, last=400):
    """Seconds at which a word was due, for what was in the way, and how it came on, from each second on."""
    words, now, figures = [], frozenset(), 0
    for second in range(last):
        now, figures = changes.get(second, (now, figures))
        if pace.due(now, float(second), figures):
            words.append(second)
    return words


def test_short_trouble_is_not_worth_a_word():
    assert told(ProgressPace(), {0: (frozenset("a"), 0), 2: (frozenset(), 0)}) == []


def test_trouble_is_told_once_and_its_end_too():
    words = told(ProgressPace(), {0: (frozenset("a"), 0), 100: (frozenset(), 0), 200: (frozenset(), 9)})
    assert words == [int(PATIENCE), 100]


@pytest.mark.parametrize("changing", ["what is in the way", "attempts"])
def test_changes_are_told_ever_more_seldom_and_for_ever(changing):
    reasons = changing == "what is in the way"
    changes = {
        second: (frozenset([str(second * reasons)]), second * (not reasons)) for second in range(86_400)
    }
    words = told(ProgressPace(), changes, last=86_400)
    gaps = [later - word for word, later in pairwise(words)]
    assert tuple(gaps[: len(INTERVALS)]) == INTERVALS
    assert set(gaps[len(INTERVALS) :]) == {INTERVALS[-1]}
    assert len([word for word in words if word < 7200]) <= 10
    assert len(words) <= 56


def test_worker_that_takes_over_tells_no_more_often():
    pace = ProgressPace(words=7, clock=0.0)
    words = told(pace, {second: (frozenset("a"), second) for second in range(4000)}, last=4000)
    assert words == [1800, 3600]


# --- grace periods at the deadline ------------------------------------------------------------------------


LATEST = seconds(7200)


@pytest.mark.parametrize(
    ("pods", "ends"),
    [
        ((going("a"),), seconds(40)),  # 30 s of grace, 10 s for the kubelet
        ((going("a"), pod("b", deletionTimestamp="2026-03-01T11:00:00Z")), seconds(3610)),
        ((pod("b", deletionTimestamp="2026-03-01T18:00:00Z"),), LATEST),
        ((going("a"), pod("b")), None),
        ((going("a"), {"metadata": {"name": "odd", "uid": "u"}}), None),
        ((pod("b", deletionTimestamp="2026-03-01T09:00:00Z"),), None),  # it is over
    ],
)
def test_grace_periods_are_waited_for_where_nothing_else_is_left(pods, ends):
    assert grace_ends(state_of(*pods), LATEST) == ends


def test_accepted_eviction_gets_the_time_in_which_its_deletion_is_due():
    state = state_of(pod("a"))
    ask(state, NOW, ACCEPTED)
    assert grace_ends(state, LATEST) == seconds(30)


def test_dead_kubelet_and_unreadable_objects_get_no_more_time():
    assert grace_ends(state_of(going("a"), ready="Unknown"), LATEST) is None
    state = state_of(going("a"))
    state.unreadable = 1
    assert grace_ends(state, LATEST) is None


# --- since, and who it is about ---------------------------------------------------------------------------


def test_since_is_when_it_should_have_gone_and_not_when_we_looked():
    over = pod("over", deletionTimestamp="2026-03-01T09:00:00Z")
    (blocker,) = blockers(state_of(over))
    assert (blocker.reason, blocker.since) == ("not-ended", NOW - timedelta(hours=1))
    state = state_of(over, ready="Unknown")
    state.see_node("Unknown", NOW - timedelta(minutes=7))
    state.review(NOW)
    (blocker,) = blockers(state)
    assert (blocker.reason, blocker.since) == ("dead-kubelet", NOW - timedelta(minutes=7))


def test_own_worker_is_named():
    (blocker,) = blockers(state_of(pod("w"), own="u-w"))
    assert blocker.names == ("blue/w",)


# --- taken over by another worker -------------------------------------------------------------------------


def resumed(state, *pods, **more):
    """The drain of a worker that got what the first last said."""
    return state_of(*pods, beat=heartbeat_of(state, words=3), **more)


def test_attempts_and_since_survive_the_worker():
    state = state_of(pod("web"))
    for attempt in range(4):
        ask(state, seconds(100 * attempt), BLOCKED)
    second = resumed(state, pod("web"))
    ask(second, seconds(1000), BLOCKED)
    (blocker,) = blockers(second)
    assert (blocker.attempts, blocker.since) == (5, NOW)
    ask(second, seconds(1100), Answer(Verdict.THROTTLED))
    ask(second, seconds(2000), BLOCKED)
    (blocker,) = blockers(second)
    assert blocker.since == seconds(2000)  # another reason came between


def test_counts_add_up_whoever_drains():
    def seen(*more):
        return (pod("done", phase="Succeeded"), going("slow"), going("others"), pod("job"), *more)

    pods = [pod(name) for name in ("gone", "done", "slow", "vanishing", "job")]
    state = state_of(*pods, going("others"), pod("old", phase="Failed"))
    for target in state.due(NOW):
        if target.record.name in {"gone", "slow", "vanishing"}:
            state.begin(target)
            state.answered(target, ACCEPTED, obstacle_of(ACCEPTED, target.pod), NOW)
    see(state, *seen(pod("vanishing"), pod("old", phase="Failed")))
    first = report_of(state, "blocked").result
    assert (first.gone, first.evicted, first.completed, first.skipped) == (2, 1, 1, 1)
    second = resumed(state, *seen(pod("old", phase="Failed")))
    result = report_of(second, "blocked").result
    assert (result.gone, result.evicted, result.completed, result.skipped) == (3, 2, 1, 1)
    assert "before this worker took over" in result.message
    see(second, pod("old", phase="Failed"), pod("job", phase="Succeeded"))
    third = resumed(second)
    result = report_of(third, "drained").result
    assert (result.gone, result.evicted, result.completed) == (6, 3, 2)  # `others` was removed
    assert heartbeat_of(third, 3)["memory"]["words"] == 3


def test_restarted_pods_are_counted_once_whoever_restarts_them():
    state = state_of(pod("a"), pod("b"), only=("u-a", "u-b"))
    ask(state, NOW, ACCEPTED)
    see(state, pod("b"))
    second = resumed(state, pod("b"), only=("u-a", "u-b"))
    see(second)
    result = report_of(second, "drained").result
    assert (result.gone, result.evicted) == (2, 2)


def test_checkpoint_that_was_acknowledged_is_not_asked_for_again():
    state = state_of(pod("job", owner="Job"), policy=with_rule(CHECKPOINT))
    (target,) = state.due(NOW)
    state.begin(target)
    state.checkpoint_done(target, NOW)
    second = resumed(state, pod("job", owner="Job"), policy=with_rule(CHECKPOINT))
    assert second.begin(second.due(NOW)[0]) is Act.EVICT


def test_worker_that_dies_before_it_saw_anything_hands_on_what_it_got():
    state = state_of(pod("a"), pod("web"))
    ask(state, NOW, BLOCKED)
    see(state, pod("web"))
    blind = DrainState(state.request, "", remembered(heartbeat_of(state, 3)))
    assert heartbeat_of(blind, 3)["memory"] == heartbeat_of(state, 3)["memory"]


@pytest.mark.parametrize(
    "beat", [None, 7, "x", [], {}, {"memory": 7}, {"memory": {"pods": {"u": {"since": "x"}}}}]
)
def test_details_that_cannot_be_read_are_no_memory(beat):
    assert report_of(state_of(pod("web"), beat=beat), "blocked").result.gone == 0


def test_memory_stays_small():
    state = state_of(*(pod(f"p{number}", f"{number:036}") for number in range(250)))
    ask(state, NOW, BLOCKED)
    memory = heartbeat_of(state)["memory"]
    assert len(memory["pods"]) == MOST_PODS
    assert len(str(memory)) < 8 * 1024
