"""What is to be handed on about a node, by what it showed and what became of its faults."""

from datetime import UTC, datetime, timedelta

import pytest

from gpu_runbooks.activities.model.fault import ConditionCleared, Fault, FaultSource
from gpu_runbooks.workers.intake.bad_nodes import Bad
from gpu_runbooks.workers.intake.condition_deliveries import seconds_held
from gpu_runbooks.workers.intake.condition_faults import Look
from gpu_runbooks.workflows.policy.answers import answer_to
from gpu_runbooks.workflows.policy.policy import Policy

CREATED = datetime(2026, 3, 1, 8, tzinfo=UTC)
HOUR = 3600.0


def fault(name: str, *, code: str = "KernelDeadlock", status: str = "True", minutes: float = 0) -> Fault:
    seen = CREATED + timedelta(minutes=minutes)
    return Fault(
        source=FaultSource.CONDITION,
        code=code,
        status=status,
        reason="TaskHung",
        summary="",
        first_seen=seen,
        last_seen=seen,
        fingerprint=name,
        reporter="test",
    )


def cleared(code: str = "KernelDeadlock", minutes: float = 5) -> ConditionCleared:
    return ConditionCleared(type=code, uid="u1", at=CREATED + timedelta(minutes=minutes))


@pytest.fixture
def bad() -> Bad:
    return Bad("gpu-a1", "u1", CREATED)


def answer(bad: Bad, status: str, *, reason: str = "", now: float = 0.0) -> Fault:
    """Hand on what is due, with this outcome."""
    due = bad.due(now)
    assert due is not None
    bad.take_answer(due, status, reason, now + HOUR)
    return due


# --- what becomes good while it is handed on -----------------------------------------------------------


def test_what_became_good_while_it_was_handed_on_is_told(bad: Bad) -> None:
    bad.see(Look((fault("first"),)), "")
    due = bad.due(0)
    assert due is not None
    bad.delivering = due.code
    bad.see(Look(cleared=(cleared(),)), "")
    bad.delivering = ""
    bad.take_answer(due, "started", "", HOUR)
    assert list(bad.cleared) == ["KernelDeadlock"]
    assert bad.due(HOUR) is None


def test_what_was_good_only_for_a_moment_is_told_too(bad: Bad) -> None:
    """Otherwise the incident counts the toleration of the second from the onset of the first."""
    bad.see(Look((fault("first"),)), "")
    answer(bad, "started")
    bad.see(Look(cleared=(cleared(),)), "")
    bad.see(Look((fault("second", minutes=6),)), "")
    assert list(bad.cleared) == ["KernelDeadlock"]
    assert answer(bad, "joined").fingerprint == "second"
    bad.cleared.clear()  # told
    bad.see(Look(cleared=(cleared(minutes=9),)), "")
    assert bad.cleared["KernelDeadlock"].at == CREATED + timedelta(minutes=9)


def test_what_no_incident_knows_is_not_told(bad: Bad) -> None:
    bad.see(Look((fault("first"),)), "")
    answer(bad, "refused", reason="no pool")
    bad.see(Look(cleared=(cleared(),)), "")
    assert bad.cleared == {}


# --- refusals --------------------------------------------------------------------------------------------


def test_what_was_refused_is_asked_again_when_the_node_is_another_to_policy(bad: Bad) -> None:
    look = Look((fault("first"),))
    bad.see(look, "without labels")
    answer(bad, "refused", reason="no pool")
    bad.see(look, "without labels")
    assert bad.due(1) is None
    bad.see(look, "with labels")
    assert bad.due(1) == look.faults[0]
    assert bad.refusal_of(look.faults[0]) == "no pool"
    answer(bad, "started", now=1)
    assert bad.refusal_of(look.faults[0]) == ""
    bad.see(look, "with other labels")
    assert bad.due(2) is None


def test_what_was_ignored_is_asked_again_when_the_owners_take_their_label_off(bad: Bad) -> None:
    look = Look((fault("first"),))
    bad.see(look, "opted out")
    answer(bad, "ignored", reason="the node's owners want nothing done to it")
    bad.see(look, "opted out")
    assert bad.due(1) is None
    bad.see(look, "without that label")
    assert bad.due(1) == look.faults[0]


def test_what_was_refused_is_known_as_refused_when_its_time_is_rewritten(bad: Bad) -> None:
    bad.see(Look((fault("first"),)), "")
    answer(bad, "refused", reason="no pool")
    bad.see(Look((fault("first"),), anew={"first": fault("second", minutes=60)}), "")
    due = bad.due(0)
    assert due is not None
    assert bad.refusal_of(due) == "no pool"


def test_what_was_refused_is_asked_again_in_time(bad: Bad) -> None:
    bad.see(Look((fault("first"),)), "")
    answer(bad, "refused", reason="no pool")
    assert bad.seconds_until_due(0) == HOUR


# --- rewritten times -------------------------------------------------------------------------------------


def rewritten() -> Look:
    return Look((fault("first"),), anew={"first": fault("second", minutes=60)})


def test_a_rewritten_time_is_news_once_the_incident_is_over(bad: Bad) -> None:
    bad.see(Look((fault("first"),)), "")
    answer(bad, "started")
    bad.see(rewritten(), "")
    assert answer(bad, "ignored").fingerprint == "first"
    follower = answer(bad, "started")
    assert (follower.fingerprint, follower.first_seen) == ("second", CREATED + timedelta(minutes=60))
    for look in (rewritten(), Look((fault("first"),))):  # as it is, and rewritten once more
        bad.see(look, "")
        assert bad.due(1) is None
        assert list(bad.faults) == ["second"]


@pytest.mark.parametrize("status", ["started", "joined", "duplicate"])
def test_a_rewritten_time_is_no_news_to_an_open_incident(bad: Bad, status: str) -> None:
    bad.see(rewritten(), "")
    answer(bad, status)
    bad.see(rewritten(), "")
    assert bad.due(1) is None
    assert answer(bad, "ignored", now=HOUR).fingerprint == "first"
    assert bad.due(HOUR) is None


def test_a_detector_that_rewrites_its_times_is_no_news(bad: Bad) -> None:
    bad.see(rewritten(), "")
    bad.see(Look((fault("first"),)), "")
    answer(bad, "ignored")
    assert bad.due(0) is None


# --- nodes that boot -------------------------------------------------------------------------------------


def test_a_node_that_boots_is_held_back_for_half_of_what_is_tolerated(bad: Bad) -> None:
    ready = fault("boots", code="Ready", status="False")
    policy = Policy.model_validate(
        {
            "mode": "enforce",
            "pools": [{"name": "p5", "selector": {"pool": "p5"}, "budget": {"max_unavailable": 1}}],
            "validation": {"test_pod": {"image": "gpu-load-test", "command": ["gpu-load-test"]}},
        }
    )
    half = answer_to(policy, ready).toleration / 2
    assert half > timedelta(0)
    assert seconds_held(ready, CREATED, policy, CREATED) == half.total_seconds()
    assert seconds_held(ready, CREATED, policy, CREATED + half) == 0
    assert seconds_held(ready, CREATED + timedelta(days=1), policy, CREATED) == 0

    bad.see(Look((ready, fault("other"))), "")
    bad.held = {"boots": 60.0}
    assert answer(bad, "started").fingerprint == "other"
    assert (bad.due(59), bad.seconds_until_due(59)) == (None, 1.0)
    assert bad.due(60) == ready
