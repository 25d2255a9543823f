"""`make bench-intake`: how much the intake reads, replays, watches and takes, against what is required."""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from testbed.bench_intake import diff, duplicates, parsing, watch
from testbed.progress import Progress

Measure = Callable[[], Mapping[str, float] | Coroutine[Any, Any, Mapping[str, float]]]

MEASURES: dict[str, Measure] = {
    "Kernel log: 400,000 lines": parsing.measure,
    "Policy diff: 100,000 recorded faults": diff.measure,
    "Watch of 5,000 nodes": watch.measure,
    "10,000 deliveries of one fault": duplicates.measure,
}


@dataclass(frozen=True)
class Limit:
    """What a figure has to keep to."""

    value: float
    at_least: bool

    def kept(self, figure: float) -> bool:
        return figure >= self.value if self.at_least else figure <= self.value

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.value:,.0f}"


LIMITS = {
    "parse_lines_per_second": Limit(200_000, at_least=True),
    "diff_events_per_second": Limit(5_000, at_least=True),
    "watch_5000_nodes_rss_mib": Limit(300, at_least=False),
    "events_added_by_10000_duplicates": Limit(100, at_least=False),
}


def bench_intake(output: Path | None, measures: Mapping[str, Measure] | None = None) -> int:
    """Measure, print the figures on stdout and write them to `output`. Progress goes to stderr.

    Returns 1 where a figure does not keep to its limit.
    """
    progress = Progress(Console(stderr=True))
    load_before = os.getloadavg()[0]
    figures: dict[str, float] = {}
    for what, measure in (measures or MEASURES).items():
        with progress.step(what):
            measured = measure()
            figures |= measured if isinstance(measured, Mapping) else asyncio.run(measured)
    show(figures, load_before, Console())
    if output:
        rounded = {name: round(value, 3) for name, value in (figures | {"load_before": load_before}).items()}
        output.write_text(json.dumps(rounded, indent=2) + "\n")
    missed = [name for name, limit in LIMITS.items() if name in figures and not limit.kept(figures[name])]
    return 1 if missed else 0


def show(figures: Mapping[str, float], load_before: float, console: Console) -> None:
    """Print each figure with what is required of it."""
    for name, value in figures.items():
        limit = LIMITS.get(name)
        required = "" if limit is None else f"  {limit}{'' if limit.kept(value) else '  MISSED'}"
        console.print(f"{name:34} {value:14,.1f}{required}", highlight=False, soft_wrap=True)
    line = f"load average before: {load_before:.1f}, on {os.cpu_count()} processors"
    console.print(line, highlight=False, soft_wrap=True)
