"""The matrix as a person sees it while it is run and at its end, and as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from testbed.chaos.matrix import Cell


def is_wrong(cell: Cell) -> bool:
    """Whether a cell that was run is not as the table says."""
    return bool(cell.problems)


def table(cells: Sequence[Cell]) -> Table:
    """Step by disturbance: the outcome of each cell and its seconds, in red where it is wrong."""
    disturbances = list(dict.fromkeys(cell.disturbance.name for cell in cells))
    by_name = {cell.name: cell for cell in cells}
    shown = Table(title="Outcome, and seconds from the disturbance to the end", title_justify="left")
    shown.add_column("step", no_wrap=True)
    for name in disturbances:
        shown.add_column(name.replace("-", " "))
    for step in dict.fromkeys(cell.step.name for cell in cells):
        shown.add_row(step, *(_cell(by_name.get(f"{step}/{name}")) for name in disturbances))
    return shown


def _cell(cell: Cell | None) -> Text:
    if cell is None or not cell.outcome:
        return Text("" if cell is None else "…", style="dim")
    style = "bold red" if is_wrong(cell) else "green"
    return Text(f"{cell.outcome} {cell.seconds:.0f}", style=style)


def line(cell: Cell) -> str:
    """One cell that was run, in one line."""
    verdict = f"WRONG: {'; '.join(cell.problems)}" if is_wrong(cell) else "ok"
    return f"{cell.seconds:>5.0f} s  {cell.name:<34} {cell.outcome:<14} {verdict}"


def write_json(file: Path, cells: Sequence[Cell]) -> None:
    """Write how many cells were run and were wrong, and each cell with what was expected and what came."""
    content = {
        "cells": len(cells),
        "wrong": sum(map(is_wrong, cells)),
        "matrix": [
            {
                "step": cell.step.name,
                "disturbance": cell.disturbance.name,
                "expected": str(cell.expected),
                "outcome": cell.outcome,
                "seconds": round(cell.seconds, 1),
                "problems": cell.problems,
            }
            for cell in cells
        ],
    }
    file.write_text(json.dumps(content, indent=2) + "\n")


class View:
    """A table that fills on a terminal, a line for each cell elsewhere."""

    def __init__(self, console: Console, cells: Sequence[Cell]) -> None:
        self._console, self._cells = console, cells
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._live.update(table(self._cells), refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def done(self, cell: Cell) -> None:
        """A cell is over."""
        if self._live is not None:
            self._live.update(table(self._cells), refresh=True)
        else:
            self._console.print(line(cell), highlight=False, markup=False, soft_wrap=True)
