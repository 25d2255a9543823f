"""The tables: what is in them, and what is refused when they are loaded."""

from collections import Counter

import pytest

from gpu_runbooks.activities.aws.scheduled_events import CODE_OF_HEALTH
from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workflows.policy import catalogue, repeats
from gpu_runbooks.workflows.policy.condition_reasons import KnownReason
from gpu_runbooks.workflows.policy.known_codes import (
    AwsEvent,
    DcgmCode,
    KernelLogCode,
    RecoveryAction,
    Sxid,
    aws_events,
    kernel_log_codes,
    sxids,
)
from gpu_runbooks.workflows.policy.node_conditions import read_conditions
from gpu_runbooks.workflows.policy.repeats import RepeatRule, repeat_rule
from gpu_runbooks.workflows.policy.rows import read_rows


def read(kind, *rows):
    return read_rows("\n".join(["code,group,meaning,first_rung,source", *rows]), kind, lambda row: row.code)


def test_sxids_are_in_the_three_groups():
    assert Counter(row.group for row in sxids().values()) == {
        "nonfatal": 25,
        "fatal": 42,
        "always-fatal": 26,
    }
    assert sxids()["20034"].group == "fatal"


def test_every_event_code_of_health_has_the_answer_of_its_twin():
    events = aws_events()
    assert {
        health: code
        for health, code in CODE_OF_HEALTH.items()
        if events[health].first_rung is not events[code].first_rung
    } == {}


@pytest.mark.parametrize(
    ("kind", "rows", "error"),
    [
        (Sxid, ["1,fatal,m,block,S", "1,fatal,m,block,S"], "1 is listed twice"),
        (Sxid, ["1,fatal,m,none,S"], "1 contradicts itself: fatal, and first rung none"),
        (Sxid, ["1,nonfatal,m,replace,S"], "1 contradicts itself: nonfatal, and first rung replace"),
        (
            Sxid,
            ["1,sometimes,m,block,S"],
            "no group is named 'sometimes': there are nonfatal, fatal, always-fa",
        ),
        (Sxid, ["1,fatal,m,reset,S"], "first_rung"),
        (Sxid, ["1,fatal,m,block,"], "source"),
        (Sxid, ["1,fatal,,block,S"], "meaning"),
        (Sxid, ["1,fatal,m,block"], "source"),
        (Sxid, ["1,fatal,m,block,S,more"], "Keys should be strings"),
        (DcgmCode, ["1,nobody,m,block,S"], "no group is named 'nobody'"),
        (RecoveryAction, ["0,none,m,block,S"], "0 contradicts itself: action 0, and first rung block"),
        (RecoveryAction, ["1,reset,m,none,S"], "1 contradicts itself: action 1, and first rung none"),
        (KernelLogCode, ["efa-x,efa,m,drain_then_reset,S"], "efa, and first rung drain_then_reset"),
        (AwsEvent, ["spot,notice,m,replace,S"], "notice, and first rung replace"),
        (AwsEvent, ["x,health,m,drain_then_reset,S"], "health, and first rung drain_then_reset"),
        (KnownReason, ["X,kubelet,m,none,S"], "no group is named 'kubelet': there are eks, node-agent"),
    ],
)
def test_broken_table_is_refused(kind, rows, error):
    with pytest.raises(ValueError, match=error):
        read(kind, *rows)


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (["A,True,block,60,S"], "A: nothing says what status Unknown means"),
        (
            ["A,True,block,60,S", "A,False,block,60,S", "A,Unknown,none,,S"],
            "A is bad when True or when False",
        ),
        (["A,Unknown,block,60,S"], "A is bad when True or when False"),
        (["A,True,block,60,S", "A,True,block,60,S", "A,Unknown,none,,S"], "listed twice"),
        (["A,True,none,,S", "A,Unknown,none,,S"], "neither good nor bad"),
        (["A,True,block,,S", "A,Unknown,none,,S"], "no toleration"),
        (["A,True,block,-1,S", "A,Unknown,none,,S"], "toleration_seconds"),
        (["Ready,False,block,5,S", "Ready,Unknown,none,,S"], "a toleration of ours, and a provider has one"),
        (["A,Maybe,block,60,S"], "status"),
    ],
)
def test_broken_table_of_conditions_is_refused(rows, error):
    with pytest.raises(ValueError, match=error):
        read_conditions("\n".join(["type,status,first_rung,toleration_seconds,source", *rows]))


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ("xid,79,gpu,2,24,drain_then_reset,S", "the code is no application's"),
        ("xid,31,gpu,2,24,none,S", "suspected hardware, and first rung none"),
        ("xid,31,gpu,1,24,drain_then_reset,S", "times"),
        ("alert,31,gpu,2,24,drain_then_reset,S", "fault"),
        ("xid,31,node,2,24,drain_then_reset,S", "by"),
    ],
)
def test_broken_rule_for_repeats_is_refused(row, error):
    text = f"fault,code,by,times,hours,first_rung,source\n{row}"
    with pytest.raises(ValueError, match=error):
        read_rows(text, RepeatRule, lambda rule: (rule.fault, rule.code))


def test_rules_for_repeats():
    rule = repeat_rule(FaultSource.XID, " 13.0")
    assert rule is not None
    assert (rule.by, rule.times, rule.within.total_seconds(), rule.rule) == (
        "place",
        2,
        86400,
        "xid-13-repeated",
    )
    assert repeats.repeat_rules()[FaultSource.XID, "31"].by == "gpu"
    for source, code in ((FaultSource.XID, "45"), (FaultSource.XID, "x"), (FaultSource.SXID, "13")):
        assert repeat_rule(source, code) is None


@pytest.mark.parametrize(
    "code", [13, 31, 48, 63, 64, 74, 79, 94, 95, 109, 119, 120, 121, 140, 142, 38, 44, 69]
)
def test_contested_xids_say_who_disagrees(code):
    xid = catalogue.xids()[code]
    assert xid.nvidia
    assert xid.gpud
    assert xid.nvsentinel
    assert xid.eks_agent
    assert ";" in xid.source


def test_the_eks_agents_fatal_xids_are_those_of_its_list():
    fatal = {code for code, xid in catalogue.xids().items() if xid.eks_agent == "fatal"}
    assert fatal == {
        *(46, 48, 54, 62, 63, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143, 151, 155, 156, 158)
    }


def test_codes_of_the_kernel_log_have_a_source_of_faults():
    assert {row.fault_source for row in kernel_log_codes().values()} == {FaultSource.EFA, FaultSource.KERNEL}
