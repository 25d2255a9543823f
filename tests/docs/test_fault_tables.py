"""docs/faults.md has the tables that are built in."""

import re

import pytest
from docs.fault_tables import PAGE, tables, written_page

from gpu_runbooks.workflows.policy.built_in_rules import is_built_in
from gpu_runbooks.workflows.policy.rows import FOLDER

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_that_are_built_in():
    assert written_page(TEXT) == TEXT, "write them anew: python tests/docs/fault_tables.py"


@pytest.mark.parametrize("name", tables())
def test_no_cell_breaks_its_table(name):
    first, *lines = tables()[name].splitlines()
    assert {line.count("|") for line in lines} == {first.count("|")}


def test_every_rule_that_is_named_is_one():
    named = re.findall(r"`((?:xid|sxid|dcgm|condition|reason|recovery|aws|efa)-[A-Za-z0-9-]+)`", TEXT)
    assert len(named) > 10
    assert [name for name in named if not is_built_in(name)] == []


def test_every_table_beside_the_code_is_one_of_the_pages():
    assert len([*FOLDER.glob("*.csv")]) == len(tables()) - 1  # Xids have two
