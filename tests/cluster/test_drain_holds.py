"""What holds a pod on a draining node, and what orders do about it. Without a cluster."""

from datetime import timedelta

import pytest
from cluster.drain_states import (
    ACCEPTED,
    BLOCKED,
    CHECKPOINT,
    LATER,
    NOW,
    WAIT,
    ask,
    ended,
    going,
    order,
    pod,
    reasons,
    seconds,
    see,
    state_of,
    with_rule,
)

from gpu_runbooks.activities.draining.lineage import RESPAWNS
from gpu_runbooks.activities.draining.outlook import blockers, stuck_on_silent_node
from gpu_runbooks.activities.draining.report import report_of
from gpu_runbooks.activities.draining.target import Act
from gpu_runbooks.activities.model.drain import (
    DrainPolicy,
    OverrideMethod,
)

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


def test_a_drain_of_one_gpu_is_a_drain_of_the_node_for_its_pods_alone():
    """A bare pod goes by policy, one of a DaemonSet stays, and pods that are not named are not looked at."""
    pods = (pod("a", owner=""), pod("b"), pod("c", owner="DaemonSet"))
    state = state_of(*pods, only=("u-a", "u-c"))
    assert ask(state, NOW, ACCEPTED) == ["a"]


def test_bare_pod_is_not_restarted_unless_ordered():
    assert reasons(state_of(pod("a", owner=""), only=("u-a",), restart=True)) == {"a": "bare-pod"}
    ordered = state_of(
        pod("a", owner=""), only=("u-a",), restart=True, overrides=(order("a", OverrideMethod.EVICT),)
    )
    assert ask(ordered, NOW, ACCEPTED) == ["a"]


def test_daemon_set_pod_can_be_restarted_and_a_static_one_cannot():
    assert ask(state_of(pod("a", owner="DaemonSet"), only=("u-a",), restart=True), NOW, ACCEPTED) == ["a"]
    static = state_of(pod("a", owner="Node"), only=("u-a",), restart=True)
    assert static.due(LATER) == []
    assert reasons(static) == {"a": "essential"}
