"""What the intake remembers of open incidents, and who shares an answer."""

import asyncio
from datetime import UTC, datetime

import pytest

from gpu_runbooks.workers.intake import repeats
from gpu_runbooks.workers.intake.repeats import Repeats
from gpu_runbooks.workers.intake.turns import Turns

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)


def told(deliveries: int, fingerprints: int = 1) -> list[dict[str, int]]:
    """What is told of so many deliveries, taken in turn by several faults."""
    known, words = Repeats(), []
    for number in range(deliveries):
        fingerprint = f"f{number % fingerprints}"
        first = not known.knows("w", "r1", fingerprint)
        if known.count("w", "r1", fingerprint, 0 if first else 1):
            words.append(known.word("w", "r1", NOW).counts)
    return words


def test_ten_thousand_deliveries_are_four_words_and_all_are_counted() -> None:
    assert told(10_000) == [{"f0": 9}, {"f0": 90}, {"f0": 900}, {"f0": 9000}]


def test_it_is_four_words_whatever_the_number_of_faults() -> None:
    words = told(10_000, 29)

    assert len(words) == 4
    assert sum(sum(word.values()) for word in words) == 10_000 - 29


def test_several_at_once_are_one_word() -> None:
    known = Repeats()
    assert known.count("w", "r1", "f", 4321)
    assert known.word("w", "r1", NOW).counts == {"f": 4321}
    assert not known.count("w", "r1", "f", 1)


def test_another_run_knows_nothing() -> None:
    known = Repeats()
    known.learn("w", "r1", "f")

    assert known.knows("w", "r1", "f")
    assert not known.knows("w", "r2", "f")
    assert not known.knows("v", "r1", "f")
    known.learn("w", "r2", "g")
    assert not known.knows("w", "r1", "f")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST_INCIDENTS", 3)
    monkeypatch.setattr(repeats, "MOST_FAULTS", 5)
    known = Repeats()
    for incident in range(10):
        for fault in range(10):
            known.learn(f"w{incident}", "r", f"f{fault}")

    found = [(w, f) for w in range(10) for f in range(10) if known.knows(f"w{w}", "r", f"f{f}")]
    assert found == [(w, f) for w in range(7, 10) for f in range(5, 10)]


def test_a_fault_that_only_says_the_same_is_known_and_counts_as_the_other() -> None:
    known = Repeats()
    known.learn("w", "r1", "f")
    known.fold("w", "r1", "g", "f")

    assert known.knows("w", "r1", "g")
    assert not known.knows("w", "r2", "g")
    assert known.count("w", "r1", "g", 20)
    assert known.word("w", "r1", NOW).counts == {"f": 20}


class TestTurns:
    async def test_who_waits_shares_and_who_comes_later_asks_anew(self) -> None:
        turns: Turns[int] = Turns()
        gate, begun, worked = asyncio.Event(), asyncio.Event(), []

        async def work(turn):
            await gate.wait()
            worked.append(turn.begin())
            number = len(worked)
            begun.set()
            await asyncio.sleep(0)
            return number

        waiting = [asyncio.create_task(turns.share("k", work)) for _ in range(5)]
        await asyncio.sleep(0)
        gate.set()
        await begun.wait()
        later = await turns.share("k", work)

        assert [await each for each in waiting] == [(1, True)] + [(1, False)] * 4
        assert later == (2, True)
        assert worked == [5, 1]

    async def test_an_error_reaches_all_and_the_next_may_succeed(self) -> None:
        turns: Turns[int] = Turns()

        async def fails(turn):
            await asyncio.sleep(0)
            raise ValueError("no")

        both = await asyncio.gather(turns.share("k", fails), turns.share("k", fails), return_exceptions=True)

        async def works(turn):
            return 1

        assert [str(error) for error in both] == ["no", "no"]
        assert await turns.share("k", works) == (1, True)

    async def test_who_gives_up_first_lets_the_others_ask_again(self) -> None:
        turns: Turns[int] = Turns()

        async def hangs(turn):
            await asyncio.Event().wait()
            return 1

        first = asyncio.create_task(turns.share("k", hangs))
        await asyncio.sleep(0)
        second = asyncio.create_task(turns.share("k", hangs))
        await asyncio.sleep(0)
        first.cancel()

        with pytest.raises(TimeoutError):
            await second

    async def test_one_who_gives_up_takes_nobody_along(self) -> None:
        turns: Turns[int] = Turns()
        gate = asyncio.Event()

        async def work(turn):
            await gate.wait()
            return 1

        first = asyncio.create_task(turns.share("k", work))
        await asyncio.sleep(0)
        second = asyncio.create_task(turns.share("k", work))
        await asyncio.sleep(0)
        second.cancel()
        gate.set()

        assert await first == (1, True)
