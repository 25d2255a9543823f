"""What follows from old evidence: tables."""

from datetime import UTC, datetime, timedelta

import pytest
from incident.plans import report

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.plan import ExpectedHardware
from gpu_runbooks.workers.intake.staleness import AGAIN_AFTER, REMEDIATED, Dealt, decide, wrong_on
from gpu_runbooks.workflows.phases import Outcome
from testbed.nodes import gpu_node

NOW = datetime(2026, 3, 4, 10, tzinfo=UTC)
BOOT, EARLIER_BOOT = "b0000000-0000-4000-8000-0000000000ff", "b0000000-0000-4000-8000-000000000001"
SHOWN = ("allocatable GPUs is 7, not 8",)


def decided(*, age=timedelta(minutes=2), boot_id="", source=FaultSource.XID, **changes):
    """`boot_id` is the fault's."""
    fault = report().fault.model_copy(
        update={"first_seen": NOW - age, "boot_id": boot_id, "source": source, "code": "79"}
    )
    known = {"now": NOW, "max_age": timedelta(minutes=30), "boot_id": BOOT, "wrong": ()}
    return decide(fault, **(known | changes))


@pytest.mark.parametrize(
    ("age", "boot_id", "ignored"),
    [
        (timedelta(days=3), "", "expired: seen first 72 h 0 min ago"),
        (timedelta(minutes=5), EARLIER_BOOT, "expired: rebooted since"),
        (timedelta(minutes=2), BOOT, ""),
    ],
)
def test_of_a_backlog_only_what_is_of_now_is_taken(age, boot_id, ignored):
    found = decided(age=age, boot_id=boot_id).ignored
    assert found.startswith(ignored)
    assert bool(found) is bool(ignored)


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({"wrong": SHOWN}, True),  # the node itself says so
        ({"unsettled": True}, True),  # an incident about it failed
        ({"source": FaultSource.AWS}, True),  # no node shows what AWS announces
        ({"max_age": timedelta(days=4)}, True),
        ({"max_age": None}, True),
        ({"boot_id": BOOT}, False),
        ({}, False),
    ],
)
def test_old_evidence_is_taken_only_where_something_else_speaks_for_it(changes, taken):
    pinned = {"age": timedelta(days=3)} | changes
    assert (decided(**pinned).ignored == "") is taken
    assert not decided(**pinned).again


@pytest.mark.parametrize(("of_fault", "of_node"), [("", BOOT), (EARLIER_BOOT, ""), ("", "")])
def test_an_unknown_boot_rules_nothing_out(of_fault, of_node):
    fault = report().fault.model_copy(update={"first_seen": NOW, "boot_id": of_fault})
    assert not decide(fault, now=NOW, max_age=timedelta(hours=1), boot_id=of_node, wrong=()).ignored


@pytest.mark.parametrize(
    ("outcome", "wrong", "again", "ignored"),
    [
        (Outcome.RETURNED, (), None, "same episode, already remediated"),
        (Outcome.REPLACED, (), None, "same episode, already remediated"),
        (Outcome.RESTARTED, (), None, "same episode, already remediated"),
        (Outcome.RETURNED, SHOWN, None, ""),
        (Outcome.RETURNED, SHOWN, NOW - timedelta(hours=1), "A person has to look"),
        (Outcome.RETURNED, SHOWN, NOW - AGAIN_AFTER, ""),
        (Outcome.HELD, SHOWN, None, "same episode, already answered"),
        (Outcome.ABORTED, SHOWN, None, "same episode, already answered"),
        (Outcome.LEFT_ALONE, SHOWN, None, "same episode, already answered"),
        (Outcome.OBSERVED, SHOWN, None, "same episode, already answered"),
    ],
)
def test_what_an_incident_dealt_with_opens_at_most_one_more_while_the_node_shows_it(
    outcome, wrong, again, ignored
):
    decision = decided(wrong=wrong, dealt=Dealt("r1", outcome, again))

    assert ignored in decision.ignored
    assert decision.again is (ignored == "")


def test_a_condition_that_stays_after_a_repair_is_no_second_evidence_of_itself():
    """A detector may never take it back: neither it nor what else the node shows opens one more incident."""
    bad = ("condition KernelDeadlock is True",)
    for wrong in ((), bad, SHOWN):
        for again in (None, NOW - AGAIN_AFTER):
            decision = decided(
                source=FaultSource.CONDITION, wrong=wrong, dealt=Dealt("r1", Outcome.RETURNED, again)
            )
            assert "the condition has not been good since" in decision.ignored
            assert not decision.again


def test_a_reboot_outdates_what_was_dealt_with_too():
    assert decided(boot_id=EARLIER_BOOT, wrong=SHOWN, dealt=Dealt("r1", "returned")).ignored


def test_the_ends_that_say_that_a_node_is_well():
    assert {Outcome.ABORTED, Outcome.HELD, Outcome.FAILED, Outcome.LEFT_ALONE}.isdisjoint(REMEDIATED)


EXPECTED = ExpectedHardware(instance_type="p5.48xlarge", gpus=8, efa_interfaces=32, nvlink=True)
WATCHED = {"AcceleratedHardwareReady": frozenset({"False"}), "KernelDeadlock": frozenset({"True"})}


class TestNode:
    def wrong(self, conditions=(), ready="True", **allocatable):
        node = gpu_node("gpu-a1", "i-0aaaaaaaaaaaaaaa1")
        node["metadata"]["uid"] = "u1"
        node["status"]["allocatable"] |= allocatable
        node["status"]["conditions"] = [{"type": "Ready", "status": ready}, *conditions]
        return wrong_on(node, EXPECTED, WATCHED)

    def test_a_node_that_has_all_shows_nothing(self):
        good = {"type": "KernelDeadlock", "status": "False"}
        unwatched = {"type": "DiskPressure", "status": "True"}
        odd = {"type": ["x"], "status": {"a": 1}}
        assert self.wrong([good, unwatched, odd]) == ()

    @pytest.mark.parametrize(
        ("changes", "shown"),
        [
            ({"nvidia.com/gpu": "7"}, "allocatable GPUs"),
            ({"vpc.amazonaws.com/efa": "31"}, "allocatable EFA"),
            ({"ready": "False"}, "node ready"),
            ({"ready": "Unknown"}, "node ready"),
            ({"conditions": [{"type": "KernelDeadlock", "status": "True"}]}, "KernelDeadlock is True"),
            ({"conditions": [{"type": "AcceleratedHardwareReady", "status": "False"}]}, "HardwareReady"),
        ],
    )
    def test_what_is_missing_or_bad_is_shown(self, changes, shown):
        (found,) = self.wrong(**changes)
        assert shown in found
