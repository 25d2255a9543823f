"""The matrix as data: every cell has an end, and nothing is permitted twice."""

import asyncio

import pytest

from testbed.aws_faults import AwsFaults
from testbed.chaos.disturbances import DISTURBANCES
from testbed.chaos.matrix import UnknownCellError, pick
from testbed.chaos.report import is_wrong, write_json
from testbed.chaos.steps import STEPS
from testbed.chaos.table import SPECIAL


def test_the_matrix_has_every_step_under_every_disturbance():
    cells = pick([])
    assert len(cells) == len(STEPS) * len(DISTURBANCES) == len({cell.name for cell in cells})


def test_no_cell_permits_an_act_twice():
    for cell in pick([]):
        expected = cell.expected
        assert max(expected.reboots, expected.terminations, expected.resets) <= 1, cell.name


def test_an_incident_that_goes_on_leaves_no_block_and_no_paused_service():
    for cell in pick([]):
        if not cell.disturbance.ends_incident and "needs-operator" not in cell.expected.outcomes:
            assert (cell.expected.block, cell.expected.services) == ("none", "run"), cell.name


def test_special_cells_are_cells():
    assert {f"{step}/{disturbance}" for step, disturbance in SPECIAL} <= {cell.name for cell in pick([])}


def test_cells_are_picked_by_name():
    assert [cell.name for cell in pick(["draining/cancel"])] == ["draining/cancel"]
    assert len(pick(["*/cancel"])) == len(STEPS)
    assert len(pick(["draining/*", "draining/cancel"])) == len(DISTURBANCES)
    with pytest.raises(UnknownCellError, match="draning/cancel"):
        pick(["draning/cancel"])


def test_a_wrong_cell_is_told(tmp_path):
    (cell,) = pick(["draining/cancel"])
    cell.outcome, cell.problems = "stuck", ["waited for ever"]
    assert is_wrong(cell)
    write_json(tmp_path / "chaos.json", [cell])
    assert '"wrong": 1' in (tmp_path / "chaos.json").read_text()


async def test_a_call_that_waits_has_no_effect_once_its_caller_gave_up(tmp_path):
    faults = AwsFaults(tmp_path / "faults")
    faults.hold("before", "RebootInstances", "i-1")
    gone: list[bool] = []
    waiting = asyncio.create_task(
        asyncio.to_thread(faults.before, "RebootInstances", ["i-1"], lambda: bool(gone))
    )
    async with asyncio.timeout(10):
        while not faults.is_met("before", "RebootInstances", "i-1"):
            await asyncio.sleep(0.01)
    gone.append(True)
    assert await waiting == "drop"
    assert faults.before("RebootInstances", ["i-2"], lambda: False) == "pass"


async def test_a_call_that_waits_when_an_outage_begins_is_refused(tmp_path):
    faults = AwsFaults(tmp_path / "faults")
    faults.hold("before", "RebootInstances", "i-1")
    with faults.outage("refuse"):
        assert faults.before("RebootInstances", ["i-1"], lambda: False) == "refuse"
    faults.let_go("before", "RebootInstances", "i-1")
    assert faults.before("RebootInstances", ["i-1"], lambda: False) == "pass"
