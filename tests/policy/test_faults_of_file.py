"""Rules for faults: what they match, what they give, and rules that could never decide."""

import pytest
from policy.factories import SMALLEST, fault, problems

from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.planning import treatment_of


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{source: xid, code: 79}", "{source: xid, codes: [48, 79]}"),
        ("{source: xid, code: 79}", '{source: xid, code: "79.0"}'),
        ("{source: sxid, code: 20034}", '{source: sxid, code: "20034.0"}'),
        ("{source: dcgm, code: 80}", '{source: dcgm, code: "080"}'),
        ('{source: alert, code: "Fell Off"}', '{source: alert, code: " Fell Off"}'),
    ],
)
def test_overlapping_rules_name_each_other(first, second):
    text = f"""{SMALLEST}faults:
- {{name: one, match: {first}, ladder: reset}}
- {{name: two, match: {second}, ladder: reboot}}
"""
    (problem,) = problems(text)
    assert problem.startswith("line 10: faults[1].match.code")
    assert "is matched by rule one already: keep it in one place (the other is on line 9)" in problem


def test_same_code_of_another_source_is_another_fault():
    text = f"""{SMALLEST}faults:
- {{name: one, match: {{source: xid, code: 79}}, ladder: reset}}
- {{name: two, match: {{source: alert, code: 79}}, ladder: reboot}}
"""
    assert [rule.name for rule in load_policy(text).faults] == ["one", "two"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            "match: {source: xid, code: 13}, application: true, ladder: reset",
            "faults[0].ladder: an application's fault touches no node: drop `ladder: reset`, or write",
        ),
        ("match: {source: xid, code: 13}", "write the ladder to climb"),
        ("match: {source: xid}, ladder: reset", "write either `code: 79` or `codes: [79, 95]`"),
        ("match: {source: xid, code: 1, codes: [2]}, ladder: reset", "write either `code: 79` or"),
        ("match: {source: xid, code: true}, ladder: reset", "write a code, such as 79"),
    ],
)
def test_contradictory_rule(rule, expected):
    (problem,) = problems(f"{SMALLEST}faults: [{{name: a, {rule}}}]")
    assert expected in problem


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("xid-79", "source: xid, code: 119"),
        ("xid-79", "source: xid, codes: [79, 119]"),
        ("xid-79", "source: sxid, code: 79"),
        ("xid-13-repeated", "source: xid, code: 13"),
        ("dcgm-80", "source: dcgm, code: 81"),
        ("alert-unknown", "source: alert, code: GpuFellOff"),
        ("manual", "source: alert, code: manual"),
        ("reason-xid-79", "source: xid, code: 79"),
        ("recovery-reboot", "source: nvml, code: recovery-action"),
    ],
)
def test_name_of_a_built_in_rule_for_something_else(name, match):
    (problem,) = problems(rules(f"name: {name}, match: {{{match}}}, ladder: block"))
    assert problem == (
        f"line 9: faults[0].name: {name} is the name of a built-in rule, and not for what this one matches: "
        f"give it a name of its own, such as our-{name}"
    )


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("xid-79", 'source: xid, code: "79.0"'),
        ("sxid-20034", "source: sxid, codes: [20034]"),
        ("aws-instance-retirement", "source: aws, code: instance-retirement"),
        ("manual", "source: manual, code: manual"),
        ("our-xid-79", "source: xid, code: 119"),
    ],
)
def test_name_of_the_built_in_rule_for_the_same_fault(name, match):
    assert load_policy(rules(f"name: {name}, match: {{{match}}}, ladder: block")).faults[0].name == name


@pytest.mark.parametrize("application", ["true", "false"])
@pytest.mark.parametrize("ladder", ["restart", "patient"])
def test_rule_that_restarts_the_workload(ladder, application):
    (rule,) = load_policy(
        f"""{SMALLEST}ladders: {{patient: [{{rung: restart_workload, timeout: 1h}}]}}
faults:
- {{name: a, match: {{source: xid, code: 13}}, application: {application}, ladder: {ladder}}}
"""
    ).faults
    assert (rule.ladder, rule.application) == (ladder, application == "true")


@pytest.mark.parametrize(
    ("source", "written", "seen"),
    [
        (FaultSource.XID, '"079"', "79.0"),
        (FaultSource.SXID, "20034", "20034.0"),
        (FaultSource.SXID, '"20034.0"', " 20034"),
        (FaultSource.DCGM, "80", "80.0"),
        (FaultSource.DCGM, "80", "080"),
        (FaultSource.DCGM, "DCGM_FR_UNCONTAINED_ERROR", " DCGM_FR_UNCONTAINED_ERROR"),
    ],
)
def test_number_in_any_spelling_meets_its_rule(source, written, seen):
    policy = load_policy(rules(f"name: ours, match: {{source: {source}, code: {written}}}, ladder: drain"))
    assert treatment_of(policy, fault(source, seen)).rule == "ours"


def test_words_that_older_yaml_takes_for_booleans_stay_words():
    rule = "faults: [{name: a, match: {source: alert, code: off}, ladder: reset}]"
    assert load_policy(SMALLEST + rule).faults[0].match.written_codes() == ("off",)


def rules(*written: str) -> str:
    """A policy with these rules, the first on line 9."""
    return f"{SMALLEST}faults:\n" + "".join(f"- {{{rule}}}\n" for rule in written)


def condition(code: str, status: str = "", reason: str = "") -> Fault:
    return fault(FaultSource.CONDITION, code).model_copy(update={"status": status, "reason": reason})


READY = "source: condition, code: Ready"
OURS = "source: condition, code: example.com/FabricBroken"

CONDITIONS = rules(
    f"name: silent, match: {{{READY}, status: Unknown}}, ladder: block",
    f"name: the-rest, match: {{{OURS}, status: True}}, ladder: reboot",
    f"name: two-reasons, match: {{{OURS}, status: True, reasons: [CableOut, SwitchDown]}}, ladder: replace",
)


@pytest.mark.parametrize(
    ("seen", "rule"),
    [
        (condition("Ready", "Unknown", "NodeStatusUnknown"), "silent"),
        (condition("Ready", "False", "KubeletNotReady"), "condition-Ready"),
        (condition("example.com/FabricBroken", "True", "CableOut"), "two-reasons"),
        (condition("example.com/FabricBroken", "True", "SwitchDown"), "two-reasons"),
        (condition("example.com/FabricBroken", "True", "cableout"), "the-rest"),
        (condition("example.com/FabricBroken", "True"), "the-rest"),
        (condition("example.com/FabricBroken"), "the-rest"),
    ],
)
def test_rule_with_the_reason_decides_and_else_the_one_without(seen, rule):
    assert treatment_of(load_policy(CONDITIONS), seen).rule == rule


@pytest.mark.parametrize("written", ["True", "true", '"True"', "TRUE"])
def test_status_is_read_with_and_without_quotes(written):
    policy = load_policy(rules(f"name: a, match: {{{OURS}, status: {written}}}, ladder: block"))
    assert policy.faults[0].match.bad_statuses == {"True"}


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        (f"{OURS}", "faults[0].match: nothing is built in for the condition example.com/FabricBroken: write"),
        (f"{OURS}, status: Bad", "faults[0].match.status: a condition has one of the statuses True, False, "),
        (f"{OURS}, status: 1", "faults[0].match.status: a condition has one of the statuses"),
        (
            f"{OURS}, statuses: [True, False]",
            "faults[0].match.statuses: example.com/FabricBroken would be bad whatever it says: write True or",
        ),
        (f"{OURS}, status: True, statuses: [True]", "faults[0].match: write either `status: False` or"),
        (f"{READY}, status: True", "faults[0].match.status: Ready is good when it is True: write"),
        (f"{OURS}, status: True, reasons: [Cable Out]", "faults[0].match.reasons[0]: write a reason as the"),
        (
            f"{OURS}, status: True, reasons: [CableOut, CableOut]",
            "faults[0].match.reasons: condition example.com/FabricBroken True CableOut is matched by rule a",
        ),
        ("source: condition, code: a b, status: True", "faults[0].match.code: no condition has the type"),
        ("source: condition, code: -x/y, status: True", "faults[0].match.code: no condition has the type"),
        ("source: xid, code: 79, status: True", "faults[0].match: status, statuses and reasons are of Node"),
        ("source: alert, code: A, reasons: [B]", "faults[0].match: status, statuses and reasons are of Node"),
        ("source: xid, codes: [79, 79]", "faults[0].match.codes: xid 79 is matched by rule a already"),
        ("source: xid, code: 0", "faults[0].match.code: xid 0 says that there was none"),
        ('source: sxid, code: "0.0"', "faults[0].match.code: sxid 0 says that there was none"),
        ("source: dcgm, codes: [80, 0]", "faults[0].match.codes: dcgm 0 says that there was none"),
        ("source: sxid, code: SXid20034", "faults[0].match: 'SXid20034' is not an SXid: write one whole"),
        ("source: dcgm, code: 80 81", "faults[0].match: '80 81' is not a code of DCGM: write one whole"),
        (
            "source: efa, code: efa-made-up",
            "faults[0].match.code: no fault of efa has the code 'efa-made-up'",
        ),
        (
            "source: efa, code: efa-admin-queue-close",
            "faults[0].match.code: no fault of efa has the code 'efa-admin-queue-close': did you mean efa",
        ),
        (
            "source: efa, code: ena-reset-failed",
            "faults[0].match.code: ena-reset-failed is said by another source: write `source: kernel`",
        ),
        ("source: kernel, code: oops", "faults[0].match.code: no fault of kernel has the code 'oops': there"),
        ("source: nvml, code: 2", "faults[0].match.code: what NVML says has the code recovery-action"),
        (
            "source: aws, codes: [instance-stop, instance-retirment]",
            "faults[0].match.codes: AWS has no event with the code instance-retirment: did you mean",
        ),
        (
            "source: aws, code: INSTANCE_RETIREMENT",
            "faults[0].match.code: AWS has no event with the code INSTANCE_RETIREMENT: did you mean",
        ),
        ("source: aws, code: the instance", "faults[0].match.code: AWS has no event with the code 'the inst"),
        (
            "source: aws, code: AWS_EC2_INSTANCE_STOP_SCHEDULED",
            "faults[0].match.code: AWS_EC2_INSTANCE_STOP_SCHEDULED arrives under the code of EC2",
        ),
        ("source: condition, code: ready, status: False", "faults[0].match.code: no condition has the type"),
        (
            "source: condition, code: AcceleratedHardwareRedy",
            "faults[0].match.code: no condition has the type 'AcceleratedHardwareRedy': did you mean Acc",
        ),
        (
            "source: condition, code: gpu-runbooks.dev/GPUHealthy, reasons: [GpuLost]",
            "faults[0].match.reasons: gpu-runbooks.dev/GPUHealthy has no reason 'GpuLost': did you mean GPU",
        ),
        ("source: manual, code: 79", "faults[0].match.code: what a person starts has the code manual"),
    ],
)
def test_match_that_is_wrong_or_never_matches(match, expected):
    (problem,) = problems(rules(f"name: a, match: {{{match}}}, ladder: reset"))
    assert problem.startswith(f"line 9: {expected}")


@pytest.mark.parametrize(
    "match",
    [
        "source: aws, code: AWS_EC2_SOMETHING_NEW",
        "source: aws, code: AWS_EC2_DEDICATED_HOST_RETIREMENT_SCHEDULED",
        "source: sxid, code: 99999",
        "source: dcgm, code: 9999",
        "source: efa, code: efa-admin-queue-closed",
        "source: kernel, codes: [ena-reset-failed, rm-init-adapter-failed]",
        "source: nvml, code: recovery-action",
        "source: alert, code: instance-retirment",
        "source: condition, code: NetworkReady, status: False",
        f"{READY}, reasons: [KubeletNotReady]",
        "source: condition, code: AcceleratedHardwareReady, reasons: [NvidiaXID79Error, DCGMHealthCode80]",
        "source: condition, code: gpu-runbooks.dev/GPUHealthy, reasons: [RecoveryAction2Needed]",
    ],
)
def test_match_of_what_may_be_although_no_table_has_it(match):
    assert load_policy(rules(f"name: a, match: {{{match}}}, ladder: block")).faults


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (f"{READY}", "condition Ready Unknown is matched by rule one already: keep it in one place"),
        (f"{READY}, statuses: [Unknown, False]", "condition Ready Unknown is matched by rule one already"),
    ],
)
def test_one_status_in_two_rules(second, expected):
    (problem,) = problems(
        rules(
            f"name: one, match: {{{READY}, status: Unknown}}, ladder: block",
            f"name: two, match: {{{second}}}, ladder: reboot",
        )
    )
    assert problem.startswith(f"line 10: faults[1].match.code: {expected}")
    assert problem.endswith("(the other is on line 9)")


def test_one_reason_in_two_rules():
    (problem,) = problems(
        rules(
            f"name: one, match: {{{OURS}, status: True, reasons: [A, B]}}, ladder: block",
            f"name: two, match: {{{OURS}, status: True, reasons: [B]}}, ladder: reboot",
        )
    )
    assert "condition example.com/FabricBroken True B is matched by rule one already" in problem


def test_two_rules_that_call_both_polarities_bad():
    (problem,) = problems(
        rules(
            f"name: one, match: {{{OURS}, status: True, reasons: [A]}}, ladder: block",
            f"name: two, match: {{{OURS}, status: False}}, ladder: reboot",
        )
    )
    assert problem == (
        "line 10: faults[1].match.status: example.com/FabricBroken would be bad whatever it says: rule one "
        "has True (the other is on line 9)"
    )


def on_gpu(code: str, before: int, place: str = "") -> Fault:
    seen = fault(FaultSource.XID, code)
    entity = Entity(kind="gpu", uuid="GPU-1")
    return seen.model_copy(update={"entity": entity, "before": before, "place": place})


REPEATS = "name: a, match: {source: xid, code: 13}, application: true, repeats: "


@pytest.mark.parametrize(
    ("repeats", "seen", "ladder"),
    [
        ("{times: 3, ladder: reset}", on_gpu("13", 1), "none"),
        ("{times: 3, ladder: reset}", on_gpu("13", 2), "reset"),
        ("{times: 3, by: place, ladder: reset}", on_gpu("13", 5), "none"),
        ("{times: 3, by: place, ladder: reset}", on_gpu("13", 2, "GPC 1 TPC 2"), "reset"),
        ("{ladder: reset}", fault(FaultSource.XID, "13").model_copy(update={"before": 9}), "none"),
    ],
)
def test_repeats_make_the_hardware_suspect(repeats, seen, ladder):
    treatment = treatment_of(load_policy(rules(REPEATS + repeats)), seen)
    assert (treatment.ladder, treatment.application) == (ladder, ladder == "none")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            REPEATS + "{times: 1, ladder: reset}",
            "repeats.times: it should be greater than or equal to 2; not 1",
        ),
        (
            REPEATS + "{within: 30s, ladder: reset}",
            "repeats.within: write a time of at least 1m and at most 30d",
        ),
        (
            REPEATS + "{within: 31d, ladder: reset}",
            "repeats.within: write a time of at least 1m and at most 30d",
        ),
        (REPEATS + "{ladder: rest}", "repeats.ladder: no ladder is named rest, did you mean reset?"),
        (REPEATS + "{times: 2}", "repeats.ladder: is missing. Name of the ladder"),
        (REPEATS + "{by: node, ladder: reset}", "repeats.by: it should be 'gpu' or 'place'; not 'node'"),
        (REPEATS + "{ladder: none}", "repeats.ladder: none suspects no hardware: name a ladder that does"),
        (
            REPEATS + "{ladder: restart}, ladder: restart",
            "repeats.ladder: restart suspects no hardware: name",
        ),
        (REPEATS + "{ladder: restart}", "repeats.ladder: restart suspects no hardware: name"),
        (REPEATS + "{ladder: notify}", "repeats.ladder: notify suspects no hardware: name"),
    ],
)
def test_repeats_that_are_wrong(rule, expected):
    (problem,) = problems(rules(rule))
    assert problem.startswith(f"line 9: faults[0].{expected}")


def test_repeats_of_a_ladder_of_the_site_that_leaves_the_node():
    ladder = "ladders: {tell: [{rung: notify_owner}, {rung: restart_workload}]}\n"
    (problem,) = problems(ladder.join(["", rules(REPEATS + "{ladder: tell}")]))
    assert "faults[0].repeats.ladder: tell suspects no hardware: name a ladder that does" in problem


@pytest.mark.parametrize(
    "match",
    [
        "source: condition, code: KernelReady",
        "source: aws, code: instance-stop",
        "source: sxid, code: 20034",
        "source: efa, code: efa-admin-queue-closed",
        "source: manual, code: manual",
    ],
)
def test_repeats_of_faults_that_name_no_gpu(match):
    (problem,) = problems(
        rules(f"name: a, match: {{{match}}}, application: true, repeats: {{ladder: reset}}")
    )
    assert problem.startswith("line 9: faults[0].repeats: repeats are counted on one GPU, and a fault of")


@pytest.mark.parametrize("match", ["source: dcgm, code: 129", "source: alert, code: GpuHangs"])
def test_repeats_of_faults_that_may_name_a_gpu(match):
    rule = f"name: a, match: {{{match}}}, application: true, repeats: {{ladder: reset}}"
    assert load_policy(rules(rule)).faults[0].repeats


def test_rule_of_the_site_without_repeats_never_suspects_the_hardware():
    seen = on_gpu("31", 99)
    assert treatment_of(load_policy(SMALLEST), seen).ladder == "reset"
    rule = "name: a, match: {source: xid, code: 31}, application: true"
    assert treatment_of(load_policy(rules(rule)), seen).ladder == "none"


def test_repeats_are_of_an_application():
    rule = "name: a, match: {source: xid, code: 79}, ladder: reset, repeats: {ladder: replace}"
    (problem,) = problems(rules(rule))
    assert problem.startswith("line 9: faults[0]: repeats are of an application's fault")


def test_application_in_another_word_is_no_boolean():
    (problem,) = problems(rules("name: a, match: {source: xid, code: 13}, application: yes, ladder: none"))
    assert problem == "line 9: faults[0].application: it should be a valid boolean; not 'yes'"
