"""What a drain tells, and hands to the worker that takes it over. Without a cluster."""

from datetime import timedelta
from itertools import pairwise

import pytest
from cluster.drain_states import (
    ACCEPTED,
    BLOCKED,
    CHECKPOINT,
    NOW,
    ask,
    ended,
    going,
    pod,
    reasons,
    seconds,
    see,
    state_of,
    with_rule,
)

from gpu_runbooks.activities.draining.eviction import (
    Answer,
    Verdict,
)
from gpu_runbooks.activities.draining.memory import MOST_PODS, remembered
from gpu_runbooks.activities.draining.obstacles import obstacle_of
from gpu_runbooks.activities.draining.outlook import MOST_BLOCKERS, blockers, grace_ends
from gpu_runbooks.activities.draining.progress import INTERVALS, PATIENCE, ProgressPace
from gpu_runbooks.activities.draining.report import LONGEST_MESSAGE, heartbeat_of, report_of
from gpu_runbooks.activities.draining.state import DrainState
from gpu_runbooks.activities.draining.target import Act

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
