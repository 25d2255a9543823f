"""The memo of an incident, and the names in the index."""

import json
from datetime import timedelta

import pytest
from ledger.factories import A, repair

from gpu_runbooks.activities.history.recorded_repairs import (
    LARGEST_INDEX,
    LARGEST_MEMO,
    indexed,
    is_hardware_name,
    repairs_memo,
    repairs_of_memo,
)
from gpu_runbooks.activities.model.plan import RungName

RESET = repair(RungName.RESET_GPU, (A, "serial:1"))


def test_memo_holds_what_was_written():
    reboot = repair(RungName.REBOOT, ("i-1", A), timedelta(minutes=1), proven=False)
    memo = json.loads(json.dumps(repairs_memo([RESET, reboot])))
    assert repairs_of_memo(memo["repairs"]) == (reboot, RESET)


@pytest.mark.parametrize("raw", [None, {}, "reset", 7, {"rung": "reboot"}, []])
def test_memo_of_another_program_holds_no_repairs(raw):
    assert repairs_of_memo(raw) == ()


def test_odd_items_are_passed_over():
    good = RESET.model_dump(mode="json")
    odd = [
        None,
        {},
        {**good, "rung": "explode"},
        {**good, "ended": "yesterday"},
        {**good, "ended": "2026-03-01T00:00:00"},
        {**good, "hardware": "i-1"},
    ]
    assert repairs_of_memo([*odd, {**good, "added": "by a later release"}]) == (RESET,)


def test_memo_stays_small_and_keeps_the_newest():
    names = tuple(f"GPU-{n:032d}" for n in range(16))
    many = [repair(RungName.RESET_GPU, names, timedelta(hours=hours)) for hours in range(50)]
    kept = repairs_of_memo(repairs_memo(many)["repairs"])
    assert kept == tuple(many[: len(kept)])
    assert 5 < len(kept) < 50
    assert len(json.dumps(repairs_memo(many))) < LARGEST_MEMO + 1024


@pytest.mark.parametrize(
    "name", ["i-0abc", "GPU-0a-1b", "serial:1650", "board:77", "kwok://a", "aws:///z/i-1"]
)
def test_hardware_names(name):
    assert is_hardware_name(name)


@pytest.mark.parametrize("name", ["", "a'b", 'a"b', "a b", "a\\", "x') OR ('", "é", "a\n", "n" * 200, "-a"])
def test_what_names_no_hardware(name):
    assert not is_hardware_name(name)


def test_index_holds_each_name_once_and_serials_last():
    assert indexed(["i-1", "serial:1", A, "serial:1", "it's"]) == ["i-1", A, "serial:1"]
    full = indexed([f"GPU-{n:032d}" for n in range(100)])
    assert len(json.dumps(full, separators=(",", ":"))) <= LARGEST_INDEX
    assert len(full) > 40
