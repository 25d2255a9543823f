"""Who gets a slot, as tables: order, what counts as unavailable, percent, and what goes away."""

import json
from datetime import timedelta
from hashlib import sha256
from uuid import UUID

import pytest
from budget.slots import T0, ask, bad, nodes, pool, round_of, waiting

from gpu_runbooks.activities.kubernetes.listing import Listing
from gpu_runbooks.activities.model.fleet import StormRule
from gpu_runbooks.activities.model.slot import ObservePool
from gpu_runbooks.activities.names import digest
from gpu_runbooks.activities.nodes.pool import pool_seen
from gpu_runbooks.workflows.slots import REPLACED_WITHIN, Slots, packed, read_request, unpacked


def test_the_most_severe_comes_first_then_the_oldest_then_who_asked_first():
    slots = waiting(
        ask("young", age=1),
        ask("old", age=9),
        ask("same", age=9),
        ask("worst", severity=5),
        ask("mild", severity=1),
    )
    slots.request(ask("young", age=1))
    slots.request(ask("newest", severity=1, age=-1, max_unavailable=4))
    assert round_of(slots) == ["worst", "old", "same", "young"]
    assert nodes(slots.waiters) == ["mild", "newest"]


def test_who_has_no_age_comes_last():
    slots = waiting(ask("a").model_copy(update={"since": None}), ask("b", max_unavailable=1))
    assert round_of(slots) == ["b"]


def test_a_worse_fault_moves_a_waiter_up():
    slots = waiting(ask("a", age=5), ask("b", max_unavailable=1))
    slots.request(ask("b", severity=5, max_unavailable=1))
    assert round_of(slots) == ["b"]


def test_asking_twice_gives_one_slot_and_returning_twice_frees_one():
    slots = waiting(ask("a"), ask("a"), ask("b"), ask("c"))
    assert round_of(slots) == ["a", "b"]
    slots.request(ask("a"))
    assert nodes(slots.waiters) == ["c"]
    slots.give_up(ask("a"), T0)
    slots.give_up(ask("a"), T0)
    assert round_of(slots) == ["c"]
    assert round_of(slots) == []


def test_a_withdrawn_request_is_not_granted_later():
    slots = waiting(ask("a", max_unavailable=1), ask("b", max_unavailable=1))
    assert round_of(slots) == ["a"]
    slots.give_up(ask("b"), T0)
    slots.give_up(ask("a"), T0)
    assert round_of(slots) == []


def test_an_older_run_of_the_same_node_does_not_return_the_slot_of_the_newer():
    slots = waiting(ask("a", run="new"))
    round_of(slots)
    slots.give_up(ask("a", run="old"), T0)
    assert slots.holds(ask("a", run="new"))


def test_a_new_run_gets_its_slot_although_the_one_of_the_dead_run_is_not_swept_yet():
    slots = waiting(ask("a", run="dead", max_unavailable=1))
    round_of(slots)
    slots.request(ask("a", run="new", max_unavailable=1))
    slots.request(ask("b", max_unavailable=1))
    assert nodes(slots.waiters) == ["a", "b"]
    assert round_of(slots) == ["a"]  # the same node: nothing more is disrupted


@pytest.mark.parametrize(
    ("budget", "seen", "granted"),
    [
        ({"max_unavailable": 2}, pool(), 2),
        ({"max_unavailable": 2}, pool(100, bad("x", cordoned=True)), 1),
        ({"max_unavailable": 2}, pool(100, bad("x", ready=False)), 1),
        ({"max_unavailable": 2}, pool(100, bad("x", ours=True)), 1),
        ({"max_unavailable": 2}, pool(100, bad("x", ready=False, cordoned=True, ours=True)), 1),
        ({"max_unavailable": 2}, pool(100, bad("x", cordoned=True), bad("y", ready=False)), 0),
        ({"max_unavailable": 2}, pool(100, bad("b", ready=False), bad("c", cordoned=True, ours=True)), 2),
        ({"max_unavailable": 2}, pool(100, unlisted=1), 1),
        ({"max_unavailable": 2}, pool(100, unlisted=7), 0),
        ({"percent": 10}, pool(20), 2),
        ({"percent": 10}, pool(29), 2),
        ({"percent": 10}, pool(30), 3),
        ({"percent": 10}, pool(9), 0),
        ({"percent": 100}, pool(3), 3),
        ({"percent": 33}, pool(3), 0),
        ({"percent": 34}, pool(3), 1),
        ({"percent": 10}, pool(0), 0),
    ],
)
def test_what_others_took_out_counts_and_who_waits_does_not(budget, seen, granted):
    slots = waiting(*(ask(name, **budget) for name in "abc"))
    assert len(round_of(slots, seen)) == granted
    assert nodes(slots.waiters) == list("abc")[granted:]


def test_a_percent_that_gives_no_node_says_so():
    slots = waiting(ask("a", percent=10))
    assert round_of(slots, pool(9)) == []
    assert "10 % of 9 nodes is less than one node" in slots.why
    assert "set_limit" in slots.why


def test_a_full_pool_names_the_nodes_that_have_no_slot():
    slots = waiting(ask("a"), ask("b"))
    assert round_of(slots, pool(100, bad("x", cordoned=True), bad("y", ready=False))) == []
    assert (
        slots.why
        == "2 of at most 2 nodes are unavailable, 0 of them with a slot; unavailable without a slot: x, y"
    )


def test_the_successor_that_an_incident_marked_is_that_incidents_node():
    slots = waiting(ask("a"), ask("b"))
    round_of(slots, pool(10))
    slots.request(ask("c", max_unavailable=3))
    successor = bad("a2", cordoned=True, ours=True, incident="node/test/a", run_id="r1")
    assert round_of(slots, pool(10, successor, absent=("a",))) == ["c"]
    other = bad("z2", cordoned=True, ours=True, incident="node/test/z", run_id="r9")
    slots.request(ask("d", max_unavailable=4))
    assert round_of(slots, pool(10, successor, other, absent=("a",))) == []


def test_a_slot_goes_back_to_the_queue_when_the_second_look_sees_another_cordon():
    slots = waiting(ask("a", age=9), ask("b", age=8), ask("late", age=1))
    granted = slots.grant(pool(), T0)
    assert nodes(granted) == ["a", "b"]
    assert [holder.confirmed for holder in slots.holders] == [False, False]
    assert slots.untold(T0) == []
    assert nodes(slots.confirm(pool(100, bad("x", cordoned=True)), T0)) == ["a"]
    assert nodes(slots.waiters) == ["b", "late"]
    assert round_of(slots) == ["b"]


def test_without_the_second_look_all_wait_again_in_their_old_place():
    slots = waiting(ask("a"), ask("b"), ask("c"))
    slots.grant(pool(), T0)
    slots.request(ask("d"))
    slots.put_back()
    assert (nodes(slots.holders), nodes(slots.waiters)) == ([], ["a", "b", "c", "d"])
    assert round_of(slots) == ["a", "b"]


def test_who_withdraws_between_the_looks_gets_no_slot():
    slots = waiting(ask("a"), ask("b"))
    slots.grant(pool(), T0)
    slots.give_up(ask("a"), T0)
    assert nodes(slots.confirm(pool(), T0)) == ["b"]
    assert (slots.waiters, slots.missing) == ([], [])


def test_who_asks_again_between_the_looks_is_neither_told_nor_queued_twice():
    slots = waiting(ask("a"))
    slots.grant(pool(), T0)
    slots.request(ask("a"))
    assert (slots.untold(T0), slots.waiters) == ([], [])


def test_a_holder_is_told_once_and_again_when_it_asks_again():
    slots = waiting(ask("a"))
    round_of(slots)
    [holder] = slots.untold(T0)
    slots.told(holder, "")
    assert slots.untold(T0) == []
    slots.request(ask("a"))
    assert nodes(slots.untold(T0)) == ["a"]


@pytest.mark.parametrize(
    ("seen", "minutes", "granted"),
    [
        (pool(9, absent=("a",)), 0, []),
        (pool(9, absent=("a",)), 59, []),
        (pool(9, absent=("a",)), 60, ["b"]),  # an hour is over: it is not coming any more
        (pool(10, absent=("a",)), 0, ["b"]),  # its successor is there
        (pool(10), 0, ["b"]),  # the node itself is back
        (pool(9), 0, ["b"]),  # the node is back, and another one was taken away
    ],
)
def test_a_node_that_went_away_with_its_incident_counts_until_another_one_came(seen, minutes, granted):
    slots = waiting(ask("a", max_unavailable=1))
    round_of(slots, pool(10))
    slots.give_up(ask("a"), T0)
    slots.request(ask("b", max_unavailable=1))
    assert round_of(slots, seen, T0 + timedelta(minutes=minutes)) == granted
    assert timedelta(minutes=60) == REPLACED_WITHIN


def test_a_node_whose_incident_ended_during_the_look_counts_until_somebody_looked_for_it():
    slots = waiting(ask("a", max_unavailable=1), ask("b", max_unavailable=1))
    round_of(slots, pool(10))
    request = slots.look()
    assert "a" in request.asked
    slots.give_up(ask("a"), T0)
    assert slots.grant(pool(9), T0) == []
    assert round_of(slots, pool(9)) == ["b"]


def test_two_nodes_that_went_away_are_no_more_than_the_pool_lacks():
    slots = waiting(ask("a"), ask("b"))
    round_of(slots, pool(10))
    for node in "ab":
        slots.give_up(ask(node), T0)
        slots.request(ask(f"next-{node}"))
    seen = pool(9, absent=("a", "b"))
    assert round_of(slots, seen) == ["next-a"]


def test_the_newest_policy_gives_the_limit():
    slots = waiting(ask("a", max_unavailable=1), ask("b", max_unavailable=3), ask("c", max_unavailable=2))
    assert round_of(slots) == ["a", "b"]


@pytest.mark.parametrize(
    "late", [ask("old", age=9, max_unavailable=9), ask("older", age=10, max_unavailable=9)]
)
def test_an_old_incident_does_not_bring_an_old_policy_back(late):
    slots = waiting(ask("old", age=9, max_unavailable=9), ask("new", age=1, max_unavailable=1))
    slots.request(late)
    assert len(round_of(slots)) == 1
    slots.request(late)  # a holder that asks again, or a waiter
    assert slots.limit(100) == 1


def test_a_lower_limit_takes_no_slot_away_and_gives_no_new_one():
    slots = waiting(ask("a", max_unavailable=2), ask("b", max_unavailable=2))
    round_of(slots)
    slots.request(ask("c", max_unavailable=1))
    assert round_of(slots) == []
    assert nodes(slots.holders) == ["a", "b"]
    slots.give_up(ask("a"), T0)
    assert round_of(slots) == []


RULE = StormRule(unhealthy_percent=30, unhealthy_nodes=3)


@pytest.mark.parametrize(
    ("seen", "unhealthy"),
    [
        (pool(10, bad("x", ready=False), bad("y", ready=False)), None),
        (pool(10, bad("x", ready=False), bad("y", ready=False), bad("z", ready=False)), 4),
        (pool(10, *(bad(name, cordoned=True) for name in "uvxyz")), None),  # cordons are no ill health
        (pool(10, bad("a", ready=False), bad("x", ready=False), bad("y", ready=False)), None),
        (pool(10, unlisted=3, unlisted_not_ready=3), 4),
        (pool(2, bad("x", ready=False)), None),  # so few nodes never brake a small pool
        (pool(9, bad("x", ready=False), bad("y", ready=False)), 3),
    ],
)
def test_a_pool_that_is_too_ill_gets_no_slot_and_the_guard_is_told(seen, unhealthy):
    slots = waiting(ask("a", max_unavailable=9, storm=RULE))
    slots.for_guard(T0)
    assert (round_of(slots, seen) == []) is (unhealthy is not None)
    words = slots.for_guard(T0)
    assert [word.unhealthy for word in words] == ([unhealthy] if unhealthy else [])
    assert slots.for_guard(T0) == []
    if unhealthy:
        assert "unhealthy" in slots.why
        assert round_of(slots, pool(10)) == ["a"]  # over


def test_a_new_budget_takes_the_slots_of_the_one_before_and_tells_only_who_asks():
    slots = Slots(cluster="test", pool="p5")
    for node in "ab":
        slots.request(ask(node))
    slots.take_over([ask("a"), ask("c")])
    assert (nodes(slots.holders), nodes(slots.waiters)) == (["a", "c"], ["b"])
    assert nodes(slots.untold(T0)) == ["a"]
    assert round_of(slots) == []
    assert [holder.nodes for holder in slots.holders] == [100, 100]


def test_a_question_stays_within_a_payload_and_asks_for_holders_first():
    slots = waiting(*(ask(digest(str(number)), age=-number) for number in range(1900)))
    round_of(slots, pool(1000))
    request = slots.look()
    assert len(request.model_dump_json()) < 13 * 1024
    assert ObservePool.model_validate_json(request.model_dump_json()) == request
    assert len(request.asked) < 1900
    assert set(nodes(slots.holders)) <= set(request.asked)


@pytest.mark.parametrize(
    ("waiters", "foreign"), [(3, 0), (300, 1), (400, 0), (400, 2), (1000, 0), (1000, 1), (1000, 200)]
)
def test_however_many_wait_with_nodes_that_do_no_work_the_slots_are_given(waiters, foreign):
    names = [f"ip-10-0-{number // 250}-{number % 250}.us-west-2.compute.internal" for number in range(2000)]
    slots = waiting(*(ask(name) for name in names[:waiters]))
    out = [*names[:waiters], *names[1999 : 1999 - foreign : -1]]
    items = [(name, bad(name, cordoned=True, ours=True) if name in out else None) for name in names]
    seen = pool_seen(Listing("1", items, 0), slots.look().asked)
    assert len(seen.model_dump_json()) < 16 * 1024
    assert len(slots.grant(seen, T0)) == max(0, 2 - foreign)


def incidents(count: int, **budget):
    """Requests with names and run ids as they are."""
    for number in range(count):
        name = f"ip-10-0-{number // 250}-{number % 250}.us-west-2.compute.internal"
        yield ask(name, run=str(UUID(bytes=sha256(name.encode()).digest()[:16])), **budget)


@pytest.mark.parametrize(("limit", "count", "waiters"), [(3, 80, 77), (3, 250, 247), (100, 500, 100)])
def test_the_next_run_has_all_holders_and_the_first_waiters_in_one_payload(limit, count, waiters):
    slots = waiting(*incidents(count, max_unavailable=limit))
    round_of(slots, pool(2000))
    again = unpacked(packed(slots))
    assert len(json.dumps(packed(slots))) < 16 * 1024
    assert again.holders == slots.holders
    assert again.waiters == slots.waiters[: len(again.waiters)]
    assert len(again.waiters) >= waiters
    assert again.model_copy(update={"waiters": slots.waiters}) == slots


@pytest.mark.parametrize("raw", [None, "x", {"cluster": 3}, {"cluster": "a", "pool": "b", "packed": "!"}])
def test_a_start_with_a_slip_is_refused(raw):
    with pytest.raises(ValueError):  # noqa: PT011
        unpacked(raw)


def test_state_survives_json():
    slots = waiting(ask("a"), ask("b"), ask("c", severity=4))
    round_of(slots)
    slots.give_up(ask("a"), T0)
    again = Slots.model_validate_json(slots.model_dump_json())
    assert again == slots
    assert round_of(again) == round_of(slots)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        "x",
        [1, 2],
        {"incident": 1},
        {"incident": "", "run_id": "x", "node": "y"},
        {"incident": "budget/test/p5", "run_id": "x", "node": "y"},
        {"incident": "someone/elses/workflow", "run_id": "x", "node": "y"},
        {"incident": "node/test/" + "n" * 1200, "run_id": "x", "node": "y"},
        {"incident": "node/test/n1", "run_id": "", "node": "n1"},
    ],
)
def test_a_signal_that_is_no_request_is_none(raw):
    assert read_request(raw) is None


def test_a_request_is_read():
    assert read_request(ask("a").model_dump(mode="json")) == ask("a")


def test_who_asks_again_after_giving_back_is_told_of_its_own_turn():
    slots = waiting(ask("a", max_unavailable=1))
    assert round_of(slots) == ["a"]
    again = ask("a", max_unavailable=1).model_copy(update={"turn": 1})
    slots.request(again)
    assert [holder.turn for holder in slots.untold(T0)] == [1]
