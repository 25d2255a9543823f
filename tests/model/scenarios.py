"""What is explored: how many incidents, for which faults, and what may go wrong around them.

A wide story has two incidents that compete for one slot, in a world without troubles of their own but with
storms, a budget that is terminated, and repeated messages. A deep story has one incident, and a world in
which much may go wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from model.explorer import Report, explore
from model.lanes import Limits
from model.pools import Pools, Worlds
from model.world import CONDITION

QUIET = Limits(troubles=0, faults=0, words=0)
ROUGH = Worlds(budget_ends=1, brakes=1, repeats=1)


@dataclass(frozen=True)
class Scenario:
    name: str
    first: tuple[str, ...]
    """Code of the first fault of each incident."""
    limits: Limits = QUIET
    """How much may go wrong in one lane, and how often people speak, an abort aside."""
    worlds: Worlds = field(default_factory=Worlds)
    most: int = 1_000_000
    seconds: float = 600.0


SHORT = (
    Scenario("one incident, a replacement", ("79",), QUIET, Worlds(brakes=1), most=2_000),
    Scenario("one incident, words of people", ("119",), Limits(0, 0, 1), most=400),
    Scenario("two incidents, one slot", ("79", "79"), QUIET, most=6_000),
)
"""For `make test`."""

DEEP = (
    Scenario("two incidents, one slot", ("79", "79"), QUIET, most=700_000, seconds=150),
    Scenario("two incidents in a rough world", ("119", "13"), QUIET, ROUGH, most=700_000, seconds=150),
    Scenario("an application's fault, all kinds of trouble", ("13",), Limits(1, 1, 1), seconds=40),
    Scenario("a reset, troubles and people", ("95",), Limits(1, 0, 1), seconds=60),
    Scenario("a reboot, faults that join", ("119",), Limits(0, 1, 1), seconds=60),
    Scenario("a replacement, all kinds of trouble", ("79",), Limits(1, 1, 1), seconds=50),
    Scenario("a condition that is tolerated", (CONDITION,), Limits(1, 1, 0), seconds=40),
)
"""For `make model`: under ten minutes on one core."""


def run(scenarios: tuple[Scenario, ...], progress: Any = None) -> Iterator[Report]:
    """Explore one after the other."""
    for each in scenarios:
        system = Pools(each.first, each.limits, each.worlds)
        yield explore(each.name, system, most=each.most, seconds=each.seconds, progress=progress)
