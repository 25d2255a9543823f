"""When many faults are a storm, and how it ends: the pure rule."""

from datetime import timedelta

import pytest
from incident.plans import T0

from gpu_runbooks.activities.model.fleet import (
    AlertsTruncated,
    CaughtUp,
    FaultSeen,
    Halt,
    PoolUnhealthy,
    StormRule,
)
from gpu_runbooks.workflows import storms
from gpu_runbooks.workflows.fleet_details import details
from gpu_runbooks.workflows.storms import Fleet, packed, unpacked

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
RULE = StormRule(nodes=10)


def fleet(*pools: str) -> Fleet:
    made = Fleet(cluster="test")
    for pool in pools or ("p5",):
        made.open_budget(pool, T0)
    return made


def fault(node: object, signature: str = "xid 79", *, pool: str = "p5", **traits: str):
    return FaultSeen(node=f"n{node}", pool=pool, signature=signature, traits=traits)


def cut_off(count: int, *, delivery: str = "d1", signature: str = "xid 79", rule: StormRule = RULE):
    return AlertsTruncated(count=count, signature=signature, delivery=delivery, rule=rule)


def storming(guard: Fleet, nodes: int = 10, at=T0) -> Fleet:
    for node in range(nodes):
        guard.see(fault(node), RULE, at)
    return guard


def paced(guard: Fleet, at=T0 + 15 * MINUTE) -> Fleet:
    guard.pass_time(at)
    assert guard.brake("p5").mode == "pace"
    return guard


def test_one_code_on_a_whole_fleet_within_a_second_stops_every_pool():
    guard = fleet("p5", "p4", "empty")
    for node in range(77):
        guard.see(fault(node, "xid 45", pool="p5" if node % 2 else "p4"), RULE, T0 + node * SECOND / 77)
    (storm,) = guard.storms
    assert (storm.nodes, storm.hidden, len(storm.names), sorted(storm.pools)) == (77, 0, 20, ["p4", "p5"])
    assert {pool: guard.brake(pool).mode for pool in guard.budgets} == dict.fromkeys(guard.budgets, "stop")
    assert storm.in_words() == "storm: 77 nodes with xid 45 in 1 s"


@pytest.mark.parametrize(
    ("delivered", "hidden", "braked"),
    [(2, 38, True), (2, 8, True), (2, 7, False), (0, 10, True), (0, 9, False)],
)
@pytest.mark.parametrize("hidden_first", [True, False])
def test_an_alert_that_was_cut_off_counts_as_a_node_that_nobody_saw(delivered, hidden, braked, hidden_first):
    guard = fleet()
    words = [lambda: guard.see_truncated(cut_off(hidden), T0), lambda: storming(guard, delivered)]
    for word in words if hidden_first else reversed(words):
        word()
    assert (guard.brake("p5").mode == "stop") is braked
    if braked:
        (storm,) = guard.storms
        assert (storm.nodes, storm.hidden) == (delivered, hidden)


def test_a_delivery_that_comes_again_counts_once_and_one_that_grew_counts_what_is_new():
    guard = fleet()
    for at in (T0, T0 + SECOND, T0 + 4 * HOUR, T0 + 8 * HOUR):
        guard.see_truncated(cut_off(6), at)
    assert guard.brake("p5").mode == "off"
    guard.see_truncated(cut_off(15), T0 + 8 * HOUR)
    assert guard.brake("p5").mode == "off"  # nine more, and the six of yesterday are out of the window
    guard.see_truncated(cut_off(1, delivery="d2"), T0 + 8 * HOUR)
    assert guard.storms[0].hidden == 10


@pytest.mark.parametrize(
    "faults",
    [
        [fault(node) for node in range(9)],
        [fault(1) for _ in range(50)],
        [fault(node, f"xid {node}") for node in range(200)],
        [fault(node, f"xid {node % 30}") for node in range(200)],
    ],
    ids=["one too few", "one node again and again", "different signatures", "mixed"],
)
def test_what_is_no_storm_brakes_nothing(faults):
    guard = fleet()
    for word in faults:
        guard.see(word, RULE, T0)
    assert guard.brake("p5").mode == "off"
    assert guard.due() is None


@pytest.mark.parametrize(("apart", "braked"), [(60 * SECOND, True), (67 * SECOND, False)])
def test_only_what_lies_within_the_window_counts(apart, braked):
    guard = fleet()
    for node in range(30):
        guard.see(fault(node), RULE, T0 + node * apart)
    assert (guard.brake("p5").mode == "stop") is braked


def test_too_much_of_a_pool_unhealthy_brakes_that_pool_alone():
    guard = fleet("p5", "p4")
    for unhealthy, nodes in ((2, 3), (3, 10), (30, 100)):
        guard.see_pool(PoolUnhealthy(pool="p5", unhealthy=unhealthy, nodes=nodes), T0)
        assert not guard.storms
    guard.see_pool(PoolUnhealthy(pool="p5", unhealthy=4, nodes=10), T0)
    assert [guard.brake(pool).mode for pool in ("p5", "p4")] == ["stop", "off"]
    assert "4 of 10 nodes of pool p5" in guard.storms[0].in_words()
    paced(guard)
    guard.catch_up(CaughtUp(pool="p5", storm=guard.storms[0].id))
    guard.pass_time(T0 + 15 * MINUTE)
    assert not guard.storms


def test_a_pool_and_its_signature_are_one_storm():
    guard = fleet("p5", "p4")
    guard.see_pool(PoolUnhealthy(pool="p5", unhealthy=4, nodes=12), T0)
    first = guard.storms[0].id
    storming(guard, 12)
    guard.see_pool(PoolUnhealthy(pool="p5", unhealthy=12, nodes=12), T0 + MINUTE)
    assert [(storm.id, storm.nodes, storm.signature) for storm in guard.storms] == [(first, 12, "xid 79")]
    assert guard.brake("p4").mode == "stop"


def test_after_quiet_it_paces_and_is_over_when_all_pools_caught_up():
    guard = storming(fleet("p5", "p4"))
    guard.see(fault(50), RULE, T0 + 5 * MINUTE)
    guard.pass_time(T0 + 15 * MINUTE)
    assert guard.brake("p5").mode == "stop"
    assert guard.due() == T0 + 20 * MINUTE
    paced(guard, T0 + 20 * MINUTE)
    storm = guard.storms[0].id
    assert (guard.brake("p5").storm, guard.brake("p5").every) == (storm, RULE.pace)
    for word in (CaughtUp(pool="p5", storm="another"), CaughtUp(pool="p5", storm=storm)):
        guard.catch_up(word)
        guard.pass_time(T0 + 21 * MINUTE)
        assert guard.storms
    guard.catch_up(CaughtUp(pool="p4", storm=storm))
    guard.pass_time(T0 + 22 * MINUTE)
    assert [guard.brake(pool).mode for pool in guard.budgets] == ["off", "off"]
    assert guard.due() is None


def test_a_word_of_caught_up_from_before_it_paced_is_stale():
    guard = storming(fleet())
    guard.catch_up(CaughtUp(pool="p5", storm=guard.storms[0].id))
    assert paced(guard).storms


def test_a_budget_that_says_nothing_is_not_waited_for_and_one_that_lives_is():
    guard = paced(storming(fleet()))
    at = guard.storms[0].paced
    for _ in range(12):
        at += 50 * MINUTE
        guard.open_budget("p5", at)
        guard.pass_time(at)
        assert guard.brake("p5").mode == "pace"
    guard.pass_time(at + HOUR)
    assert guard.brake("p5").mode == "off"
    assert "p5 did not say in time" in guard.past[0].how


def test_no_budget_keeps_a_storm_for_ever():
    guard = paced(storming(fleet()))
    at = guard.storms[0].paced
    for _ in range(100):
        at += 30 * MINUTE
        guard.open_budget("p5", at)
        guard.pass_time(at)
    assert guard.brake("p5").mode == "off"


@pytest.mark.parametrize(
    ("nodes", "mode"),
    [([0], "stop"), (range(100, 109), "pace"), (range(100, 110), "stop")],
    ids=["the node that was tried has it again", "few others", "as many others as begin a storm"],
)
def test_the_same_faults_while_it_paces_brake_again(nodes, mode):
    guard = paced(storming(fleet()))
    at = T0 + 20 * MINUTE
    for node in nodes:
        guard.see(fault(node), RULE, at)
    assert guard.brake("p5").mode == mode
    assert len(guard.storms) == 1
    assert guard.storms[0].again == (mode == "stop")
    if mode == "stop":
        guard.catch_up(CaughtUp(pool="p5", storm=guard.storms[0].id))
        guard.pass_time(at + RULE.cool_down - SECOND)
        assert guard.brake("p5").mode == "stop"
        paced(guard, at + RULE.cool_down)


def test_of_two_storms_the_stricter_brake_counts():
    guard = paced(storming(fleet()))
    slow = StormRule(pace=5 * MINUTE)
    for node in range(10):
        guard.see(fault(node, "efa link_down"), slow, T0 + 16 * MINUTE)
    first, second = guard.storms
    assert (guard.brake("p5").mode, guard.brake("p5").storm) == ("stop", second.id)
    guard.pass_time(T0 + 31 * MINUTE)
    assert (guard.brake("p5").storm, guard.brake("p5").every) == (first.id, 5 * MINUTE)
    guard.catch_up(CaughtUp(pool="p5", storm=first.id))
    guard.pass_time(T0 + 32 * MINUTE)
    assert not guard.storms


def test_a_halt_stops_all_until_its_end_and_a_storm_goes_on_after_it():
    guard = storming(fleet())
    guard.halt(Halt(operator="ada", reason="upgrade", since=T0, until=T0 + 30 * HOUR))
    guard.pass_time(T0 + 20 * HOUR)
    assert (guard.brake("p5").mode, guard.brake("p5").storm) == ("stop", "")
    assert "ada" in guard.brake("p5").why
    guard.pass_time(T0 + 30 * HOUR)
    assert guard.brake("p5").mode == "pace"


def test_a_person_ends_a_storm_and_is_believed_for_an_hour_about_a_pool():
    guard = storming(fleet("p5", "p4"))
    guard.end_storm(guard.storms[0], "ended by ada: known", T0 + MINUTE)
    assert guard.brake("p5").mode == "off"
    report = PoolUnhealthy(pool="p4", unhealthy=9, nodes=10)
    guard.see_pool(report, T0 + MINUTE)
    guard.end_storm(guard.storms[0], "ended by ada: known", T0 + MINUTE)
    guard.see_pool(report, T0 + HOUR)
    assert not guard.storms
    guard.see_pool(report, T0 + 2 * HOUR)
    assert guard.brake("p4").mode == "stop"
    assert "ended by ada" in guard.past[-1].how


def test_the_cause_is_what_the_nodes_share_and_others_lack():
    guard = fleet()
    for node in range(5):
        guard.see(fault(f"other{node}", f"xid {node}", driver="550.1", zone="a"), RULE, T0)
    for node in range(12):
        job = {"job": "blue/train"} if node else {}
        guard.see(fault(node, driver="570.2", zone="a", rack=f"r{node}", **job), RULE, T0)
    guard.pass_time(T0)
    cause = guard.storms[0].cause
    assert "driver 570.2 (12 of 12)" in cause
    assert "zone" not in cause
    assert "rack" not in cause


def test_without_others_all_that_is_shared_is_named_and_nothing_is_made_up():
    guard = fleet()
    for node in range(10):
        guard.see(fault(node, detector="npd", driver=f"5{node}"), RULE, T0)
    guard.pass_time(T0)
    assert guard.storms[0].cause == "the same detector npd (10 of 10); nothing is known of other nodes"
    alone = fleet()
    alone.see_truncated(cut_off(38), T0)
    alone.pass_time(T0)
    assert alone.storms[0].cause == "nothing is known that nearly all of its nodes have in common"


def test_whatever_arrives_the_state_stays_small_and_goes_on_in_the_next_run():
    guard = fleet()
    for number in range(800):
        guard.see(fault(f"{number:x}.example.internal", f"alert Made{number % 700}", driver="5"), RULE, T0)
        guard.open_budget(f"pool-{number}", T0)
        guard.see_truncated(cut_off(1, delivery=str(number), signature=f"a{number}"), T0)
        guard.see_pool(PoolUnhealthy(pool=f"pool-{number % 400}", unhealthy=9, nodes=9), T0)
    guard.see(fault("x" * 10_000, "y" * 10_000, **{f"k{n}": "v" * 1000 for n in range(100)}), RULE, T0)
    guard.see_truncated(cut_off(10**18), T0)
    assert sum(map(len, guard.seen.values())) <= storms.MOST_SEEN
    assert len(guard.storms) <= storms.MOST_STORMS
    assert guard.brake("any").mode == "stop"
    assert len(guard.model_dump_json()) < 256 * 1024
    assert unpacked(packed(guard)) == guard


def test_the_worst_hour_of_a_fleet_fits_into_a_payload():
    guard = fleet(*(f"pool-{number}" for number in range(20)))
    for number in range(600):
        name = f"{number % 250}-{number * 7 % 250}.eu-west-1.compute.internal"
        traits = {"driver": "570.86.15", "zone": f"eu-west-1{'abc'[number % 3]}", "detector": "alertmanager"}
        guard.see(fault(name, f"xid {number % 60}", **traits), StormRule(nodes=11), T0)
    storming(guard, 500)
    assert len(packed(guard)["packed"]) < 16 * 1024


def test_the_details_name_storms_halts_brakes_and_who():
    guard = storming(fleet("p5"))
    guard.halt(Halt(operator="ada", reason="driver rollout", since=T0, until=T0 + HOUR))
    shown = details(guard, T0)
    for word in ("**ada**", "driver rollout", "10 nodes with xid 79", "| p5 | stop |", "n9"):
        assert word in shown
    said = "temporal workflow update execute --workflow-id fleet/test --name"
    for word in (f"{said} resume", f"{said} end_storm", f'"storm": "{guard.storms[0].id}"'):
        assert word in shown
    guard.resume()
    guard.end_storm(guard.storms[0], "ended by ada: test", T0)
    assert "ended by ada: test" in details(guard, T0)
    assert "no halt and no storm" in details(guard, T0)
    assert "What you can say" not in details(guard, T0)
