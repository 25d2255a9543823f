"""The figures of `make bench-storm`: one storm, three answers to it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from testbed.bench_storm.plan import Plan
from testbed.bench_storm.storm import Outcome

HEADINGS = ("", "disturbed", "at once", "healthy destroyed", "pods killed", "normal after", "person needed")


@dataclass(frozen=True)
class Figures:
    """All that a run measured."""

    plan: Plan
    outcomes: tuple[Outcome, ...]
    load_before: float

    def as_json(self) -> dict[str, float | None]:
        """Figures by name; no number of seconds stands for a fleet that did not recover by itself."""
        figures: dict[str, float | None] = {"budget": self.plan.budget, "nodes": self.plan.nodes}
        for outcome in self.outcomes:
            seconds = outcome.seconds_to_normal
            figures |= {
                f"{outcome.contender.name}_disturbed": outcome.disturbed,
                f"{outcome.contender.name}_most_at_once": outcome.most_at_once,
                f"{outcome.contender.name}_destroyed": outcome.destroyed,
                f"{outcome.contender.name}_pods_killed": outcome.pods_killed,
                f"{outcome.contender.name}_seconds_to_normal": None if seconds is None else round(seconds, 1),
            }
        return {**figures, "load_before": round(self.load_before, 1)}


def missed(figures: Figures) -> list[str]:
    """What gpu-runbooks did not keep to: the budget, no machine destroyed, recovery by itself."""
    (ours,) = (outcome for outcome in figures.outcomes if outcome.contender.ours)
    found = []
    if ours.disturbed > figures.plan.budget:
        found.append(f"{ours.disturbed} nodes were disturbed, and the budget is {figures.plan.budget}")
    if ours.destroyed:
        found.append(f"{ours.destroyed} healthy machines were destroyed")
    if ours.seconds_to_normal is None:
        found.append(f"it did not recover by itself: {ours.left_for_a_person}")
    return found


def show(figures: Figures, console: Console) -> None:
    """Print what each did, line by line."""
    plan = figures.plan
    rows: list[Sequence[str]] = [HEADINGS, *map(_row, figures.outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    growth = f"{plan.growth_percent} % more every {plan.step_seconds:g} s, up to {plan.top_percent} %"
    lines = [
        f"{plan.nodes} nodes, a budget of {plan.budget}; called bad: {growth}",
        *("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows),
        *(f"MISSED: {line}" for line in missed(figures)),
        f"load average before: {figures.load_before:.1f}, on {os.cpu_count()} processors",
    ]
    for line in lines:
        console.print(line.rstrip(), highlight=False, soft_wrap=True)


def _row(outcome: Outcome) -> Sequence[str]:
    seconds = outcome.seconds_to_normal
    return (
        outcome.contender.title,
        str(outcome.disturbed),
        str(outcome.most_at_once),
        str(outcome.destroyed),
        str(outcome.pods_killed),
        "never" if seconds is None else f"{seconds:.0f} s",
        outcome.left_for_a_person or "no",
    )
