"""The state machine of a drain: order, pace, identity, ends. Without a cluster."""

from datetime import timedelta

import pytest
from cluster.drain_states import (
    ACCEPTED,
    BLOCKED,
    LATER,
    NOW,
    ask,
    ended,
    going,
    pod,
    reasons,
    seconds,
    see,
    state_of,
)

from gpu_runbooks.activities.draining.budgets import Budget, BudgetsFound
from gpu_runbooks.activities.draining.eviction import (
    ATTEMPTS_AGAINST_TWO_BUDGETS,
    LOOK_AT_BUDGETS,
    Answer,
    Verdict,
)
from gpu_runbooks.activities.draining.obstacles import obstacle_of
from gpu_runbooks.activities.draining.outlook import blockers
from gpu_runbooks.activities.draining.report import report_of
from gpu_runbooks.activities.draining.state import DrainState
from gpu_runbooks.activities.draining.target import NEVER, Act

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
