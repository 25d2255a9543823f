"""Codes as a person copies them from an exporter, beside how the webhook reads them."""

from datetime import UTC, datetime

import pytest

from gpu_runbooks.workers.policy.fault_notation import NotationError, read_fault

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "code", "grade"),
    [
        ("xid: 79", "79", ""),
        ("xid:79 ", "79", ""),
        ("xid: 79.0", "79", ""),
        ("xid: 145/fatal", "145", "fatal"),
        ("alert: GpuFellOff ", "GpuFellOff", ""),
        ("manual:", "manual", ""),
        ("manual", "manual", ""),
    ],
)
def test_space_around_a_code_is_nothing(written: str, code: str, grade: str) -> None:
    fault = read_fault(written, NOW)

    assert (fault.code, fault.grade) == (code, grade)


@pytest.mark.parametrize("written", ["xid:", "xid: ", "dcgm:", "alert:", "xid:/fatal"])
def test_a_source_alone_is_told_to_lack_its_code(written: str) -> None:
    with pytest.raises(NotationError, match=r"^(xid|dcgm|alert): names no code: write it behind the colon"):
        read_fault(written, NOW)


@pytest.mark.parametrize("written", ["xid:-1", "xid:-0", "xid:nan", "xid:inf", "xid:null"])
def test_an_exporters_word_for_no_value_is_no_code(written: str) -> None:
    with pytest.raises(NotationError):
        read_fault(written, NOW)
