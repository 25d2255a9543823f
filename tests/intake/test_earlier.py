"""What counts as the same place, and as one event."""

from datetime import UTC, datetime, timedelta

import pytest

from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource
from gpu_runbooks.activities.model.seen import seen_of
from gpu_runbooks.workers.intake.earlier import events, is_of_hardware, is_same_place

T0 = datetime(2026, 3, 1, tzinfo=UTC)
ONE, OTHER = "GPU-1", "GPU-2"


def fault(code="13", uuid=ONE, pci=None, place="GPC 2 TPC 1", kind="gpu"):
    entity = Entity(kind=kind, uuid=uuid, pci_address=pci)
    times = {"first_seen": T0, "last_seen": T0}
    return Fault(
        source=FaultSource.XID,
        code=code,
        entity=entity,
        place=place,
        fingerprint="f",
        reporter="test",
        **times,
    )


@pytest.mark.parametrize(
    ("earlier", "now", "by", "machine", "same"),
    [
        (fault(), fault(), "place", True, True),
        (fault(), fault(place="GPC 2 TPC 3"), "place", True, False),
        (fault(), fault(place="GPC 2 TPC 3"), "gpu", True, True),
        (fault(), fault(uuid=OTHER), "gpu", True, False),
        (fault(), fault("31"), "gpu", True, False),
        (fault(uuid=None, pci="0000:4c:00"), fault(uuid=None, pci="0000:4c:00"), "gpu", True, True),
        (fault(uuid=None, pci="0000:4c:00"), fault(uuid=None, pci="0000:4c:00"), "gpu", False, False),
        (fault(pci="0000:4c:00"), fault(uuid=None, pci="0000:4c:00"), "gpu", True, True),
        (fault(), fault(), "gpu", False, True),
    ],
    ids=[
        "the same place",
        "another TPC",
        "another TPC, by GPU",
        "another GPU",
        "another code",
        "the same address",
        "the address of another machine",
        "one names both, one the address",
        "the GPU moved with its UUID",
    ],
)
def test_the_same_place(earlier, now, by, machine, same):
    assert is_same_place(seen_of(earlier), now, by=by, machine=machine) is same


def test_what_names_no_gpu_is_nowhere():
    assert seen_of(fault(kind="node", uuid=None)) is None


@pytest.mark.parametrize(
    ("place", "expected"), [("GPC 2 TPC 1", True), ("", False), ("MIG instance 3", False)]
)
def test_a_slice_of_a_workload_is_no_place_of_the_hardware(place, expected):
    assert is_of_hardware(place) is expected


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [((), 0), ((0,), 1), ((0, 1, 2), 1), ((0, 10), 2), ((10, 0, 11), 2), ((0, 2, 4, 6), 2)],
)
def test_faults_of_one_burst_are_one_event(minutes, expected):
    assert events(T0 + timedelta(minutes=each) for each in minutes) == expected
