"""Which faults of a node count, and which come from one another."""

from datetime import timedelta

import pytest
from policy.factories import ONSET, P5, SMALLEST, fault, node

from gpu_runbooks.activities.model.fault import Entity, FaultSource
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.phases import Outcome
from gpu_runbooks.workflows.policy import catalogue
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.planning import plan
from gpu_runbooks.workflows.policy.sequence import (
    BURST,
    CASCADE,
    CAUSES,
    FATAL,
    Kind,
    Ours,
    explained,
)

POLICY = load_policy(SMALLEST)
GPU = Entity(kind="gpu", uuid="GPU-1", pci_address="0000:4c:00")
OTHER = Entity(kind="gpu", uuid="GPU-2", pci_address="0000:5d:00")
SWITCH = Entity(kind="nvswitch", pci_address="0000:87:00")


def xid(code, second=0.0, entity=GPU, **more):
    return seen(FaultSource.XID, str(code), second, entity, **more)


def seen(source, code, second=0.0, entity=GPU, **more):
    at = ONSET + timedelta(seconds=second)
    return fault(
        source,
        code,
        entity=entity,
        first_seen=at,
        last_seen=at,
        fingerprint=f"{source}-{code}-{second}-{entity.uuid}",
        **more,
    )


def reports(*faults, policy=POLICY):
    return [FaultReport(fault=each, plan=plan(policy, each, node(), P5, "ns")) for each in faults]


def by_whom(effect, *others):
    found = explained(effect, others)
    return None if found is None or found.by is None else found.by.code


@pytest.mark.parametrize(
    ("cause", "effect", "seconds"),
    [
        ("79", "45", 1),
        ("79", "43", 2),
        ("48", "45", 0),
        ("95", "13", 5),
        ("74", "31", 5),
        ("94", "45", 1),
        ("13", "43", 1),
        ("31", "45", 29),
        ("119", "45", -3),  # two drivers log out of order
        ("48", "94", -100),
        ("48", "95", 100),
        ("79", "159", 1),
        ("48", "63", 1),
        ("95", "63", 60),
        ("48", "171", 0),
        ("48", "172", -1),
        ("95", "94", 1),
    ],
)
def test_consequences_on_the_same_gpu(cause, effect, seconds):
    first, second = xid(cause), xid(effect, seconds)
    found = explained(second, [first, second])
    assert found is not None
    assert (found.kind, found.by) == (Kind.CONSEQUENCE, first)
    assert found.why
    assert explained(first, [first, second]) is None


@pytest.mark.parametrize(
    ("other", "effect"),
    [
        (xid("79"), xid("45", 1, OTHER)),
        (xid("79"), xid("45", CASCADE.total_seconds() + 1)),
        (xid("79"), xid("45", -6)),
        (xid("79", entity=Entity()), xid("45", 1)),
        (xid("79"), xid("45", 1, Entity())),
        (xid("79", boot_id="a"), xid("45", 1, boot_id="b")),
        (xid("48"), xid("63", BURST.total_seconds() + 1)),
        (xid("92"), xid("45", 1)),
        (xid("999"), xid("45", 1)),
        (xid("13"), xid("31", 1)),
        (xid("31"), xid("13", 1)),
        (xid("63"), xid("48", 1)),
        (xid("64"), xid("63", 1)),
        (xid("48"), xid("64", 1)),  # the remap failed as well: worse, not a consequence
        (xid("48"), xid("79", 1)),
        (xid("94"), xid("95", 1)),
        (xid("171"), xid("172", 1)),
        (xid("79"), xid("45", 1, recovery_action=1)),  # the driver asks for something because of it
        (seen(FaultSource.ALERT, "79"), xid("45", 1)),
    ],
)
def test_faults_that_count_beside_each_other(other, effect):
    assert explained(effect, [other, effect]) is None


def test_a_fault_alone_counts():
    for code in ("13", "45", "63", "74", "94", "95", "154", "159", "171", "999", "x"):
        only = xid(code)
        assert explained(only, [only]) is None


def test_gpu_is_known_by_either_name():
    cause = xid("79", entity=Entity(kind="gpu", pci_address="0000:4c:00"))
    assert by_whom(xid("45", 1), cause) == "79"
    stranger = xid("79", entity=Entity(kind="gpu", uuid="GPU-9", pci_address="0000:4c:00"))
    assert by_whom(xid("45", 1), stranger) is None  # another GPU sat at that address


def test_the_line_names_the_cause():
    effect = xid("45", 100, summary="Xid 45: Ch 00000002 caused by previous Xid 62")
    assert by_whom(effect, xid("62")) == "62"
    assert by_whom(effect, xid("61")) is None
    assert by_whom(effect, xid("62", entity=OTHER)) is None
    liar = xid("79", 100, summary="caused by previous Xid 13")
    assert by_whom(liar, xid("13")) is None


@pytest.mark.parametrize(
    ("grade", "second", "explains"),
    [("fatal", 2, True), ("fatal", -3, True), ("fatal", 600, False), ("nonfatal", 2, False), ("", 2, False)],
)
def test_fatal_switch_error_reaches_the_gpus_as_xid_74(grade, second, explains):
    switch = seen(FaultSource.SXID, "20034", entity=SWITCH, grade=grade)
    for entity in (GPU, OTHER):
        assert (by_whom(xid("74", second, entity), switch) == "20034") is explains


@pytest.mark.parametrize("action", [1, 2, 4, 99])
def test_a_recovery_action_that_is_taken_back_is_cancelled(action):
    wanted, over = xid("154", recovery_action=action), xid("154", 600, recovery_action=0)
    found = explained(wanted, [wanted, over])
    assert found is not None
    assert (found.kind, found.by) == (Kind.CANCELLED, over)
    assert explained(over, [wanted, over]) is None
    again = xid("154", 700, recovery_action=2)
    assert explained(again, [wanted, over, again]) is None
    assert explained(wanted, [xid("154", 600, OTHER, recovery_action=0)]) is None
    assert explained(xid("95"), [xid("95"), over]) is None  # only the action, not what led to it
    assert explained(xid("154"), [over]) is None


def test_ncc_ls_errors_are_never_the_cause():
    crash = seen(FaultSource.KERNEL, "nccl-segfault", 60, Entity())
    found = explained(crash, [crash])
    assert found is not None
    assert (found.kind, found.by) == (Kind.CONSEQUENCE, None)
    assert by_whom(crash, xid("79")) == "79"
    timeout = seen(FaultSource.ALERT, "NcclWatchdogTimeout", 60, Entity())
    assert by_whom(timeout, xid("79")) == "79"
    assert explained(timeout, [timeout]) is None
    assert by_whom(timeout, xid("79", 61)) is None


def test_what_we_do_is_ours():
    reset = Ours((GPU.uuid, GPU.pci_address), ONSET, ONSET + timedelta(seconds=30))
    kill = Ours((None, None), ONSET)
    for code in ("43", "45"):
        found = explained(xid(code, 40), [], [reset])
        assert found is not None
        assert (found.kind, found.by) == (Kind.OURS, None)
        assert explained(xid(code, 40, OTHER), [], [reset]) is None
        assert explained(xid(code, 40, OTHER), [], [kill]) is not None
        assert explained(xid(code, -1), [], [reset, kill]) is None
        assert explained(xid(code, 600), [], [reset]) is None
    assert explained(xid("79", 40), [], [reset, kill]) is None


def taken_in(*faults, policy=POLICY) -> Incident:
    """The incident that these faults open and join, in this order."""
    first, *others = reports(*faults, policy=policy)
    incident = Incident.open("test", "node/test/n1", "run", first, ONSET)
    for report in others:
        incident.join(report, ONSET + timedelta(minutes=1))
    return incident


def test_the_most_severe_that_counts_decides():
    incident = taken_in(
        xid("48"),
        xid("63", 1),
        xid("171", 0.5),
        xid("45", 2),
        xid("94", 3),
        xid("13", 4, OTHER),
    )
    assert incident.decisive == incident.faults[0].fingerprint
    told = [note.text for note in incident.notes]
    assert sum(text.startswith("consequence: ") for text in told) == 4
    assert [fault.code for fault in incident.unnotified] == ["13"]


def test_no_fault_hides_behind_a_milder_one():
    policy = load_policy(
        f"{SMALLEST}faults: [{{name: ours, match: {{source: xid, code: 48}}, ladder: block}}]"
    )
    assert taken_in(xid("48"), xid("95", 1), policy=policy).plan.treatment.rule == "xid-95"


def test_what_the_driver_takes_back_is_over_and_what_else_was_seen_stands():
    wanted, back = xid("154", recovery_action=2), xid("154", 60, recovery_action=0)
    assert taken_in(wanted, back).outcome is Outcome.CLEARED
    assert taken_in(wanted, xid("95", 1), back).outcome is None
    assert taken_in(wanted, xid("154", 60, OTHER, recovery_action=0)).outcome is None


def test_the_order_of_arrival_does_not_matter():
    faults = [xid("79"), xid("45", 1), xid("43", 2), xid("94", 3), xid("63", 4)]
    for shift in range(len(faults)):
        assert taken_in(*faults[shift:], *faults[:shift]).plan.treatment.rule == "xid-79"


def test_a_fault_after_the_repair_is_no_consequence_of_what_was_repaired():
    incident = taken_in(xid("48"))
    incident.repaired = ONSET + timedelta(seconds=60)
    (after,) = reports(xid("95", 90))
    incident.join(after, ONSET + timedelta(seconds=95))
    assert incident.repaired is None


def test_fatal_codes_are_those_of_the_catalogue():
    assert {code for code, each in catalogue.xids().items() if each.severity == "fatal"} == FATAL


def test_a_cause_needs_at_least_the_repair_of_its_consequence():
    rungs = ["none", "block", "drain", "drain_then_reset", "drain_then_reboot", "replace"]
    for effect, causes in CAUSES.items():
        least = rungs.index(catalogue.first_rung(effect))
        assert [each for each in causes if rungs.index(catalogue.first_rung(each)) < least] == []


def test_no_two_codes_explain_each_other():
    assert [(a, b) for a, causes in CAUSES.items() for b in causes if a in CAUSES.get(b, ())] == []
