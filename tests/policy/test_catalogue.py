"""Facts of the tables, and how codes are read."""

import pytest

from gpu_runbooks.activities.aws import instance_types
from gpu_runbooks.activities.aws.instance_types import expected_hardware
from gpu_runbooks.workflows.policy import catalogue
from gpu_runbooks.workflows.policy.catalogue import UnreadableXidError, first_rung, parse_code
from gpu_runbooks.workflows.policy.rows import FirstRung


@pytest.mark.parametrize(
    ("code", "rung"),
    [
        ("13", FirstRung.NONE),
        ("31", FirstRung.NONE),
        ("43", FirstRung.NONE),
        ("45", FirstRung.NONE),
        ("48", FirstRung.DRAIN_THEN_RESET),
        ("63", FirstRung.BLOCK),
        ("64", FirstRung.DRAIN_THEN_RESET),
        ("68", FirstRung.NONE),
        ("74", FirstRung.DRAIN_THEN_RESET),
        ("79", FirstRung.REPLACE),
        ("92", FirstRung.NONE),
        ("94", FirstRung.BLOCK),
        ("95", FirstRung.DRAIN_THEN_RESET),
        ("109", FirstRung.DRAIN_THEN_RESET),
        ("119", FirstRung.DRAIN_THEN_RESET),
        ("120", FirstRung.DRAIN_THEN_RESET),
        ("140", FirstRung.DRAIN_THEN_RESET),
        ("143", FirstRung.DRAIN_THEN_RESET),
        ("147", FirstRung.NONE),
        ("149", FirstRung.DRAIN_THEN_RESET),
        ("151", FirstRung.DRAIN_THEN_REBOOT),
        ("154", FirstRung.BLOCK),
        ("999", FirstRung.BLOCK),
        (999, FirstRung.BLOCK),
        ("790", FirstRung.BLOCK),
        ("0", FirstRung.NONE),
        (79, FirstRung.REPLACE),
        (79.0, FirstRung.REPLACE),
        (" 79", FirstRung.REPLACE),
        ("79.0", FirstRung.REPLACE),
    ],
)
def test_first_rung(code, rung):
    assert first_rung(code) is rung


@pytest.mark.parametrize(
    "code", ["-1", -1, "Xid79", "79,94", "79.5", 79.5, "", " ", None, True, "٧٩", float("nan")]
)
def test_unreadable_code_is_rejected(code):
    with pytest.raises(UnreadableXidError, match="is not an Xid"):
        parse_code(code)


def test_every_xid_of_the_driver_is_known():
    assert all(catalogue.find(code) is not None for code in range(1, 177))
    assert catalogue.find(177) is None


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (
            "79,A,b,hardware,fatal,replace,S\n79,B,b,hardware,fatal,none,S",
            "79 is listed twice",
        ),
        ("79,A,b,hardware,fatal,none,S", "79 contradicts itself: fatal, and first rung none"),
        ("79,A,b,hardware,fatal,block,S", "79 contradicts itself: fatal, and first rung block"),
        ("9,A,b,driver,info,block,S", "9 contradicts itself: for information, and first rung block"),
        ("13,A,b,app,warn,replace,S", "13 contradicts itself: the application's, and first rung replace"),
        ("65,A,b,hardware,warn,drain_then_reboot,S", "65 contradicts itself: a warning, and first rung"),
        ("65,A,b,hardware,warn,block,", "source"),
        ("79,A,b,hardware,fatal,reset,S", "first_rung"),
        ("79,A,b,hardware,fatal,none,S,more", "Keys should be strings"),
        ("79,A,b,hardware,grave,none,S", "severity"),
    ],
)
def test_broken_catalogue_is_refused(row, error):
    with pytest.raises(ValueError, match=error):
        catalogue.read_table(f"code,name,meaning,origin,severity,first_rung,source\n{row}")


@pytest.mark.parametrize(
    ("instance_type", "gpus", "efa_interfaces", "nvlink"),
    [
        ("p4d.24xlarge", 8, 4, True),
        ("p5.48xlarge", 8, 32, True),
        ("p5en.48xlarge", 8, 16, True),
        ("p6-b200.48xlarge", 8, 8, True),
        ("g5.xlarge", 1, 0, False),
    ],
)
def test_expected_hardware(instance_type, gpus, efa_interfaces, nvlink):
    expected = expected_hardware(instance_type)
    assert expected is not None
    assert (expected.gpus, expected.efa_interfaces, expected.nvlink) == (gpus, efa_interfaces, nvlink)


@pytest.mark.parametrize("instance_type", ["p9.unknown", "", "g6f.large", "p6e-gb200.36xlarge"])
def test_unknown_or_partly_known_type_expects_nothing(instance_type):
    """A fractional GPU and an unknown EFA count are no 0: no validation may pass on them."""
    assert expected_hardware(instance_type) is None


def test_type_that_is_listed_twice_is_refused():
    rows = "p5.48xlarge,h100,8,32,yes,S\np5.48xlarge,h100,8,16,yes,S"
    with pytest.raises(ValueError, match=r"p5\.48xlarge is listed twice"):
        instance_types.read_table(f"instance_type,gpu_model,gpus,efa_interfaces,nvlink,source\n{rows}")
