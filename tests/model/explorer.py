"""Breadth first through every interleaving: what is met first is the shortest way to it.

Run as `python -m model.explorer` with tests/ on the path, which `make model` does.
"""

import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol


class Step(Protocol):
    words: str
    state: Any
    wrong: str
    best: bool
    forced: bool


class System(Protocol):
    """Something whose states can be explored."""

    def begin(self) -> Any: ...
    def steps(self, state: Any) -> Iterable[Any]: ...
    def ended(self, state: Any) -> bool: ...


@dataclass(frozen=True)
class Violation:
    rule: str
    steps: tuple[str, ...]
    """What happened, in order; the last one breaks the rule."""

    def __str__(self) -> str:
        lines = [f"{number:>4}. {words}" for number, words in enumerate(self.steps, 1)]
        return "\n".join([self.rule, *lines])


@dataclass
class Report:
    """What an exploration met."""

    name: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    ended: int = 0
    complete: bool = False
    """No state was left that had not been gone through."""
    seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.states / self.seconds if self.seconds else 0
        left = "all of them" if self.complete else "as far as the limit"
        return (
            f"{self.name}: {self.states:,} states, {self.transitions:,} transitions, depth {self.depth}, "
            f"{self.seconds:.0f} s, {rate:,.0f} states/s, {left}"
        )


def explore(
    name: str,
    system: System,
    *,
    most: int,
    seconds: float = float("inf"),
    progress: Callable[[Report], None] | None = None,
    stop_at: str = "",
    start: Any = None,
) -> Report:
    """Go through the states, nearest first, until a rule is broken or `most` states are known.

    `stop_at` is how the rule begins, empty for any; `start` a state to begin with in place of the first.
    """
    report, began = Report(name), time.process_time()
    first = system.begin() if start is None else start
    number = {first: 0}
    states, parents, words, depths = [first], [-1], [""], [0]
    before: list[list[int]] = [[]]
    over: list[int] = []
    queue = deque([0])
    rules: set[str] = set()
    with _undisturbed():
        while queue:
            if len(states) >= most or time.process_time() - began > seconds:
                break
            here = queue.popleft()
            if system.ended(states[here]):
                over.append(here)
                continue
            for step in system.steps(states[here]):
                report.transitions += 1
                if step.wrong and step.wrong not in rules:
                    rules.add(step.wrong)
                    report.violations.append(Violation(step.wrong, (*_way(here, parents, words), step.words)))
                    continue
                there = number.get(step.state)
                if there is None:
                    there = number[step.state] = len(states)
                    states.append(step.state)
                    parents.append(here)
                    words.append(step.words)
                    depths.append(depths[here] + 1)
                    before.append([])
                    queue.append(there)
                if not step.forced:
                    before[there].append(here)
            if any(each.rule.startswith(stop_at) for each in report.violations):
                break
            if progress is not None and not here % 20000:
                report.states, report.depth = len(states), depths[-1]
                report.seconds = time.process_time() - began
                progress(report)
        report.complete = not queue
        report.ended = len(over)
        if not report.violations:
            stuck = _cannot_end(system, states, before, over, queue)
            if stuck is not None:
                report.violations.append(
                    Violation("the incidents cannot end any more", _way(stuck, parents, words))
                )
    report.states, report.depth = len(states), depths[-1]
    report.seconds = time.process_time() - began
    return report


def _way(here: int, parents: list[int], words: list[str]) -> tuple[str, ...]:
    way: list[str] = []
    while here > 0:
        way.append(words[here])
        here = parents[here]
    return tuple(reversed(way))


def _cannot_end(
    system: System, states: list[Any], before: list[list[int]], over: list[int], left: Iterable[int]
) -> int | None:
    """The first state from which nothing ends the incidents; None where each can end.

    Nobody who was not asked helps. A state that was not gone through can end where all going well from
    there on ends it. Of these so many
    are tried, spread over all of them, and the others are taken to end.
    """
    fine = bytearray(len(states))
    known: dict[Any, bool] = {}
    rest = list(left)
    apart = max(1, len(rest) // MOST_TRIED)
    ends = [*over]
    ends += [
        each for place, each in enumerate(rest) if place % apart or goes_well(system, states[each], known)
    ]
    queue = deque(ends)
    for each in ends:
        fine[each] = 1
    while queue:
        for each in before[queue.popleft()]:
            if not fine[each]:
                fine[each] = 1
                queue.append(each)
    return next((each for each in range(len(states)) if not fine[each]), None)


MOST_TRIED = 100
"""States beyond the limit from which all going well is tried."""

MOST_STEPS = 400
"""Of a run in which all goes well."""


def goes_well(system: System, state: Any, known: dict[Any, bool]) -> bool:
    """Whether the incidents end when from here on all goes well, and people abort what still stands."""
    way: list[Any] = []
    met: set[Any] = set()
    result = False
    while len(way) < MOST_STEPS:
        if (earlier := known.get(state)) is not None:
            result = earlier
            break
        if system.ended(state):
            result = True
            break
        way.append(state)
        met.add(state)
        steps = [step for step in system.steps(state) if not (step.wrong or step.forced)]
        fresh = [step for step in steps if step.state not in met]
        if not fresh:
            break
        best = [step for step in fresh if step.best]
        aborts = [step for step in fresh if step.words.endswith("says abort")]
        state = (best or aborts or fresh)[0].state
    for each in way:
        known[each] = result
    return result


class _undisturbed:  # noqa: N801 - reads as a word
    """No log lines of a million runs, and no collector that walks all states again and again."""

    def __enter__(self) -> None:
        self._logs = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        gc.collect()
        gc.freeze()

    def __exit__(self, *_: object) -> None:
        logging.disable(self._logs)
        gc.unfreeze()
