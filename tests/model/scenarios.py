"""What is explored: how many incidents, for which faults, and what may go wrong around them.

A wide story has two incidents that compete for one slot, in a world without troubles of their own but with
storms, a budget that is terminated, and repeated messages. A deep story has one incident, and a world in
which much may go wrong. The guard of the fleet has a story of its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from model import guards
from model.explorer import Report, System, explore
from model.lanes import Limits
from model.pools import Pools, Worlds
from model.world import CONDITION

QUIET = Limits(troubles=0, faults=0, words=0)
ASKED = Worlds(intake=True)
ROUGH = Worlds(intake=True, budget_ends=1, brakes=1, repeats=1)


@dataclass(frozen=True)
class Scenario:
    name: str
    system: Callable[[], System]
    most: int = 1_000_000
    seconds: float = 600.0


def incidents(*first: str, limits: Limits = QUIET, worlds: Worlds | None = None) -> Callable[[], System]:
    """One incident for each code of a first fault.

    `limits`: how much may go wrong in one lane, and how often people speak, an abort aside.
    """
    return lambda: Pools(first, limits, worlds or Worlds())


def storms(*, faults: int, ill: int, words: int, waits: int) -> Callable[[], System]:
    """A guard that is told so many things, in any order and with any silence between them."""
    return lambda: guards.Guards(guards.Limits(faults, ill, words, waits))


SHORT = (
    Scenario("one incident, a replacement", incidents("79", worlds=Worlds(brakes=1)), most=2_000),
    Scenario("one incident, words of people", incidents("119", limits=Limits(0, 0, 1)), most=400),
    Scenario("two incidents, one slot", incidents("79", "79", worlds=ASKED), most=6_000),
    Scenario("the storm rule", storms(faults=2, ill=2, words=1, waits=1), most=3_000),
)
"""For `make test`."""

DEEP = (
    Scenario("two incidents, one slot", incidents("79", "79", worlds=ASKED), most=700_000, seconds=150),
    Scenario("two incidents, a rough world", incidents("119", "13", worlds=ROUGH), most=700_000, seconds=150),
    Scenario("the storm rule", storms(faults=4, ill=2, words=2, waits=2), most=300_000, seconds=40),
    Scenario("a reboot, words of people", incidents("119", limits=Limits(0, 0, 1)), seconds=50),
    Scenario("an application's fault, all trouble", incidents("13", limits=Limits(1, 1, 1)), seconds=30),
    Scenario("a reset, troubles and people", incidents("95", limits=Limits(1, 0, 1)), seconds=40),
    Scenario("a reboot, faults that join", incidents("119", limits=Limits(0, 1, 1)), seconds=40),
    Scenario("a replacement, all trouble", incidents("79", limits=Limits(1, 1, 1)), seconds=40),
    Scenario("a condition that is tolerated", incidents(CONDITION, limits=Limits(1, 1, 0)), seconds=30),
)
"""For `make model`: under ten minutes on one core."""


def run(scenarios: tuple[Scenario, ...], progress: Any = None) -> Iterator[Report]:
    """Explore one after the other."""
    for each in scenarios:
        yield explore(each.name, each.system(), most=each.most, seconds=each.seconds, progress=progress)
