"""What each fault gets where the site says nothing."""

import re
from datetime import timedelta

import pytest
from policy.factories import SMALLEST, fault

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.policy import catalogue
from gpu_runbooks.workflows.policy.answers import counts_repeats
from gpu_runbooks.workflows.policy.built_in import built_in_answer
from gpu_runbooks.workflows.policy.built_in_rules import fault_of, is_built_in, other_names
from gpu_runbooks.workflows.policy.condition_reasons import known_reasons
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.known_codes import (
    aws_events,
    dcgm_codes,
    kernel_log_codes,
    recovery_actions,
    sxids,
)
from gpu_runbooks.workflows.policy.node_conditions import conditions
from gpu_runbooks.workflows.policy.planning import treatment_of

POLICY = load_policy(SMALLEST)
TAINT_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
DISRUPTIVE = {RungName.DRAIN, RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE}
GPU = {"kind": "gpu", "uuid": "GPU-1", "pci_address": "0000:4c:00"}


def answer(source, code, **more) -> tuple[str, str]:
    treatment = treatment_of(POLICY, fault(source, code, **more))
    return treatment.rule, treatment.ladder


@pytest.mark.parametrize(
    ("code", "rule", "ladder"),
    [
        ("13", "xid-13", "notify"),
        ("31", "xid-31", "notify"),
        ("43", "xid-43", "notify"),
        ("45", "xid-45", "notify"),
        ("48", "xid-48", "reset"),
        ("63", "xid-63", "block"),
        ("64", "xid-64", "reset"),
        ("74", "xid-74", "reset"),
        ("79", "xid-79", "replace"),
        ("92", "xid-92", "none"),
        ("94", "xid-94", "block"),
        ("95", "xid-95", "reset"),
        ("109", "xid-109", "reset"),
        ("119", "xid-119", "reset"),
        ("120", "xid-120", "reset"),
        ("140", "xid-140", "reset"),
        ("143", "xid-143", "reset"),
        ("149", "xid-149", "reset"),
        ("154", "xid-154", "block"),
        ("999", "xid-999", "block"),
        ("0", "xid-0", "none"),
        ("-1", "xid-unreadable", "block"),
        (" 79", "xid-79", "replace"),
        ("79.0", "xid-79", "replace"),
        ("079", "xid-79", "replace"),
        ("790", "xid-790", "block"),
        ("Xid79", "xid-unreadable", "block"),
        ("79,94", "xid-unreadable", "block"),
        ("", "xid-unreadable", "block"),
        ("None", "xid-unreadable", "block"),
        ("9999999", "xid-unreadable", "block"),
        ("٧٩", "xid-unreadable", "block"),
        ("79\n94", "xid-unreadable", "block"),
    ],
)
def test_xids(code, rule, ladder):
    assert answer(FaultSource.XID, code) == (rule, ladder)


@pytest.mark.parametrize(
    ("code", "grade", "ladder"),
    [
        ("144", "", "reset"),
        ("144", "fatal", "reset"),
        ("144", "nonfatal", "none"),
        ("147", "", "none"),
        ("147", "fatal", "reset"),
        ("148", "nonfatal", "none"),
        ("149", "nonfatal", "none"),
        ("150", "fatal", "reset"),
        ("79", "nonfatal", "replace"),  # the driver writes the word for NVLink's Xids only
        ("151", "nonfatal", "reboot"),
        ("999", "nonfatal", "block"),
    ],
)
def test_word_of_the_line_decides_about_nvlink(code, grade, ladder):
    assert answer(FaultSource.XID, code, grade=grade) == (f"xid-{code}", ladder)


@pytest.mark.parametrize(
    ("code", "grade", "rule", "ladder"),
    [
        ("20034", "", "sxid-20034", "reboot"),
        ("20034", "fatal", "sxid-20034", "reboot"),
        ("20034", "nonfatal", "sxid-20034", "none"),
        ("12028", "", "sxid-12028", "none"),
        ("12028", "nonfatal", "sxid-12028", "none"),
        ("12028", "fatal", "sxid-12028", "reboot"),
        ("10001", "", "sxid-10001", "block"),
        ("10001", "fatal", "sxid-10001", "reboot"),
        ("23013", "", "sxid-23013", "reboot"),
        ("24003", "", "sxid-24003", "none"),
        (" 20034.0", "", "sxid-20034", "reboot"),
        ("29999", "", "sxid-unknown", "block"),
        ("29999", "fatal", "sxid-unknown", "block"),
        ("29999", "nonfatal", "sxid-unknown", "block"),
        ("SXid", "fatal", "sxid-unknown", "block"),
        ("", "", "sxid-unknown", "block"),
    ],
)
def test_sxids(code, grade, rule, ladder):
    assert answer(FaultSource.SXID, code, grade=grade) == (rule, ladder)


@pytest.mark.parametrize(
    ("action", "rule", "ladder"),
    [
        (1, "recovery-reset", "reset"),
        (2, "recovery-reboot", "reboot"),
        (3, "recovery-drain-p2p", "drain"),
        (4, "recovery-drain-and-reset", "reset"),
        (5, "recovery-imex", "block"),
        (6, "recovery-bus-reset", "reboot"),
        (7, "recovery-system-reboot", "reboot"),
        (8, "recovery-unknown", "block"),
        (4294967295, "recovery-unknown", "block"),
        (-1, "recovery-unknown", "block"),
    ],
)
@pytest.mark.parametrize(
    ("source", "code"),
    [
        (FaultSource.XID, "79"),
        (FaultSource.XID, "154"),
        (FaultSource.XID, "31"),
        (FaultSource.XID, "999"),
        (FaultSource.XID, "unreadable"),
        (FaultSource.NVML, "recovery-action"),
        (FaultSource.DCGM, "101"),
        (FaultSource.ALERT, "SomethingNew"),
    ],
)
def test_recovery_action_comes_before_any_table(source, code, action, rule, ladder):
    assert answer(source, code, recovery_action=action) == (rule, ladder)


@pytest.mark.parametrize(
    ("source", "code", "rule", "ladder"),
    [
        (FaultSource.XID, "154", "recovery-none", "none"),
        (FaultSource.XID, "154.0", "recovery-none", "none"),
        (FaultSource.NVML, "recovery-action", "recovery-none", "none"),
        (FaultSource.XID, "79", "xid-79", "replace"),
        (FaultSource.XID, "95", "xid-95", "reset"),
        (FaultSource.XID, "31", "xid-31", "notify"),
        (FaultSource.XID, "999", "xid-999", "block"),
        (FaultSource.NVML, "something", "nvml-unknown", "block"),
    ],
)
def test_no_recovery_action_leaves_the_code_its_answer(source, code, rule, ladder):
    assert answer(source, code, recovery_action=0) == (rule, ladder)


def test_recovery_action_makes_the_fault_no_longer_the_applications():
    assert not treatment_of(POLICY, fault(FaultSource.XID, "31", recovery_action=1)).application


def test_site_rule_for_a_code_stands_over_the_recovery_action():
    policy = load_policy(
        f"{SMALLEST}faults: [{{name: ours, match: {{source: xid, codes: [154, 48]}}, ladder: drain}}]"
    )
    for code in ("48", "154"):
        treatment = treatment_of(policy, fault(FaultSource.XID, code, recovery_action=2))
        assert (treatment.rule, treatment.ladder) == ("ours", "drain")
    assert treatment_of(policy, fault(FaultSource.XID, "95", recovery_action=2)).ladder == "reboot"


@pytest.mark.parametrize(
    ("code", "ladder"),
    [
        ("4", "reset"),
        ("5", "none"),
        ("12", "none"),
        ("14", "reset"),
        ("15", "reboot"),
        ("16", "none"),
        ("20", "reboot"),
        ("40", "block"),
        ("80", "replace"),
        ("80.0", "replace"),
        ("81", "reset"),
        ("84", "none"),
        ("85", "block"),
        ("101", "block"),
        ("109", "block"),
        ("118", "replace"),
        ("120", "replace"),
        ("122", "block"),
        ("125", "reset"),
        ("126", "reboot"),
        ("127", "drain"),
        ("128", "reset"),
        ("129", "none"),
        ("131", "block"),
        ("132", "replace"),
    ],
)
def test_dcgm(code, ladder):
    assert answer(FaultSource.DCGM, code) == (f"dcgm-{code.removesuffix('.0')}", ladder)


@pytest.mark.parametrize(
    ("source", "code", "rule", "ladder"),
    [
        (FaultSource.EFA, "efa-admin-queue-closed", "efa-admin-queue-closed", "reboot"),
        (FaultSource.EFA, "efa-command-not-completed", "efa-command-not-completed", "block"),
        (FaultSource.EFA, "efa-completion-without-interrupt", "efa-completion-without-interrupt", "none"),
        (FaultSource.KERNEL, "ena-reset-failed", "ena-reset-failed", "reboot"),
        (FaultSource.KERNEL, "ena-keep-alive-timeout", "ena-keep-alive-timeout", "none"),
        (FaultSource.KERNEL, "nccl-segfault", "nccl-segfault", "none"),
        (FaultSource.KERNEL, "rm-init-adapter-failed", "rm-init-adapter-failed", "reset"),
        (FaultSource.EFA, "ena-reset-failed", "efa-unknown", "block"),
        (FaultSource.KERNEL, "efa-admin-queue-closed", "kernel-unknown", "block"),
        (FaultSource.AWS, "instance-retirement", "aws-instance-retirement", "replace"),
        (FaultSource.AWS, "instance-stop", "aws-instance-stop", "replace"),
        (FaultSource.AWS, "instance-reboot", "aws-instance-reboot", "reboot"),
        (FaultSource.AWS, "system-reboot", "aws-system-reboot", "reboot"),
        (FaultSource.AWS, "system-maintenance", "aws-system-maintenance", "block"),
        (
            FaultSource.AWS,
            "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
            "aws-instance-retirement-scheduled",
            "replace",
        ),
        (
            FaultSource.AWS,
            "AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED",
            "aws-instance-store-drive-performance-degraded",
            "replace",
        ),
        (
            FaultSource.AWS,
            "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED",
            "aws-instance-reboot-maintenance-scheduled",
            "reboot",
        ),
        (FaultSource.AWS, "spot-interruption", "aws-spot-interruption", "none"),
        (FaultSource.AWS, "rebalance-recommendation", "aws-rebalance-recommendation", "none"),
        (FaultSource.AWS, "AWS_EC2_SOMETHING_NEW", "aws-unknown", "block"),
        (FaultSource.AWS, "instance-Retirement", "aws-unknown", "block"),
        (FaultSource.MANUAL, "manual", "manual", "reset"),
        (FaultSource.ALERT, "xid-79", "alert-unknown", "block"),
        (FaultSource.NVML, "79", "nvml-unknown", "block"),
        (FaultSource.DCGM, "DBE", "dcgm-unknown", "block"),
        (FaultSource.DCGM, "9999", "dcgm-unknown", "block"),
    ],
)
def test_other_sources(source, code, rule, ladder):
    assert answer(source, code) == (rule, ladder)


@pytest.mark.parametrize("code", ["13", "31"])
def test_repeats_make_the_hardware_suspect(code):
    place = "GPC 2 TPC 1"
    once = fault(FaultSource.XID, code, entity=GPU, place=place, before=0)
    again = fault(FaultSource.XID, code, entity=GPU, place=place, before=1)
    assert treatment_of(POLICY, once).application
    suspect = treatment_of(POLICY, again)
    assert (suspect.rule, suspect.ladder, suspect.application) == (f"xid-{code}-repeated", "reset", False)
    often = treatment_of(POLICY, fault(FaultSource.XID, code, entity=GPU, place=place, before=500))
    assert often.rule == f"xid-{code}-repeated"


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("13", {"entity": GPU, "before": 5}),  # nobody knows where on the GPU
        ("13", {"entity": {"kind": "node"}, "place": "GPC 2 TPC 1", "before": 5}),
        ("31", {"before": 5}),  # nobody knows which GPU
        ("43", {"entity": GPU, "before": 5}),
        ("45", {"entity": GPU, "place": "GPC 2 TPC 1", "before": 5}),
        ("68", {"entity": GPU, "before": 5}),
    ],
)
def test_repeats_that_say_nothing_stay_the_applications(code, more):
    treatment = treatment_of(POLICY, fault(FaultSource.XID, code, **more))
    assert (treatment.rule, treatment.ladder, treatment.application) == (f"xid-{code}", "notify", True)


def test_site_rule_decides_about_repeats_too():
    text = f"{SMALLEST}faults:\n- {{name: ours, match: {{source: xid, code: 13}}, application: true"
    often = fault(FaultSource.XID, "13", entity=GPU, place="GPC 2 TPC 1", before=2)
    assert treatment_of(load_policy(text + "}\n"), often).application
    thrice = load_policy(text + ", repeats: {times: 3, within: 1h, ladder: replace}}\n")
    assert (treatment_of(thrice, often).rule, treatment_of(thrice, often).ladder) == ("ours", "replace")
    assert treatment_of(thrice, often.model_copy(update={"before": 1})).application


def test_what_is_counted():
    first = fault(FaultSource.XID, "13", entity=GPU)
    built_in = counts_repeats(POLICY, first)
    assert built_in is not None
    assert (built_in.by, built_in.within) == ("place", timedelta(hours=24))
    assert counts_repeats(POLICY, fault(FaultSource.XID, "79", entity=GPU)) is None
    text = f"{SMALLEST}faults:\n- {{name: ours, match: {{source: xid, code: 13}}, application: true"
    assert counts_repeats(load_policy(text + "}\n"), first) is None
    ours = counts_repeats(load_policy(text + ", repeats: {within: 1h, ladder: reset}}\n"), first)
    assert ours is not None
    assert (ours.by, ours.within) == ("gpu", timedelta(hours=1))


ALL_CODES = [
    *((FaultSource.XID, str(code)) for code in range(180)),
    *((FaultSource.SXID, code) for code in sxids()),
    *((FaultSource.DCGM, str(code)) for code in range(140)),
    *((row.fault_source, code) for code, row in kernel_log_codes().items()),
    *((FaultSource.AWS, code) for code in aws_events()),
    *((FaultSource.CONDITION, kind) for kind, _ in conditions()),
    *((source, "\ud800" * 200) for source in FaultSource),
]


def test_every_rule_has_a_name_that_a_taint_can_hold_and_that_policy_can_name():
    rules = {built_in_answer(fault(source, code)).rule for source, code in ALL_CODES}
    rules |= {built_in_answer(fault(FaultSource.XID, "79", recovery_action=n)).rule for n in range(10)}
    assert [rule for rule in rules if not TAINT_VALUE.fullmatch(rule) or not is_built_in(rule)] == []
    reasons = [f"reason-{word}" for word in (*known_reasons(), "NvidiaXID79Error", "DCGMHealthCode80")]
    assert [rule for rule in reasons if not TAINT_VALUE.fullmatch(rule) or not is_built_in(rule)] == []


def test_every_name_leads_to_the_fault_that_has_it():
    for source, code in ALL_CODES:
        named = fault_of(built_in_answer(fault(source, code)).rule)
        if named is not None:
            assert built_in_answer(fault(*named)).rule == built_in_answer(fault(source, code)).rule


@pytest.mark.parametrize(
    "name",
    ["xid-079", "xid-", "xid-1234567", "sxid-99999", "aws-", "reason-Nothing", "condition-DiskPressure"],
)
def test_names_that_no_fault_has(name):
    assert not is_built_in(name)
    assert fault_of(name) is None


def test_the_other_names_are_names():
    assert all(is_built_in(name) for name in other_names())


@pytest.mark.parametrize("source", [each for each in FaultSource if each is not FaultSource.MANUAL])
@pytest.mark.parametrize(
    "code", ["", " ", "999", "99999", "../../etc", "{{ template }}", "-x", "\x00", "a" * 300]
)
def test_unknown_codes_block_and_never_more(source, code):
    for more in ({}, {"grade": "fatal"}, {"grade": "nonfatal"}, {"before": 1000}, {"place": "GPC 1 TPC 1"}):
        treatment = treatment_of(POLICY, fault(source, code, entity=GPU, **more))
        assert [rung.name for rung in treatment.rungs] == [RungName.BLOCK, RungName.VALIDATE, RungName.RETURN]


def test_every_answer_is_a_ladder_and_only_repairs_drain():
    for source, code in ALL_CODES:
        treatment = treatment_of(POLICY, fault(source, code))
        disruptive = {rung.name for rung in treatment.rungs} & DISRUPTIVE
        assert bool(disruptive) is (treatment.ladder in {"drain", "reset", "reboot", "replace"})


def test_no_xid_of_an_application_is_ever_disruptive_alone():
    for code, xid in catalogue.xids().items():
        if xid.origin == "app":
            assert treatment_of(POLICY, fault(FaultSource.XID, str(code))).ladder == "notify"


def test_every_action_of_the_driver_is_known():
    assert list(recovery_actions()) == [str(action) for action in range(8)]
    assert len(dcgm_codes()) == 31
