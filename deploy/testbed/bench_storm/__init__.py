"""`make bench-storm`: a broken detector calls more and more nodes bad. Ours, and Karpenter's own repairs."""

import asyncio
import json
import os
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from testbed.background import together
from testbed.bench_storm.contenders import CONTENDERS, Contender
from testbed.bench_storm.plan import Plan
from testbed.bench_storm.report import Figures, missed, show
from testbed.bench_storm.storm import Outcome, meet_storm
from testbed.progress import Progress
from testbed.run_directory import run_directory


async def bench_storm(output: Path | None, plan: Plan | None = None) -> int:
    """Let all three meet the storm at the same time, and print what became of their fleets.

    The figures go to stdout and to `output`, progress to stderr. Returns 1 where ours did not keep to its
    budget, destroyed a machine or did not recover by itself.
    """
    plan, progress = plan or Plan(), Progress(Console(stderr=True))
    load_before = os.getloadavg()[0]
    with ExitStack() as stack:
        directories = [stack.enter_context(run_directory()) for _ in CONTENDERS]
        outcomes: dict[Contender, Outcome] = {}
        turn = asyncio.Lock()

        async def meet(contender: Contender, directory: Path) -> None:
            outcomes[contender] = await meet_storm(contender, directory, plan, progress, turn)

        await together(*map(meet, CONTENDERS, directories))
    figures = Figures(plan, tuple(outcomes[contender] for contender in CONTENDERS), load_before)
    show(figures, Console())
    if output:
        output.write_text(json.dumps(figures.as_json(), indent=2) + "\n")
    return 1 if missed(figures) else 0
