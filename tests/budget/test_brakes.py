"""Halts, brakes, the pace after a storm, and limits by people, as tables."""

from datetime import timedelta

import pytest
from budget.slots import T0, ask, nodes, pool, round_of, waiting
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities.model.fleet import Brake, BudgetOpened, CaughtUp, Halt, PoolUnhealthy, StormRule
from gpu_runbooks.workflows.budget_details import details
from gpu_runbooks.workflows.budget_orders import HaltOrder, LimitOrder, StormOrder, refuse_more
from gpu_runbooks.workflows.heard import Heard
from gpu_runbooks.workflows.operator import Signed, read
from gpu_runbooks.workflows.storms import Fleet

MINUTE = timedelta(minutes=1)
STOP = Brake(mode="stop", why="storm s1", storm="s1")
PACE = Brake(mode="pace", why="after storm s1", storm="s1", every=2 * MINUTE)
WHO = {"operator": "ana", "reason": "network work"}


def halt(minutes: int = 60) -> Halt:
    return Halt(operator="ana", reason="network work", since=T0, until=T0 + minutes * MINUTE)


def told(slots, now=T0) -> list[tuple[str, str]]:
    holders, why = slots.untold(now), slots.stopped(now)
    for holder in holders:
        slots.told(holder, why)
    return [(holder.node, why) for holder in holders]


@pytest.mark.parametrize("by", ["halt", "brake"])
def test_a_stop_gives_nothing_and_is_told_to_holders_once_and_so_is_its_end(by):
    slots = waiting(ask("a", max_unavailable=1), ask("b", max_unavailable=1))
    round_of(slots)
    assert told(slots) == [("a", "")]
    if by == "halt":
        slots.halts = [halt()]
    else:
        slots.hear(STOP)
    slots.give_up(ask("none"), T0)
    assert round_of(slots) == []
    [(node, why)] = told(slots)
    assert node == "a"
    assert ("network work" if by == "halt" else "storm s1") in why
    assert told(slots) == []
    slots.request(ask("a"))
    assert told(slots) == [("a", why)]  # it asks again: the stop, not the grant
    slots.hear(Brake())
    slots.halts = []
    assert told(slots) == [("a", "")]


def test_a_halt_ends_by_itself():
    slots = waiting(ask("a"))
    slots.halts = [halt(60)]
    assert slots.next_change(T0) == T0 + 60 * MINUTE
    assert round_of(slots, now=T0 + 59 * MINUTE) == []
    assert round_of(slots, now=T0 + 60 * MINUTE) == ["a"]
    assert (slots.halts, slots.next_change(T0)) == ([], None)
    assert "the halt of ana is over" in slots.notes[-1]


def test_a_stop_between_the_two_looks_gives_nothing():
    slots = waiting(ask("a"))
    slots.grant(pool(), T0)
    slots.hear(STOP)
    assert slots.confirm(pool(), T0) == []
    assert nodes(slots.waiters) == ["a"]


def test_after_a_storm_one_is_tried_then_one_in_each_interval_and_the_guard_hears_of_the_end():
    slots = waiting(*(ask(name, max_unavailable=9) for name in "abcd"))
    slots.for_guard(T0)
    slots.hear(STOP)
    slots.hear(PACE)
    assert round_of(slots) == ["a"]
    assert round_of(slots, now=T0 + 60 * MINUTE) == []
    assert "is the first" in slots.why
    back = T0 + 61 * MINUTE
    slots.give_up(ask("a"), back)
    assert round_of(slots, now=back) == []
    assert slots.next_change(back) == back + 2 * MINUTE
    assert round_of(slots, now=back + 2 * MINUTE) == ["b"]
    assert round_of(slots, now=back + 3 * MINUTE) == []
    assert round_of(slots, now=back + 4 * MINUTE) == ["c"]
    assert not [word for word in slots.for_guard(back) if isinstance(word, CaughtUp)]
    assert round_of(slots, now=back + 6 * MINUTE) == ["d"]
    assert slots.for_guard(T0)[-1] == CaughtUp(pool="p5", storm="s1")
    assert slots.brake == Brake()
    assert slots.for_guard(T0) == []


def test_the_same_brake_again_begins_no_new_trial_and_another_storm_does():
    slots = waiting(*(ask(name, max_unavailable=9) for name in "abc"))
    slots.hear(PACE)
    assert round_of(slots) == ["a"]
    slots.hear(PACE)
    assert round_of(slots) == []
    slots.hear(PACE.model_copy(update={"storm": "s2"}))
    assert round_of(slots) == ["b"]


def test_the_pace_permits_a_pool_that_is_still_ill():
    """Nothing would ever get better otherwise."""
    ill = StormRule(unhealthy_percent=10, unhealthy_nodes=2)
    slots = waiting(*(ask(name, max_unavailable=9, storm=ill) for name in "abc"))
    assert round_of(slots, pool(10)) == []
    slots.hear(STOP)
    slots.hear(PACE)
    assert round_of(slots, pool(10)) == ["a"]


def test_a_budget_tells_the_guard_that_it_is_there_and_again_while_it_is_in_use():
    slots = waiting(ask("a"))
    assert slots.for_guard(T0) == [BudgetOpened(pool="p5")]
    assert slots.for_guard(T0 + 9 * MINUTE) == []
    assert slots.for_guard(T0 + 10 * MINUTE) == [BudgetOpened(pool="p5")]
    slots.give_up(ask("a"), T0)
    assert slots.for_guard(T0 + 60 * MINUTE) == []
    slots.hear(STOP)
    assert slots.for_guard(T0 + 60 * MINUTE) == [BudgetOpened(pool="p5")]


def test_a_limit_by_a_person_counts_for_its_time():
    slots = waiting(*(ask(name, max_unavailable=1) for name in "abcd"))
    slots.override = read(LimitOrder, {**WHO, "percent": 3, "for": "1h"}).limit(T0)
    assert round_of(slots, pool(100)) == ["a", "b", "c"]
    assert "Limit 3 %" in details(slots, T0)
    assert "by ana: network work" in details(slots, T0)
    slots.give_up(ask("a"), T0)
    slots.give_up(ask("b"), T0)
    assert round_of(slots, pool(100), T0 + 60 * MINUTE) == []
    assert slots.override is None


def test_the_details_say_who_holds_who_waits_and_why():
    slots = waiting(ask("a", max_unavailable=1), ask("b", max_unavailable=1))
    round_of(slots)
    shown = details(slots, T0)
    assert "- a ([incident](node/test/a))" in shown
    assert "Waiting\n- b" in shown
    assert "Nobody else gets a slot now" in shown
    slots.halts = [halt()]
    shown = details(slots, T0)
    assert "**No disruption**: halted by ana until 2026-01-01 01:00 UTC: network work" in shown
    assert "--name resume" in shown


@pytest.mark.parametrize(
    ("kind", "raw", "wrong"),
    [
        (HaltOrder, None, "one JSON object"),
        (HaltOrder, {}, "field 'operator'"),
        (HaltOrder, {**WHO}, "field 'for': field required"),
        (HaltOrder, {**WHO, "for": "2 hours"}, "write a duration with units"),
        (HaltOrder, {**WHO, "for": "31d"}, "from 1m to 30d"),
        (HaltOrder, {**WHO, "for": "0s"}, "from 1m to 30d"),
        (HaltOrder, {**WHO, "for": 7200}, "write a duration with units"),
        (HaltOrder, {**WHO, "for": "2h", "untill": "x"}, "'untill': is not known"),
        (HaltOrder, {"operator": " ", "reason": "x", "for": "2h"}, "field 'operator': must not be empty"),
        (Signed, {"operator": "ana"}, "field 'reason'"),
        (Signed, {**WHO, "step": "reboot/2"}, "'step': is not known; there are operator, reason"),
        (HaltOrder, {**WHO, "for": "2h", "incident": "r1"}, "'incident': is not known"),
        (LimitOrder, {**WHO, "for": "2h", "percent": 5, "step": "x"}, "'step': is not known"),
        (StormOrder, {**WHO, "storm": "s", "incident": "r1"}, "'incident': is not known"),
        (StormOrder, WHO, '"storm": "id, see the query state"'),
        (LimitOrder, {**WHO, "for": "2h"}, "exactly one of max_unavailable and percent"),
        (LimitOrder, {**WHO, "for": "2h", "max_unavailable": 1, "percent": 5}, "exactly one of"),
        (LimitOrder, {**WHO, "for": "2h", "max_unavailable": 0}, "greater than or equal to 1"),
        (LimitOrder, {**WHO, "for": "2h", "percent": 101}, "less than or equal to 100"),
        (LimitOrder, {**WHO, "for": "2h", "max_unavailable": "2"}, "valid integer"),
        (LimitOrder, {**WHO, "for": "2h", "percent": True}, "valid integer"),
    ],
)
def test_an_order_with_a_slip_is_refused_with_words(kind, raw, wrong):
    with pytest.raises(ApplicationError, match="bad argument") as refused:
        read(kind, raw)
    assert wrong in refused.value.message
    assert refused.value.type == "BadInput"


@pytest.mark.parametrize(("minutes", "granted"), [(0, ["a"]), (59, ["a"]), (60, []), (90, [])], ids=str)
def test_a_pool_that_a_person_answers_for_is_served_for_that_time_however_ill_it_is(minutes, granted):
    ill = StormRule(unhealthy_percent=10, unhealthy_nodes=2)
    slots = waiting(*(ask(name, max_unavailable=1, storm=ill) for name in "abc"))
    guard = Fleet(cluster="test")
    guard.open_budget("p5", T0)
    assert round_of(slots, pool(10)) == []
    for word in slots.for_guard(T0):
        if isinstance(word, PoolUnhealthy):
            guard.see_pool(word, T0)
    slots.hear(guard.brake("p5"))
    guard.end_storm(guard.storms[0], "ended by ana", T0)
    slots.hear(guard.brake("p5"))
    assert round_of(slots, pool(10), T0 + minutes * MINUTE) == granted


@pytest.mark.parametrize("order", [(60, 1), (1, 60), (60, 60, 1)])
def test_a_second_halt_ends_no_longer_one_before_its_time(order):
    slots = waiting(ask("a"))
    slots.halts = [halt(minutes) for minutes in order]
    assert slots.next_change(T0) == T0 + MINUTE
    assert round_of(slots, now=T0 + MINUTE) == []
    assert "network work" in slots.stopped(T0 + MINUTE)
    assert slots.next_change(T0 + MINUTE) == T0 + 60 * MINUTE
    assert round_of(slots, now=T0 + 60 * MINUTE) == ["a"]


def test_an_order_is_signed_with_the_identity_that_the_server_saw_and_no_other_is():
    """A name that an operator gives may be part of another one's."""
    slots = waiting(ask("a"))
    slots.halts = [halt(), halt().model_copy(update={"operator": "anabel"})]
    for operator in ("anabel", "ana"):
        slots.note(T0, f"halt by {operator}: network work by ana")
    slots.sign(Heard(update="u", operator="ana", at=T0, note="halt by ana: network work by ana"), "me@host")
    assert [each.who() for each in slots.halts] == ["ana (identity me@host)", "anabel"]
    assert [note.partition(" UTC ")[2] for note in slots.notes] == [
        "halt by anabel: network work by ana",
        "halt by ana (identity me@host): network work by ana",
    ]


def test_one_halt_too_many_is_refused_with_what_ends_them():
    refuse_more([halt()] * 9)
    with pytest.raises(ApplicationError, match="10 halts stand already: resume ends them"):
        refuse_more([halt()] * 10)
