"""The order of evictions and the reasons for what is left, without a cluster."""

import math
from datetime import UTC, datetime

from gpu_runbooks.activities.drain_state import MOST_BLOCKERS, DrainState
from gpu_runbooks.activities.eviction import ATTEMPTS_AGAINST_TWO_BUDGETS, Answer, Verdict

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
BLOCKED = Answer(Verdict.BUDGET, "needs 2 healthy pods and has 2")


def pod(name, uid="", **metadata):
    base = {"name": name, "namespace": "blue", "uid": uid or f"u-{name}"}
    return {"metadata": base | metadata, "spec": {}, "status": {"phase": "Running"}}


def state_of(*pods):
    state = DrainState()
    state.see(pods, NOW)
    return state


def ask(state, clock, answer, budgets=(), at_once=math.inf):
    """One round: evict what is due, at most so many, and get one answer for all."""
    asked = state.due(clock)[: int(min(at_once, 1000))]
    for target in asked:
        target.asking = True
        target.attempts += 1
    for target in asked:
        state.answered(target, answer, budgets, clock)
    return [target.pod["metadata"]["name"] for target in asked]


def test_every_pod_has_its_first_attempt_before_any_second():
    state = state_of(*(pod(f"p{number}") for number in range(11)))
    first = [name for clock in range(4) for name in ask(state, clock, BLOCKED, at_once=3)]
    assert sorted(first) == sorted(f"p{number}" for number in range(11))
    state.see([*(target.pod for target in state.targets.values()), pod("late")], NOW)
    assert ask(state, clock=1000.0, answer=BLOCKED, at_once=1) == ["late"]


def test_pod_that_waits_is_not_due_and_then_is():
    state = state_of(pod("web"))
    ask(state, 0.0, BLOCKED)
    assert ask(state, 1.0, BLOCKED) == []
    assert 0 < state.seconds_to_next(1.0) < 15
    assert ask(state, 20.0, BLOCKED) == ["web"]


def test_pod_under_way_is_not_asked_again():
    state = state_of(pod("web"))
    (target,) = state.due(0.0)
    target.asking = True
    assert state.due(1e9) == []


def test_terminating_and_protected_pods_are_never_asked():
    state = state_of(
        pod("going", deletionTimestamp="2026-03-01T10:00:00Z"),
        pod("training", annotations={"karpenter.sh/do-not-disrupt": "true"}),
    )
    assert state.due(1e9) == []
    assert state.seconds_to_next(0.0) == math.inf
    assert len(state.blockers("True", NOW)) == 2


def test_protected_pod_is_asked_once_its_annotation_goes():
    state = state_of(pod("training", annotations={"karpenter.sh/do-not-disrupt": "true"}))
    state.see([pod("training")], NOW)
    assert ask(state, 0.0, BLOCKED) == ["training"]


def test_pod_of_the_same_name_is_another_pod():
    state = state_of(pod("db-0", "old"))
    ask(state, 0.0, BLOCKED)
    state.see([pod("db-0", "new")], NOW)
    assert state.gone == {"old"}
    (target,) = state.targets.values()
    assert (target.attempts, target.pod["metadata"]["uid"]) == (0, "new")


def test_answer_for_a_pod_that_left_meanwhile_is_harmless():
    state = state_of(pod("web"))
    (target,) = state.due(0.0)
    state.see([], NOW)
    state.answered(target, Answer(Verdict.GONE), (), 0.0)
    assert (state.targets, state.gone) == ({}, {"u-web"})


def test_target_that_finishes_is_gone():
    state = state_of(pod("job"))
    finished = pod("job")
    finished["status"]["phase"] = "Succeeded"
    state.see([finished], NOW)
    assert (state.targets, state.gone, state.skipped) == ({}, {"u-job"}, set())


def test_nothing_seen_is_not_empty():
    assert not DrainState().seen
    assert state_of().seen


def test_two_budgets_are_named_and_given_up():
    state = state_of(pod("web"))
    for attempt in range(ATTEMPTS_AGAINST_TWO_BUDGETS):
        ask(state, attempt * 1e6, Answer(Verdict.TWO_BUDGETS, "more than one"), ("front", "web"))
    assert state.due(1e12) == []
    (blocker,) = state.blockers("True", NOW)
    assert "(front, web)" in blocker.message
    assert blocker.attempts == ATTEMPTS_AGAINST_TWO_BUDGETS


def test_forbidden_is_kept_for_the_result():
    state = state_of(pod("web"))
    ask(state, 0.0, Answer(Verdict.FORBIDDEN, "cannot create resource"))
    assert state.forbidden == "cannot create resource"


def test_blockers_are_few_and_short():
    state = state_of(*(pod(f"p{number}") for number in range(110)))
    ask(state, 0.0, Answer(Verdict.REFUSED, "x" * 100_000))
    blockers = state.blockers("True", NOW)
    assert len(blockers) == MOST_BLOCKERS
    assert len("".join(blocker.model_dump_json() for blocker in blockers)) < 16 * 1024
