"""The explorer finds each part of the storm rule that is broken on purpose."""

from datetime import timedelta

import pytest
from model.explorer import Violation, explore
from model.guards import Guards, Limits

from gpu_runbooks.activities.model.fleet import Brake
from gpu_runbooks.workflows.storm import Storm
from gpu_runbooks.workflows.storms import Fleet

STOPPED = "rule 10: {} was told {} s ago, a storm, and pool p is not stopped"


def found(**limits: int) -> Violation:
    report = explore("broken", Guards(Limits(**limits)), most=4_000)
    assert report.violations
    return report.violations[0]


def test_the_rule_as_it_is_breaks_nothing():
    report = explore("small", Guards(Limits(faults=2, ill=0, words=0, waits=1)), most=50_000)
    assert (report.violations, report.complete) == ([], True)
    assert report.ended > 10


def test_a_storm_that_nobody_sees_is_found(monkeypatch):
    monkeypatch.setattr(Fleet, "_take", lambda *_: None)
    violation = found(faults=2, ill=0, words=0, waits=0)
    assert violation.rule == STOPPED.format("xid 79", 0)
    assert violation.steps == ("a shows xid 79", "b shows xid 79")


def test_a_storm_that_ends_too_early_is_found(monkeypatch):
    monkeypatch.setattr(Storm, "quiet_at", lambda storm: storm.latest + timedelta(minutes=5))
    violation = found(faults=2, ill=0, words=0, waits=0)
    assert violation.rule == STOPPED.format("xid 79", 300)
    assert violation.steps[-1] == "time passes to what is due"


def test_a_pool_too_ill_that_is_granted_slots_is_found(monkeypatch):
    monkeypatch.setattr(Fleet, "see_pool", lambda *_: None)
    assert found(faults=0, ill=1, words=0, waits=0).rule == STOPPED.format("too much ill of p", 0)


def test_a_halt_that_is_not_minded_is_found(monkeypatch):
    monkeypatch.setattr(Fleet, "brake", lambda *_: Brake())
    violation = found(faults=0, ill=0, words=1, waits=0)
    assert violation.rule == "rule 10: a halt stands, and pool p is not stopped"
    assert violation.steps == ("a person halts all",)


def test_a_pool_that_is_stopped_for_nothing_is_found(monkeypatch):
    monkeypatch.setattr(Storm, "brakes", lambda *_: True)
    assert found(faults=0, ill=1, words=0, waits=0).rule == "pool q is stopped, and nothing calls for it"


def test_a_pace_that_is_none_is_found(monkeypatch):
    brake = Fleet.brake
    monkeypatch.setattr(Fleet, "brake", lambda *of: brake(*of).model_copy(update={"every": timedelta(0)}))
    rule = found(faults=2, ill=0, words=0, waits=0).rule
    assert rule == "rule 10: pool p is paced by 0:00:00, and the rule says 0:02:00"


def test_a_stale_word_that_counts_is_found(monkeypatch):
    catch_up = Fleet.catch_up

    def believe(fleet, word):
        paced = next((storm.id for storm in fleet.storms if storm.mode == "pace"), word.storm)
        catch_up(fleet, word.model_copy(update={"storm": paced}))

    monkeypatch.setattr(Fleet, "catch_up", believe)
    violation = found(faults=2, ill=0, words=0, waits=0)
    assert violation.steps[-1] == "pool p says that nobody waited after an earlier storm"


def test_a_storm_that_lets_all_go_at_once_is_found(monkeypatch):
    monkeypatch.setattr(Fleet, "_behind", lambda *_: [])
    violation = found(faults=2, ill=0, words=0, waits=0)
    assert violation.rule == "rule 10: after xid 79, pool p grants all at once though some wait"


NEVER_ENDING = Limits(faults=2, ill=0, words=0, waits=0)


def test_every_storm_of_two_faults_ends():
    report = explore("whole", Guards(NEVER_ENDING), most=4_000)
    assert (report.violations, report.complete) == ([], True)


@pytest.mark.parametrize(
    ("of", "method", "rule"),
    [
        (Storm, "pace", "pool p is stopped, and nothing calls for it"),
        (Fleet, "_end", "the incidents cannot end any more"),
    ],
)
def test_a_storm_that_never_ends_is_found(monkeypatch, of, method, rule):
    monkeypatch.setattr(of, method, lambda *_: None)
    report = explore("broken", Guards(NEVER_ENDING), most=4_000)
    assert [each.rule for each in report.violations] == [rule]
