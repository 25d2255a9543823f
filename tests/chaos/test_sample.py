"""A sample of the matrix: each kind of disturbance once, on one testbed. `make chaos` runs all of it."""

import asyncio
from collections.abc import Sequence

from testbed.chaos.matrix import Cell, Machine, chaos_testbed, join, pick, run_column
from testbed.testbed import Testbed

BY_INCIDENT = ("resetting/cancel", "tolerating/terminate")

BY_ALL = (
    "validating/kill-cluster-worker",
    "resetting/stop-controller",
    "rebooting/temporal-restart",
    "draining/api-refuses",
    "reboot-answer/aws-refuses",
)


async def run_in_turn(testbed: Testbed, cells: Sequence[Cell], machines: Sequence[Machine]) -> None:
    for cell, machine in zip(cells, machines, strict=True):
        await run_column(testbed, [cell], [machine])


async def test_a_sample_of_the_matrix_ends_as_the_table_says(tmp_path):
    """What befalls one incident alone goes on beside what befalls all."""
    alone, all_at_once = pick(BY_INCIDENT), pick(BY_ALL)
    cells = [*alone, *all_at_once]
    assert sorted(cell.name for cell in cells) == sorted([*BY_INCIDENT, *BY_ALL])
    async with chaos_testbed(tmp_path) as testbed:
        machines = await join(testbed, cells)
        await asyncio.gather(
            *(
                run_column(testbed, [cell], [machine])
                for cell, machine in zip(alone, machines[: len(alone)], strict=True)
            ),
            run_in_turn(testbed, all_at_once, machines[len(alone) :]),
        )
    assert {cell.name: (cell.outcome, cell.problems) for cell in cells} == {
        cell.name: (cell.expected.outcomes[0], []) for cell in cells
    }
