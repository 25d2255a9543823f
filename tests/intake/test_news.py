"""Which faults of an open incident are news to it."""

from datetime import UTC, datetime, timedelta

import pytest
from incident.plans import report

from gpu_runbooks.activities.model.fault import Entity
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.workers.intake.news import FREE, KIND_PACE, MOST_KINDS, PACE, News

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def seen(fingerprint: str, onset: datetime = NOON, **fields: object) -> FaultReport:
    one = report()
    changes = {"fingerprint": fingerprint, "first_seen": onset, **fields}
    return one.model_copy(update={"fault": one.fault.model_copy(update=changes)})


def told(clock: float = 0.0, times: int = FREE) -> News:
    """What is known after so many faults of one kind."""
    news = News()
    for number in range(times):
        one = seen(f"f{number}")
        assert not news.judge(one, clock).same_as
        news.told(one, clock)
    return news


@pytest.mark.parametrize("onset", [NOON, NOON - HOUR, NOON + timedelta(seconds=10)])
def test_beyond_the_first_few_what_began_no_later_repeats_the_latest(onset: datetime) -> None:
    verdict = told().judge(seen("g", onset), 1.0)

    assert (verdict.same_as, verdict.wait) == (f"f{FREE - 1}", 0.0)


@pytest.mark.parametrize(
    "other",
    [
        {"code": "79"},
        {"entity": Entity(kind="gpu", pci_address="0000:05:00")},
        {"place": "GPC 2 TPC 1"},
        {"reason": "Other"},
        {"status": "False"},
        {"grade": "fatal"},
        {"recovery_action": 2},
    ],
)
def test_another_code_place_or_word_is_news(other: dict[str, object]) -> None:
    verdict = told().judge(seen("g", **other), 1.0)

    assert (verdict.same_as, verdict.wait) == ("", 0.0)


def test_another_treatment_is_news() -> None:
    """Such as that of a fault that came so often that policy counts."""
    one = seen("g")
    plan = one.plan.model_copy(
        update={"treatment": one.plan.treatment.model_copy(update={"rule": "too-often"})}
    )

    assert told().judge(one.model_copy(update={"plan": plan}), 1.0).same_as == ""


def test_a_later_onset_is_news_once_a_minute() -> None:
    """It may refute a repair that was proven in between, so it is never folded."""
    news, late = told(), seen("late", NOON + HOUR)

    waits = news.judge(late, 20.0)
    assert (waits.same_as, waits.wait) == ("", PACE - 20.0)
    taken = news.judge(late, PACE)
    assert (taken.same_as, taken.wait) == ("", 0.0)
    news.told(late, PACE)
    assert news.judge(seen("g", NOON + HOUR), PACE).same_as == "late"


def test_an_alert_that_flaps_joins_ten_times_and_then_once_a_minute() -> None:
    news, joined = News(), 0
    for second in range(1000):
        one = seen(f"f{second}", NOON + timedelta(seconds=20 * second))
        verdict = news.judge(one, float(second))
        assert not verdict.same_as
        if not verdict.wait:
            news.told(one, float(second))
            joined += 1

    assert joined == FREE + (1000 - FREE) // 60


def test_of_many_that_wait_the_latest_joins_first_and_answers_for_the_others() -> None:
    """150 onsets, a minute from one to the next, are answered after a minute and not after hours."""
    news = told()
    group = [seen(f"g{number}", NOON + timedelta(minutes=number + 1)) for number in range(150)]

    assert all(news.judge(each, 1.0).wait for each in group)
    second = []
    for each in group:
        verdict = news.judge(each, PACE)
        second.append(verdict)
        if not verdict.wait:
            news.told(each, PACE)
    assert [not verdict.wait for verdict in second] == [False] * 149 + [True]
    assert {news.judge(each, PACE + 1).same_as for each in group} == {"g149"}


def test_who_waits_for_a_later_onset_that_never_comes_again_is_taken() -> None:
    news, late, gone = told(), seen("late", NOON + HOUR), seen("gone", NOON + 2 * HOUR)
    assert news.judge(gone, 0.0).wait
    assert news.judge(late, PACE).wait

    assert not news.judge(late, 2 * PACE).wait


def test_very_many_kinds_of_faults_are_paced() -> None:
    news = News()
    for number in range(MOST_KINDS):
        one = seen("f", code=str(number))
        assert not news.judge(one, 0.0).wait
        news.told(one, 0.0)

    assert news.judge(seen("g", code="other"), 0.0).wait == KIND_PACE
    assert not news.judge(seen("g", code="other"), KIND_PACE).wait
