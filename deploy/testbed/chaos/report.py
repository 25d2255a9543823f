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


STEP_WIDTH, CELL_WIDTH = 20, 18
"""Characters of a column, its frame included."""


def tables(cells: Sequence[Cell], width: int) -> list[Table]:
    """Step by disturbance: the outcome of each cell and its seconds, in red where it is wrong.

    As many disturbances beside each other as fit into the width.
    """
    names = list(dict.fromkeys(cell.disturbance.name for cell in cells))
    fit = max(1, (width - STEP_WIDTH) // CELL_WIDTH)
    return [_table(cells, names[first : first + fit]) for first in range(0, len(names), fit)]


def _table(cells: Sequence[Cell], disturbances: Sequence[str]) -> Table:
    by_name = {cell.name: cell for cell in cells}
    shown = Table()
    shown.add_column("step", no_wrap=True)
    for name in disturbances:
        shown.add_column(name.replace("-", "\n", 1), overflow="fold")
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
    """On a terminal a table of the disturbances that are on, which fills; elsewhere a line for each cell."""

    def __init__(self, console: Console, cells: Sequence[Cell]) -> None:
        self._console, self._cells = console, cells
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._show(self._cells[0])
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def done(self, cell: Cell) -> None:
        """A cell is over."""
        if self._live is not None:
            self._show(cell)
        else:
            self._console.print(line(cell), highlight=False, markup=False, soft_wrap=True)

    def _show(self, cell: Cell) -> None:
        beside = [other for other in self._cells if other.disturbance.name == cell.disturbance.name]
        if self._live is not None:
            self._live.update(tables(beside, self._console.width)[0], refresh=True)
