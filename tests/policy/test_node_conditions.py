"""Which Node conditions are watched, which of their statuses are bad, and what each gets."""

from datetime import timedelta

import pytest
from policy.factories import SMALLEST, fault

from gpu_runbooks.activities.karpenter.repair_policies import EKS, repaired_by
from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.names import HEALTHY_CONDITION
from gpu_runbooks.workflows.policy.condition_reasons import known_reasons, words_of
from gpu_runbooks.workflows.policy.file import PolicyError, load_policy
from gpu_runbooks.workflows.policy.node_conditions import condition_types, watched_conditions
from gpu_runbooks.workflows.policy.planning import treatment_of

POLICY = load_policy(SMALLEST)


def treated(condition, status="", reason="", policy=POLICY, **more):
    return treatment_of(policy, fault(FaultSource.CONDITION, condition, status=status, reason=reason, **more))


@pytest.mark.parametrize(
    ("condition", "status", "rule", "ladder", "seconds"),
    [
        ("AcceleratedHardwareReady", "False", "condition-AcceleratedHardwareReady", "reset", 600),
        ("AcceleratedHardwareReady", "", "condition-AcceleratedHardwareReady", "reset", 600),
        ("AcceleratedHardwareReady", "Unknown", "condition-not-bad", "none", 0),
        ("AcceleratedHardwareReady", "True", "condition-not-bad", "none", 0),
        ("Ready", "False", "condition-Ready", "reboot", 1800),
        ("Ready", "Unknown", "condition-Ready", "reboot", 1800),
        ("Ready", "True", "condition-not-bad", "none", 0),
        ("KernelReady", "False", "condition-KernelReady", "reboot", 1800),
        ("StorageReady", "False", "condition-StorageReady", "reboot", 1800),
        ("NetworkingReady", "False", "condition-NetworkingReady", "reboot", 1800),
        ("ContainerRuntimeReady", "False", "condition-ContainerRuntimeReady", "reboot", 1800),
        ("KernelReady", "Unknown", "condition-not-bad", "none", 0),
        ("KernelDeadlock", "True", "condition-KernelDeadlock", "reboot", 300),
        ("KernelDeadlock", "", "condition-KernelDeadlock", "reboot", 300),
        ("KernelDeadlock", "False", "condition-not-bad", "none", 0),
        ("KernelDeadlock", "Unknown", "condition-not-bad", "none", 0),
        ("ReadonlyFilesystem", "True", "condition-ReadonlyFilesystem", "reboot", 300),
        ("FrequentKubeletRestart", "True", "condition-FrequentKubeletRestart", "block", 1800),
        ("FrequentUnregisterNetDevice", "True", "condition-FrequentUnregisterNetDevice", "block", 1800),
        ("XidCriticalError", "True", "condition-XidCriticalError", "block", 0),
        (HEALTHY_CONDITION, "False", "condition-GPUHealthy", "block", 60),
        (HEALTHY_CONDITION, "Unknown", "condition-GPUHealthy", "block", 600),
        (HEALTHY_CONDITION, "True", "condition-not-bad", "none", 0),
        ("DiskPressure", "True", "condition-unknown", "block", 0),
        ("KWOKUnhealthy", "True", "condition-unknown", "block", 0),
        ("ready", "False", "condition-unknown", "block", 0),
        ("GPUHealthy", "False", "condition-unknown", "block", 0),
        ("Ready", "false", "condition-unknown", "block", 0),
        ("Ready", "Maybe", "condition-unknown", "block", 0),
    ],
)
def test_type_and_status(condition, status, rule, ladder, seconds):
    treatment = treated(condition, status)
    assert (treatment.rule, treatment.ladder) == (rule, ladder)
    assert treatment.toleration == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("condition", "reason", "rule", "ladder"),
    [
        ("AcceleratedHardwareReady", "NvidiaXID79Error", "reason-NvidiaXID79Error", "replace"),
        ("AcceleratedHardwareReady", "NvidiaXID95Error", "reason-NvidiaXID95Error", "reset"),
        ("AcceleratedHardwareReady", "NvidiaXID94Warning", "reason-NvidiaXID94Warning", "block"),
        ("AcceleratedHardwareReady", "NvidiaXID63Error", "reason-NvidiaXID63Error", "block"),
        ("AcceleratedHardwareReady", "NvidiaXID999Error", "reason-NvidiaXID999Error", "block"),
        ("AcceleratedHardwareReady", "NvidiaXID79Errors", "condition-AcceleratedHardwareReady", "reset"),
        ("AcceleratedHardwareReady", "NvidiaXID7900000Error", "condition-AcceleratedHardwareReady", "reset"),
        ("AcceleratedHardwareReady", "NvidiaDoubleBitError", "reason-NvidiaDoubleBitError", "reset"),
        ("AcceleratedHardwareReady", "NvidiaNVLinkError", "reason-NvidiaNVLinkError", "reset"),
        (
            "AcceleratedHardwareReady",
            "NvidiaDeviceCountMismatch",
            "reason-NvidiaDeviceCountMismatch",
            "reboot",
        ),
        ("AcceleratedHardwareReady", "FabricManagerNotRunning", "reason-FabricManagerNotRunning", "reboot"),
        ("AcceleratedHardwareReady", "NvidiaFabricError", "reason-NvidiaFabricError", "replace"),
        ("AcceleratedHardwareReady", "DCGMError", "reason-DCGMError", "none"),
        ("AcceleratedHardwareReady", "DCGMHealthCode80", "reason-DCGMHealthCode80", "replace"),
        ("AcceleratedHardwareReady", "DCGMHealthCode9999", "reason-DCGMHealthCode9999", "block"),
        ("AcceleratedHardwareReady", "DCGMFieldError230", "reason-DCGMFieldError230", "none"),
        ("AcceleratedHardwareReady", "DCGMDiagnosticFailure", "reason-DCGMDiagnosticFailure", "reset"),
        ("AcceleratedHardwareReady", "NeuronDMAError", "reason-NeuronDMAError", "block"),
        ("AcceleratedHardwareReady", "SomethingNew", "condition-AcceleratedHardwareReady", "reset"),
        ("ContainerRuntimeReady", "PodStuckTerminating", "reason-PodStuckTerminating", "none"),
        ("KernelReady", "ForkFailedOutOfPIDs", "reason-ForkFailedOutOfPIDs", "reboot"),
        ("NetworkingReady", "IPAMDNotRunning", "reason-IPAMDNotRunning", "reboot"),
        ("NetworkingReady", "InterfaceNotUp", "reason-InterfaceNotUp", "reboot"),
        (HEALTHY_CONDITION, "RecoveryAction1Needed", "reason-RecoveryAction1Needed", "reset"),
        (HEALTHY_CONDITION, "RecoveryAction2Needed", "reason-RecoveryAction2Needed", "reboot"),
        (HEALTHY_CONDITION, "RecoveryAction5Needed", "reason-RecoveryAction5Needed", "block"),
        (HEALTHY_CONDITION, "RecoveryAction99Needed", "reason-RecoveryAction99Needed", "block"),
        (HEALTHY_CONDITION, "RecoveryActionNeeded", "reason-RecoveryActionNeeded", "block"),
        (HEALTHY_CONDITION, "GPULost", "reason-GPULost", "replace"),
        (HEALTHY_CONDITION, "GPUCountWrong", "reason-GPUCountWrong", "reboot"),
        (HEALTHY_CONDITION, "RowRemapPending", "reason-RowRemapPending", "block"),
        (HEALTHY_CONDITION, "RowRemapFailed", "reason-RowRemapFailed", "replace"),
        (HEALTHY_CONDITION, "NVLinkDown", "reason-NVLinkDown", "reset"),
        # A reason counts only in a condition of the agent that writes it.
        (HEALTHY_CONDITION, "NvidiaXID79Error", "condition-GPUHealthy", "block"),
        ("AcceleratedHardwareReady", "GPULost", "condition-AcceleratedHardwareReady", "reset"),
        ("KernelDeadlock", "NvidiaXID79Error", "condition-KernelDeadlock", "reboot"),
        # Of several reasons the gravest decides.
        (
            HEALTHY_CONDITION,
            "RowRemapPending,RecoveryAction2Needed",
            "reason-RecoveryAction2Needed",
            "reboot",
        ),
        (HEALTHY_CONDITION, "GPULost,RowRemapPending", "reason-GPULost", "replace"),
        (
            "AcceleratedHardwareReady",
            "DCGMError, NvidiaXID31Warning NvidiaXID79Error",
            "reason-NvidiaXID79Error",
            "replace",
        ),
        ("AcceleratedHardwareReady", "DCGMError,SomethingNew", "condition-AcceleratedHardwareReady", "reset"),
        ("XidCriticalError", '{"31":true}', "reason-xid-31", "notify"),
        ("XidCriticalError", '{"31":true, "79":true}', "reason-xid-79", "replace"),
        ("XidCriticalError", '{"79":false, "48":true}', "reason-xid-48", "reset"),
        ("XidCriticalError", '{"079":true}', "reason-xid-79", "replace"),
        ("XidCriticalError", '{"999":true}', "reason-xid-999", "block"),
        ("XidCriticalError", "{}", "condition-XidCriticalError", "block"),
        ("XidCriticalError", '{"79":1}', "condition-XidCriticalError", "block"),
        ("XidCriticalError", '["79"]', "condition-XidCriticalError", "block"),
        ("XidCriticalError", '{"79":true', "condition-XidCriticalError", "block"),
        ("XidCriticalError", '{"-79":true}', "condition-XidCriticalError", "block"),
        ("XidCriticalError", "[" * 5000, "condition-XidCriticalError", "block"),
        ("XidCriticalError", "[" * 1000, "condition-XidCriticalError", "block"),
        ("XidCriticalError", "79", "condition-XidCriticalError", "block"),
        ("KernelDeadlock", "x" * 100_000, "condition-KernelDeadlock", "reboot"),
    ],
)
def test_reason(condition, reason, rule, ladder):
    status = "True" if condition in {"XidCriticalError", "KernelDeadlock"} else "False"
    treatment = treated(condition, status, reason)
    assert (treatment.rule, treatment.ladder) == (rule, ladder)
    if ladder != "none":
        assert treatment.toleration == treated(condition, status).toleration


def test_reason_of_an_application_touches_no_node():
    assert treated("AcceleratedHardwareReady", "False", "NvidiaXID31Error").application
    assert treated("XidCriticalError", "True", '{"13":true}').application


@pytest.mark.parametrize("status", ["True", "Unknown"])
def test_reason_of_a_status_that_is_not_bad_says_nothing(status):
    assert treated("AcceleratedHardwareReady", status, "NvidiaXID79Error").ladder == "none"


@pytest.mark.parametrize(
    ("reason", "ladder"),
    [("DriverUnresponsive", "reboot"), ("GPUUnanswered", "block"), ("InstanceTypeUnknown", "block")],
)
def test_unknown_of_our_agent(reason, ladder):
    treatment = treated(HEALTHY_CONDITION, "Unknown", reason)
    assert (treatment.ladder, treatment.toleration) == (ladder, timedelta(minutes=10))


@pytest.mark.parametrize("reason", ["RecoveryAction2Needed", "GPULost", "RowRemapFailed", "NVLinkDown"])
def test_reason_of_a_fault_proves_none_where_the_status_is_unknown(reason):
    for said in (reason, f"InstanceTypeUnknown,{reason}"):
        treatment = treated(HEALTHY_CONDITION, "Unknown", said)
        assert (treatment.ladder, treatment.toleration) == ("block", timedelta(minutes=10))


def test_rule_of_the_site_for_a_reason_and_unknown_counts():
    match = f"{{source: condition, code: {HEALTHY_CONDITION}, status: Unknown, reasons: [GPULost]}}"
    policy = load_policy(f"{SMALLEST}faults: [{{name: lost, match: {match}, ladder: replace}}]")
    assert treated(HEALTHY_CONDITION, "Unknown", "GPULost", policy).ladder == "replace"


HARDWARE = "AcceleratedHardwareReady"


def site(*rules):
    """A policy with a rule for each of (type, reasons, what it gives)."""
    written = [
        f"- {{name: r{number}, match: {{source: condition, code: {kind}, reasons: [{reasons}]}}, {gives}}}"
        for number, (kind, reasons, gives) in enumerate(rules, start=1)
    ]
    return load_policy(f"{SMALLEST}faults:\n" + "\n".join(written))


HARMLESS = (HEALTHY_CONDITION, "RowRemapPending", "ladder: none")
OF_USERS = (HARDWARE, "NvidiaXID31Error", "application: true")
MILD = (HARDWARE, "NvidiaXID31Error", "ladder: block")
GRAVE = (HARDWARE, "NvidiaPCIeError", "ladder: replace")
SOON = (HARDWARE, "NvidiaPowerError", "ladder: replace, toleration: 1m")
LATE = (HARDWARE, "NvidiaThermalError", "ladder: replace, toleration: 1h")
NOTICE = (HARDWARE, "NvidiaPCIeError", "ladder: notify")
RESTARTS = (HARDWARE, "NvidiaPowerError", "ladder: restart")
BOTH = (HARDWARE, '"NvidiaXID31Error,NvidiaXID79Error"', "ladder: block")


@pytest.mark.parametrize(
    ("policy", "condition", "reason", "rule", "ladder"),
    [
        (site(HARMLESS), HEALTHY_CONDITION, "RowRemapPending", "r1", "none"),
        (site(HARMLESS), HEALTHY_CONDITION, "RowRemapPending,GPULost", "reason-GPULost", "replace"),
        (site(HARMLESS), HEALTHY_CONDITION, "GPULost,RowRemapPending", "reason-GPULost", "replace"),
        (site(HARMLESS), HEALTHY_CONDITION, "RowRemapPending,New", "condition-GPUHealthy", "block"),
        (site(OF_USERS), HARDWARE, "NvidiaXID31Error NvidiaXID79Error", "reason-NvidiaXID79Error", "replace"),
        (site(OF_USERS), HARDWARE, "NvidiaXID31Error,SomethingNew", "condition-" + HARDWARE, "reset"),
        (site(MILD, GRAVE), HARDWARE, "NvidiaXID31Error,NvidiaPCIeError", "r2", "replace"),
        (site(GRAVE, MILD), HARDWARE, "NvidiaXID31Error,NvidiaPCIeError", "r1", "replace"),
        (site(GRAVE, MILD), HARDWARE, "NvidiaPCIeError,NvidiaXID31Error", "r1", "replace"),
        (site(LATE, SOON), HARDWARE, "NvidiaThermalError,NvidiaPowerError", "r2", "replace"),
        (site(NOTICE, RESTARTS), HARDWARE, "NvidiaPCIeError,NvidiaPowerError", "r2", "restart"),
        # Words that stand together in a rule are one reason.
        (site(BOTH), HARDWARE, "NvidiaXID31Error,NvidiaXID79Error", "r1", "block"),
        (site(BOTH), HARDWARE, "NvidiaXID79Error,NvidiaXID31Error", "reason-NvidiaXID79Error", "replace"),
    ],
)
def test_each_reason_is_asked_and_the_gravest_answer_decides(policy, condition, reason, rule, ladder):
    treatment = treated(condition, "False", reason, policy)
    assert (treatment.rule, treatment.ladder) == (rule, ladder)


def test_site_rule_for_one_of_gkes_xids_hides_no_other():
    rule = "{name: fell-off, match: {source: xid, code: 79}, ladder: none}"
    policy = load_policy(f"{SMALLEST}faults: [{rule}]")
    treatment = treated("XidCriticalError", "True", '{"79":true, "48":true}', policy)
    assert (treatment.rule, treatment.ladder) == ("reason-xid-48", "reset")


def test_words_of_a_reason():
    assert words_of(" A,B; C|D\tE ") == ("A", "B", "C", "D", "E")
    assert words_of("") == ()
    assert len(words_of(",".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))) == 16


SITE = """\
faults:
- {name: kernel, match: {source: condition, code: KernelReady}, ladder: replace, toleration: 1h}
- {name: hardware, match: {source: condition, code: AcceleratedHardwareReady}, ladder: drain}
- name: fabric
  match: {source: condition, code: AcceleratedHardwareReady, reasons: [NvidiaFabricError]}
  ladder: reboot
- {name: fell-off, match: {source: xid, code: 79}, ladder: reboot, toleration: 5m}
- {name: memory, match: {source: condition, code: GpuMemWatch, status: "True"}, ladder: block}
"""


@pytest.mark.parametrize(
    ("condition", "status", "reason", "rule", "ladder"),
    [
        ("KernelReady", "False", "ForkFailedOutOfPIDs", "kernel", "replace"),
        ("AcceleratedHardwareReady", "False", "NvidiaFabricError", "fabric", "reboot"),
        ("AcceleratedHardwareReady", "False", "DCGMError,NvidiaFabricError", "fabric", "reboot"),
        ("AcceleratedHardwareReady", "False", "NvidiaXID79Error", "hardware", "drain"),
        ("XidCriticalError", "True", '{"79":true}', "fell-off", "reboot"),
        ("XidCriticalError", "True", '{"95":true}', "reason-xid-95", "reset"),
        ("GpuMemWatch", "True", "GpuMemWatchIsNotHealthy", "memory", "block"),
        ("GpuMemWatch", "False", "", "condition-unknown", "block"),
        ("Ready", "Unknown", "NodeStatusUnknown", "condition-Ready", "reboot"),
    ],
)
def test_most_specific_rule_decides(condition, status, reason, rule, ladder):
    treatment = treated(condition, status, reason, load_policy(SMALLEST + SITE))
    assert (treatment.rule, treatment.ladder) == (rule, ladder)


def test_site_rule_for_an_xid_decides_about_the_reason_that_names_it():
    policy = load_policy(
        f"{SMALLEST}faults: [{{name: fell-off, match: {{source: xid, code: 79}}, ladder: reboot}}]"
    )
    assert treated("AcceleratedHardwareReady", "False", "NvidiaXID79Error", policy).rule == "fell-off"


def test_conditions_that_are_watched():
    watched = watched_conditions(POLICY)
    assert watched["Ready"] == {"False", "Unknown"}
    assert watched["AcceleratedHardwareReady"] == {"False"}
    assert watched["KernelDeadlock"] == {"True"}
    assert watched["XidCriticalError"] == {"True"}
    assert watched[HEALTHY_CONDITION] == {"False", "Unknown"}
    assert watched.keys() == condition_types()
    assert not watched.keys() & {"DiskPressure", "MemoryPressure", "GpuMemWatch"}


def test_site_adds_types_and_statuses():
    policy = load_policy(
        f"""{SMALLEST}faults:
- {{name: memory, match: {{source: condition, code: GpuMemWatch, status: "True"}}, ladder: block}}
- {{name: kernel, match: {{source: condition, code: KernelReady, status: Unknown}}, ladder: block}}
- {{name: alert, match: {{source: alert, code: Storage}}, ladder: block}}
"""
    )
    watched = watched_conditions(policy)
    assert watched["GpuMemWatch"] == {"True"}
    assert watched["KernelReady"] == {"False", "Unknown"}
    assert "Storage" not in watched
    assert treated("KernelReady", "Unknown", policy=policy).rule == "kernel"
    assert treated("KernelReady", "False", policy=policy).rule == "condition-KernelReady"


NODE = [
    ("Ready", "Unknown", "NodeStatusUnknown"),
    ("AcceleratedHardwareReady", "False", "NvidiaXID79Error"),
    ("KernelDeadlock", "False", "KernelHasNoDeadlock"),
    ("XidCriticalError", "True", '{"31":true}'),
    ("GpuMemWatch", "True", "GpuMemWatchIsNotHealthy"),
]


def test_polarity_on_one_node():
    watched = watched_conditions(load_policy(SMALLEST + SITE))
    bad = {kind for kind, status, _ in NODE if status in watched.get(kind, ())}
    assert bad == {"Ready", "AcceleratedHardwareReady", "XidCriticalError", "GpuMemWatch"}


def test_every_condition_that_aws_and_eks_repair_is_watched_with_its_statuses():
    watched = watched_conditions(POLICY)
    repaired = {(row.condition, row.status) for each in ("aws", EKS) for row in repaired_by(each)}
    assert all(status in watched[kind] for kind, status in repaired)


def test_double_bit_error_is_xid_48():
    same = treatment_of(POLICY, fault(FaultSource.XID, "48"))
    assert known_reasons()["NvidiaDoubleBitError"].first_rung.value == "drain_then_reset"
    assert same.ladder == treated("AcceleratedHardwareReady", "False", "NvidiaDoubleBitError").ladder


@pytest.mark.parametrize(
    "name", ["condition-Ready", "condition-GPUHealthy", "reason-NvidiaXID79Error", "reason-DCGMError"]
)
def test_rules_can_be_named_in_the_section_drain(name):
    rule = f"drain: {{rules: [{{name: a, method: evict, faults: [{name}]}}]}}"
    assert load_policy(SMALLEST + rule).drain.rules[0].faults == (name,)


def test_rule_of_a_condition_that_the_site_has_a_rule_for_never_decides():
    text = (
        SMALLEST
        + """\
faults: [{name: ours, match: {source: condition, code: Ready}, ladder: replace}]
drain: {rules: [{name: a, method: evict, faults: [condition-Ready]}]}
"""
    )
    with pytest.raises(PolicyError, match="rule ours is for that fault: write ours"):
        load_policy(text)


def test_rule_of_a_condition_still_decides_where_the_site_has_one_for_some_reasons():
    text = (
        SMALLEST
        + """\
faults:
- {name: ours, match: {source: condition, code: Ready, reasons: [KubeletNotReady]}, ladder: replace}
drain: {rules: [{name: a, method: evict, faults: [condition-Ready]}]}
"""
    )
    assert load_policy(text).drain.rules[0].faults == ("condition-Ready",)
