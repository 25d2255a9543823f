"""The figures of `make bench-burst`: what was measured, against what is required."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from rich.console import Console

from testbed.bench_burst.actions import Cost
from testbed.bench_burst.burst import PATIENCE, BurstFigures
from testbed.bench_burst.slots import grants_per_second

LIMITS = {
    "block_p99_seconds": 10.0,
    "with_duplicates_block_p99_seconds": 10.0,
    "lost": 0.0,
    "max_worker_rss_mib": 300.0,
    "events_full_ladder": 250.0,
}
"""The most that each may be, on two cores."""


@dataclass(frozen=True)
class Figures:
    """All that a run measured."""

    alone: BurstFigures
    with_duplicates: BurstFigures
    ladder: Cost
    load_before: float
    """Load average of the minute before: what else the machine was doing."""

    def as_json(self) -> dict[str, float]:
        """Figures by name. What both bursts measure has a name of its own for the one with duplicates."""
        both = (self.alone, self.with_duplicates)
        repeated = _of_burst(self.with_duplicates)
        figures: dict[str, float] = {
            **_of_burst(self.alone),
            "lost": sum(each.lost + each.not_blocked for each in both),
            "max_worker_rss_mib": max(peak for each in both for peak in each.memory.values()),
            "events_full_ladder": self.ladder.events,
            "actions_full_ladder": self.ladder.actions,
            **{f"with_duplicates_{name}": value for name, value in repeated.items()},
            "duplicates_per_second": self.with_duplicates.duplicates_per_second,
            "load_before": self.load_before,
        }
        return {name: round(value, 3) for name, value in figures.items()}


def percentile(values: Sequence[float], share: int) -> float:
    """The value that so many percent do not exceed (nearest rank); 0 where there is none."""
    ordered = sorted(values)
    return ordered[ceil(len(ordered) * share / 100) - 1] if ordered else 0.0


def missed(figures: Mapping[str, float]) -> list[str]:
    """Names of the figures that are above their limit."""
    return [name for name, limit in LIMITS.items() if figures[name] > limit]


def show(figures: Figures, console: Console) -> None:
    """Print each figure with what is required of it."""
    values = figures.as_json()
    failed = missed(values)
    for name, value in values.items():
        limit = LIMITS.get(name)
        required = "" if limit is None else f"  at most {limit:g}{'  MISSED' if name in failed else ''}"
        console.print(f"{name:40} {value:10,.2f}{required}", highlight=False, soft_wrap=True)
    for what, each in (("faults alone", figures.alone), ("with duplicates", figures.with_duplicates)):
        peaks = ", ".join(f"{role} {peak:.0f}" for role, peak in each.memory.items())
        answers = ", ".join(f"{count} {status}" for status, count in sorted(each.answers.items()))
        console.print(
            f"{what}: peak memory in MiB: {peaks}; answers of the webhook: {answers}", soft_wrap=True
        )
    console.print(
        f"load average before: {figures.load_before:.1f}, on {os.cpu_count()} processors",
        highlight=False,
        soft_wrap=True,
    )


def _of_burst(burst: BurstFigures) -> dict[str, float]:
    blocked = [*burst.block_seconds, *[PATIENCE] * burst.not_blocked]
    waits = [wait.seconds for wait in burst.slots if wait.seconds is not None]
    return {
        "block_p50_seconds": percentile(blocked, 50),
        "block_p99_seconds": percentile(blocked, 99),
        "permitted": burst.permitted,
        "over_budget": burst.over_budget,
        "slot_wait_p50_seconds": percentile(waits, 50),
        "slot_wait_p99_seconds": percentile(waits, 99),
        "still_queued": len(burst.slots) - len(waits),
        "grants_per_second": grants_per_second(burst.slots),
        "events_per_incident": median([cost.events for cost in burst.costs] or [0]),
        "actions_per_incident": median([cost.actions for cost in burst.costs] or [0]),
    }
