"""`make bench-burst`: 200 faults of mixed kinds within one second on 1,000 nodes, by the whole product."""

import json
import os
from pathlib import Path

from rich.console import Console

from testbed.bench_burst.burst import BurstFigures, measure_burst
from testbed.bench_burst.cluster import BurstCluster
from testbed.bench_burst.full_ladder import climb_full_ladder
from testbed.bench_burst.plan import Plan
from testbed.bench_burst.report import Figures, missed, show
from testbed.progress import Progress
from testbed.run_directory import run_directory


async def bench_burst(output: Path | None, plan: Plan | None = None) -> int:
    """Measure, print the figures on stdout and write them to `output`. Progress goes to stderr.

    Each burst has a cluster of its own. Returns 1 where a figure is above its limit.
    """
    plan, progress = plan or Plan(), Progress(Console(stderr=True))
    load_before = os.getloadavg()[0]
    alone = await _on_new_cluster(plan, progress, duplicates=False)
    with_duplicates = await _on_new_cluster(plan, progress, duplicates=True)
    with run_directory() as directory:
        ladder = await climb_full_ladder(directory, progress)
    figures = Figures(alone, with_duplicates, ladder, load_before)
    show(figures, Console())
    if output:
        output.write_text(json.dumps(figures.as_json(), indent=2) + "\n")
    return 1 if missed(figures.as_json()) else 0


async def _on_new_cluster(plan: Plan, progress: Progress, *, duplicates: bool) -> BurstFigures:
    with run_directory() as directory:
        async with BurstCluster.start(directory, plan, progress) as cluster:
            return await measure_burst(cluster, plan, progress, duplicates=duplicates)
