"""The pages about repairs say what the code does: rungs, outcomes, errors, exit codes of a reboot command."""

import re
from pathlib import Path

import pytest

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws import reboot_command
from gpu_runbooks.activities.history.recorded_repairs import is_hardware_name
from gpu_runbooks.activities.model.node_task import ResetOutcome
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.model.repair import RebootMethod
from gpu_runbooks.workflows.failures import NO_ANSWER

DOCS = Path(__file__).parents[2] / "docs"


def text_of(page):
    return (DOCS / f"{page}.md").read_text()


def first_cells(page):
    return re.findall(r"^\|([^|]+)\|", text_of(page), re.MULTILINE)


def names_in(cells):
    return set(re.findall(r"`([^`]+)`", " ".join(cells)))


def test_every_rung_is_explained():
    assert names_in(first_cells("ladder")) >= {*RungName} - {RungName.RESTART_WORKLOAD}


def test_every_outcome_of_a_reset_is_explained():
    assert names_in(first_cells("reset")) == {*ResetOutcome}


def test_every_way_to_reboot_is_explained():
    assert names_in(first_cells("ladder")) >= {*RebootMethod}


def test_the_exit_codes_of_a_reboot_command_are_those_that_are_read():
    codes = {int(cell) for cell in first_cells("ladder") if cell.strip().isdigit()}
    assert codes == {reboot_command.ASKED, reboot_command.NOT_ASKED, reboot_command.REFUSED}
    told = re.search(r"Its environment is (.*?), and nothing else", text_of("ladder"), re.DOTALL)
    assert names_in([told[1]]) == {"NODE_NAME", "INSTANCE_ID", "PROVIDER_ID", "INCIDENT", "REASON"} | {
        *reboot_command.INHERITED
    }
    assert f"for {reboot_command.LIMIT_SECONDS:.0f} s at most" in text_of("ladder")


@pytest.mark.parametrize("error", sorted({*errors.FOR_A_PERSON, *NO_ANSWER, errors.NO_OWNER}))
def test_every_question_of_an_error_has_an_answer(error):
    assert f"`[{error}]`" in " ".join(first_cells("operating"))


def test_the_names_of_hardware_are_names():
    cells = [cell for cell in first_cells("ledger") if cell.strip().startswith("`")]
    names = [re.search(r"`([^`]+)`", cell)[1].rstrip(".") for cell in cells]
    assert {name.partition(":")[0] for name in names} >= {"serial", "board"}
    assert all(is_hardware_name(name) for name in names)
