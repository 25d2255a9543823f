"""A sample of the matrix: each kind of disturbance once, on one testbed. `make chaos` runs all of it."""

import asyncio
from collections.abc import Iterator, Sequence

from testbed.chaos.matrix import Cell, Machine, chaos_testbed, join, pick, run_column
from testbed.testbed import Testbed

BY_INCIDENT = ("resetting/cancel", "tolerating/terminate")

BY_ALL = (
    ("validating/kill-cluster-worker", "resetting/stop-controller", "reboot-answer/aws-refuses"),
    ("rebooting/temporal-restart",),
    ("draining/api-refuses",),
)
"""In turn. Those of a line befall all incidents at once, and each other's."""


async def test_a_sample_of_the_matrix_ends_as_the_table_says(tmp_path):
    """What befalls one incident alone goes on beside what befalls all."""
    alone, in_turn = _picked(BY_INCIDENT), [_picked(line) for line in BY_ALL]
    cells = [*alone, *(cell for line in in_turn for cell in line)]
    async with chaos_testbed(tmp_path) as testbed:
        machines = iter(await join(testbed, cells))
        await asyncio.gather(
            _run_together(testbed, alone, machines), _run_in_turn(testbed, in_turn, machines)
        )
    assert {cell.name: (cell.outcome, cell.problems) for cell in cells} == {
        cell.name: (cell.expected.outcomes[0], []) for cell in cells
    }


def _picked(names: Sequence[str]) -> list[Cell]:
    return [cell for name in names for cell in pick([name])]


async def _run_together(testbed: Testbed, cells: Sequence[Cell], machines: Iterator[Machine]) -> None:
    await asyncio.gather(*(run_column(testbed, [cell], [next(machines)]) for cell in cells))


async def _run_in_turn(
    testbed: Testbed, lines: Sequence[Sequence[Cell]], machines: Iterator[Machine]
) -> None:
    for line in lines:
        await _run_together(testbed, line, machines)
