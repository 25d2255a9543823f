"""What the past of the same hardware decides: where a ladder begins, and where it ends at a person."""

from datetime import timedelta

import pytest
from ledger.factories import NEW, NOW, OLD, A, B, C, facts, identity, repair

from gpu_runbooks.activities.model.ledger import HardwareHistory
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.model.repair import RepeatPolicy
from gpu_runbooks.workflows import ledger

RESET, REBOOT, REPLACE = RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE
POLICY = RepeatPolicy(window=timedelta(days=7), resets=3, reboots=2, replacements=1)

MACHINE = ledger.machine_names(identity(), facts(A, B))
GPU_A = ledger.gpu_names(A, None, facts(A, B))
GPU_B = ledger.gpu_names(B, None, facts(A, B))
AT_A = ledger.suspect(identity(), facts(A, B), [(A, None)])
AT_NODE = ledger.suspect(identity(), facts(A, B), [(None, None)])
OTHER = ledger.suspect(identity(NEW), facts(C, serials=("9",), board="99"), [(C, None)])
BACK = ledger.suspect(identity(NEW), facts(A, B), [(A, None)])
"""The same GPUs in another instance."""


def past(*repairs):
    return HardwareHistory(repairs=repairs)


def test_names_of_a_machine_and_of_one_of_its_gpus():
    assert MACHINE == (OLD, A, "serial:1", "board:77", B, "serial:2")
    assert GPU_A == (A, "serial:1")
    assert AT_NODE.faulty == (OLD, "board:77")


def test_gpu_is_known_by_its_address_too():
    assert ledger.gpu_names(None, "0000:41:00", facts(A, B)) == GPU_B


def test_gpu_that_nobody_measured_keeps_the_name_of_the_fault():
    assert ledger.gpu_names(A, None, None) == (A,)
    at = ledger.suspect(identity(), None, [(A, None)])
    assert (at.machine, at.faulty) == ((OLD, A), (A,))


@pytest.mark.parametrize("gpu", [(None, None), (None, "0000:99:00")])
def test_fault_of_no_known_gpu_is_the_nodes(gpu):
    assert ledger.suspect(identity(), facts(A, B), [gpu]).faulty == (OLD, "board:77")


def test_machine_without_an_instance_id_has_its_provider_id():
    kwok = identity().model_copy(update={"instance_id": "", "provider_id": "kwok://pool-x"})
    assert ledger.machine_names(kwok, None) == ("kwok://pool-x",)
    nameless = kwok.model_copy(update={"provider_id": ""})
    at = ledger.suspect(nameless, None, [])
    assert ledger.recall(at, POLICY, "run", NOW) is None


@pytest.mark.parametrize("serial", ["0", "000000", "N/A", "[Not Supported]", "", " ", "1' OR 'a'='a"])
def test_serial_number_that_is_none_names_nothing(serial):
    """It would make one machine of all, or of a query another one."""
    assert ledger.machine_names(identity(), facts(A, serials=(serial,), board=None)) == (OLD, A)


def test_serial_number_of_a_board_with_two_gpus_names_neither():
    shared = facts(A, B, serials=("5", "5"))
    assert ledger.gpu_names(A, None, shared) == (A,)
    assert "serial:5" in ledger.machine_names(identity(), shared)


def test_record_of_a_repair():
    assert ledger.hardware_of(RESET, AT_A, GPU_A) == GPU_A
    assert ledger.hardware_of(RESET, AT_A, ()) == AT_A.machine
    assert ledger.hardware_of(REBOOT, AT_A, GPU_A) == AT_A.machine
    assert ledger.hardware_of(REPLACE, AT_A, ()) == AT_A.machine


@pytest.mark.parametrize(
    ("repairs", "hardware", "floor"),
    [
        ([], AT_A, None),
        ([repair(RESET, GPU_A)], AT_A, REBOOT),
        ([repair(RESET, GPU_A, proven=False)], AT_A, REBOOT),
        ([repair(RESET, GPU_B)], AT_A, None),
        ([repair(RESET, GPU_A)], AT_NODE, None),
        ([repair(RESET, MACHINE)], AT_A, REBOOT),
        ([repair(RESET, MACHINE)], AT_NODE, REBOOT),
        ([repair(REBOOT, MACHINE)], AT_A, REPLACE),
        ([repair(REBOOT, (OLD,))], AT_A, REPLACE),
        ([repair(REBOOT, MACHINE)], AT_NODE, REPLACE),
        ([repair(REBOOT, MACHINE, timedelta(days=6)), repair(RESET, GPU_A)], AT_A, REPLACE),
        ([repair(REPLACE, MACHINE)], BACK, REPLACE),
        ([repair(REBOOT, MACHINE)], BACK, REPLACE),
        ([repair(RESET, GPU_A)], BACK, REBOOT),
        ([repair(REPLACE, MACHINE)], OTHER, None),
        ([repair(REBOOT, MACHINE)], OTHER, None),
        ([repair(RESET, GPU_A, timedelta(days=7))], AT_A, REBOOT),
        ([repair(RESET, GPU_A, timedelta(days=7, seconds=1))], AT_A, None),
        ([repair(RungName.DRAIN, MACHINE)], AT_A, None),
    ],
)
def test_ladder_begins_with_what_has_not_failed(repairs, hardware, floor):
    history = past(*repairs)
    assert ledger.floor(history, hardware, POLICY, NOW) is floor
    reason = ledger.floor_reason(history, hardware, POLICY, NOW)
    assert reason.startswith(f"begin with {floor}: ") if floor else reason == ""


def test_reason_of_a_floor_says_what_was_done_when_and_where():
    assert ledger.floor_reason(past(repair(RESET, GPU_A)), AT_A, POLICY, NOW) == (
        "begin with reboot: the same hardware is at fault again within 7 days after reset_gpu at 2026-03-10 "
        "11:00 UTC in node/prod/gpu-a1 (run run-1)"
    )


def reason(repairs, hardware, rung, own=0):
    before = ledger.done(past(*repairs), hardware, rung, POLICY, NOW)
    return ledger.cap_reached(rung, before, own, POLICY)


@pytest.mark.parametrize(
    ("repairs", "own", "hardware", "rung", "reached"),
    [
        ([], 0, AT_A, REPLACE, False),
        ([repair(REPLACE, MACHINE)], 0, BACK, REPLACE, True),
        ([repair(REPLACE, MACHINE)], 0, OTHER, REPLACE, False),
        ([repair(REPLACE, MACHINE)], 0, BACK, REBOOT, False),
        ([repair(REBOOT, MACHINE)], 0, AT_A, REBOOT, False),
        ([repair(REBOOT, MACHINE)], 1, AT_A, REBOOT, True),
        ([repair(REBOOT, MACHINE)] * 2, 0, AT_A, REBOOT, False),
        (
            [repair(RESET, GPU_A), repair(RESET, GPU_B), repair(RESET, GPU_B, timedelta(2))],
            0,
            AT_A,
            RESET,
            True,
        ),
        ([repair(RESET, GPU_A), repair(RESET, GPU_B)], 0, AT_A, RESET, False),
        (
            [repair(RESET, GPU_A), repair(RESET, GPU_B), repair(RESET, GPU_B, timedelta(8))],
            0,
            AT_A,
            RESET,
            False,
        ),
    ],
)
def test_caps_end_at_a_person(repairs, own, hardware, rung, reached):
    assert bool(reason(repairs, hardware, rung, own)) is reached


def test_reason_of_a_cap_names_the_incidents():
    old = repair(REPLACE, MACHINE, incident="node/prod/gpu-a0", run_id="run-0")
    assert reason([old], BACK, REPLACE, own=1) == (
        "replace was done 2 times to the same hardware within 7 days, and policy allows 1: replace at "
        "2026-03-10 11:00 UTC in node/prod/gpu-a0 (run run-0), 1 in this incident. "
        "Once more only by an operator"
    )


def test_long_list_of_repairs_is_cut():
    said = reason([repair(REBOOT, MACHINE, timedelta(hours=hour)) for hour in range(9)], AT_A, REBOOT)
    assert "reboot was done 9 times" in said
    assert ", and 4 more" in said
    assert len(said) < 700


def test_what_the_namespace_forgot_is_said():
    known = HardwareHistory(complete_since=NOW - timedelta(days=1))
    assert "repairs before 2026-03-09 12:00 UTC are not known" in ledger.unknown_past(known, POLICY, NOW)
    assert ledger.unknown_past(HardwareHistory(), POLICY, NOW) == ""
    assert ledger.unknown_past(HardwareHistory(complete_since=NOW - timedelta(8)), POLICY, NOW) == ""


def test_question_to_the_ledger_is_bounded():
    many = facts(*(f"GPU-{n:032d}" for n in range(64)), serials=tuple(str(n + 1) for n in range(64)))
    asked = ledger.recall(ledger.suspect(identity(), many, [(None, None)]), POLICY, "run-2", NOW)
    assert asked is not None
    assert asked.since == NOW - POLICY.window
    assert len(asked.hardware) <= ledger.MOST_NAMES
    assert asked.hardware[:2] == (OLD, "board:77")
