"""`make chaos`: the whole matrix, or some of its cells."""

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from testbed.build import BinaryMissingError
from testbed.chaos.matrix import (
    Cell,
    UnknownCellError,
    chaos_testbed,
    columns,
    join,
    pick,
    retire,
    run_column,
)
from testbed.chaos.report import View, is_wrong, line, tables, write_json
from testbed.gpus import CompilerMissingError
from testbed.processes import PartFailedError
from testbed.progress import Progress
from testbed.run_directory import run_directory


async def chaos(cells: Sequence[Cell], output: Path | None) -> int:
    """Run cells; returns 0 only if all are as the table says."""
    console = Console()
    console.print(
        f"{len(cells)} cells: each brings an incident into a step, and disturbs it.", highlight=False
    )
    began = time.monotonic()
    with run_directory() as directory:
        async with chaos_testbed(directory, Progress(console)) as testbed:
            with View(console, cells) as view:
                for column in columns(cells):
                    await run_column(testbed, column, await join(testbed, column), view.done)
                    await retire(testbed)
    return _conclude(console, cells, output, time.monotonic() - began)


def _conclude(console: Console, cells: Sequence[Cell], output: Path | None, seconds: float) -> int:
    console.print("Outcome, and seconds from the disturbance to the end:")
    console.print(*tables(cells, console.width))
    wrong = [cell for cell in cells if is_wrong(cell)]
    for cell in wrong:
        console.print(line(cell), style="bold red", highlight=False, markup=False, soft_wrap=True)
        console.print(f"        expected: {cell.expected}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{len(cells)} cells in {seconds:.0f} s: {len(wrong)} wrong", style="bold red" if wrong else "green"
    )
    if output is not None:
        write_json(output, cells)
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.chaos", description=__doc__)
    parser.add_argument(
        "--cells", default="", help="cells as STEP/DISTURBANCE, with * for either, and commas between them"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes to a file as well")
    asked = parser.parse_args(arguments)
    if asked.json and not asked.json.parent.is_dir():
        parser.error(f"--json {asked.json}: there is no folder {asked.json.parent}")  # now, not after minutes
    try:
        cells = pick(asked.cells.split(","))
    except UnknownCellError as error:
        parser.error(str(error))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
    try:
        return asyncio.run(chaos(cells, asked.json))
    except (BinaryMissingError, CompilerMissingError, PartFailedError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
