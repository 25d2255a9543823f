"""Recorded faults through two policies: what differs is told, the same is counted, and a file is data."""

import io
import json
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy.factories import ONSET, P5, SMALLEST
from rich.console import Console

from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource
from gpu_runbooks.workers.policy import replay as replay_module
from gpu_runbooks.workers.policy.diff import diff
from gpu_runbooks.workers.policy.recorded_faults import LONGEST_LINE, BrokenLineError, RecordedFault
from gpu_runbooks.workers.policy.replay import Comparison, Decisions, decide, difference
from gpu_runbooks.workflows.policy.file import load_policy

OTHER = (
    SMALLEST.replace("mode: enforce", "mode: enforce\noperator: {reminder: 1h}").replace(
        "max_unavailable: 3}", "max_unavailable: 2}"
    )
    + """\
ladders:
  careful: [{rung: block}, {rung: drain}, {rung: reboot, approval: true}, {rung: validate}, {rung: return}]
faults:
- {name: fell-off, match: {source: xid, codes: [79, 95]}, ladder: careful, toleration: 5m}
- name: kubelet
  match: {source: condition, code: Ready, status: Unknown, reasons: [NodeStatusUnknown]}
  ladder: block
- {name: storage, match: {source: condition, code: StorageReady}, application: true}
"""
)


def event(source=FaultSource.XID, code="79", node="gpu-a1", labels=None, **fields):
    fault = Fault(
        source=source,
        code=code,
        first_seen=ONSET,
        last_seen=ONSET,
        fingerprint="f",
        reporter="alertmanager",
        **fields,
    )
    return RecordedFault(
        node=node, labels=P5 if labels is None else labels, instance_type="p5.48xlarge", fault=fault
    )


@pytest.fixture
def replay(tmp_path):
    """What the command prints, and its status; terminals are told apart."""
    (tmp_path / "old.yaml").write_text(SMALLEST)

    def run(events, new=OTHER, *, skip_broken=False, as_json=False, terminal=False):
        file = tmp_path / "events.jsonl"
        lines = [each if isinstance(each, bytes) else each.model_dump_json().encode() for each in events]
        file.write_bytes(b"".join(line + b"\n" for line in lines))
        (tmp_path / "new.yaml").write_text(new)
        out, err = (
            Console(file=io.StringIO(), width=160, force_terminal=terminal, no_color=True) for _ in range(2)
        )
        status = diff(
            tmp_path / "old.yaml",
            tmp_path / "new.yaml",
            file,
            skip_broken=skip_broken,
            as_json=as_json,
            out=out,
            err=err,
        )
        return status, out.file.getvalue(), err.file.getvalue()

    return run


def test_the_same_policy_does_the_same(replay):
    commented = "# reviewed\n" + SMALLEST
    status, out, err = replay([event(), event(code="31"), event(labels={"team": "none"})], new=commented)
    assert (status, err) == (0, "")
    assert out.strip().endswith("3 recorded faults on 1 node, all treated the same")


def test_what_differs_is_grouped_and_the_rest_counted(replay):
    events = [
        event(node="gpu-a1"),
        event(node="gpu-a2"),
        event(code="95", node="gpu-a2"),
        event(code="31"),
        event(FaultSource.CONDITION, "StorageReady", status="False"),
    ]
    status, out, _ = replay(events, as_json=True)
    said = json.loads(out)
    assert (status, said["faults"], said["same"], said["different"]) == (2, 5, 1, 4)
    by_rule = {each["after"]: each for each in said["differences"] if "xid:79" in each["which"]}
    (fell_off,) = by_rule.values()
    assert fell_off["after"] == "fell-off: careful"
    assert fell_off["nodes"] == ["gpu-a1", "gpu-a2"]
    assert "toleration: 0s -> 5m" in fell_off["changes"]
    assert any(each.startswith("rungs: ") for each in fell_off["changes"])
    assert "reboot (asks for approval)" in " ".join(fell_off["changes"])
    assert len(said["examples"]) == 4
    assert said["around"]["pool p5: budget.max_unavailable: 3 -> 2"] == 5


def test_lines_of_a_file_and_the_table_of_a_terminal_say_the_same(replay):
    _, lines, _ = replay([event(), event(node="gpu-a2")])
    assert "faults=2 nodes=2 which=xid:79" in lines
    assert "gpu-a1 xid:79: " in lines
    _, table, _ = replay([event(), event(node="gpu-a2")], terminal=True)
    assert "What would have been done differently" in table
    assert "fell-off: careful" in table


def test_a_change_around_the_faults_is_a_difference(replay):
    status, out, _ = replay([event()], new=SMALLEST.replace("max_unavailable: 3", "max_unavailable: 1"))
    assert status == 2
    assert "all treated the same" in out
    assert "pool p5: budget.max_unavailable: 3 -> 1" in out


def test_what_one_policy_refuses_is_told(replay):
    elsewhere = SMALLEST.replace("gpu-runbooks.dev/pool: p5", "team: search")
    status, out, _ = replay([event()], new=elsewhere)
    assert status == 2
    assert "refused: node with these labels is in no pool" in out
    status, out, _ = replay([event(labels={"team": "other"})], new=elsewhere)
    assert status == 0, "both refuse it: nothing is done, as before"


@pytest.mark.parametrize(
    ("broken", "wrong"),
    [
        (b"{", "line 2: "),
        (b"[]", "line 2: "),
        (b'{"node": "a"}', "line 2: labels: "),
        (b"\xff\xfe", "line 2: "),
        (b'{"node": "a", "labels": {"\\u001b[2J": 1}}', "line 2: labels."),
        (b"x" * (LONGEST_LINE + 10), f"line 2: longer than {LONGEST_LINE} bytes"),
        (b"[" * 16_000, "line 2: "),
    ],
)
def test_a_broken_line_stops_with_its_number_or_is_counted(replay, broken, wrong):
    events = [event(), broken, event(code="95")]
    with pytest.raises(BrokenLineError) as error:
        replay(events)
    assert wrong in str(error.value)
    assert "--skip-broken" in str(error.value)
    status, out, err = replay(events, skip_broken=True)
    assert status == 2
    assert "2 recorded faults" in out
    assert err == "1 lines are no recorded faults and were passed over.\n"


def test_hostile_text_of_a_file_is_shown_inert(replay):
    events = [
        event(code="79", node="\x1b[2J[red]x[/]{{7*7}}"),
        event(FaultSource.ALERT, "\x1b]0;title\x07--help", labels=P5),
        event(FaultSource.CONDITION, "Ready", status="Unknown", reason="NodeStatusUnknown"),
    ]
    alert = OTHER + '- {name: any, match: {source: alert, code: "x"}, ladder: none}\n'
    for terminal in (False, True):
        _, out, _ = replay(events, new=alert, terminal=terminal)
        assert "\x07" not in out
        assert "\x1b[2J" not in out
        assert "?[2J[red]x[/]{{7*7}}" in out
    _, out, _ = replay(events, as_json=True)
    assert out.isascii()
    assert "\x1b" not in out


SOURCES = st.sampled_from([*FaultSource])
CODES = st.sampled_from(
    ["79", " 79", "79.0", "95", "31", "13", "154", "999", "20034", "Ready", "StorageReady", "80", "x",
     "instance-retirement", "manual"]
)  # fmt: skip
WORDS = st.text(max_size=5)
FIELDS = {
    "source": SOURCES,
    "code": CODES,
    "entity": st.builds(
        Entity,
        kind=st.sampled_from(["node", "gpu", "nic", "nvswitch"]),
        uuid=st.none() | WORDS,
        pci_address=st.none() | WORDS,
    ),
    "status": st.sampled_from(["", "True", "False", "Unknown"]),
    "good_status": st.sampled_from(["", "True", "False"]),
    "reason": st.sampled_from(["", "NodeStatusUnknown", "NvidiaXID79Error", "DCGMError"]),
    "grade": st.sampled_from(["", "fatal", "nonfatal"]),
    "recovery_action": st.sampled_from([None, 0, 1, 2, 3, 4, 9]),
    "place": st.sampled_from(["", "GPC 2 TPC 1"]),
    "before": st.integers(0, 6),
    "pod": st.sampled_from(["", "a/b", "c/d"]),
    "boot_id": WORDS,
    "summary": WORDS,
    "first_seen": st.sampled_from([ONSET, ONSET + timedelta(days=3)]),
    "last_seen": st.just(ONSET + timedelta(days=4)),
    "count": st.integers(1, 5),
    "fingerprint": WORDS,
    "reporter": WORDS,
}
EVENTS = st.builds(
    RecordedFault,
    node=st.sampled_from(["gpu-a1", "gpu-a2"]),
    labels=st.sampled_from([P5, {}, P5 | {"team": "search"}]),
    instance_type=st.sampled_from(["p5.48xlarge", "p4d.24xlarge", "t3.nano", ""]),
    fault=st.builds(Fault, **FIELDS),
)
WITH_DRAIN = (
    OTHER
    + """\
- name: errors
  match: {source: condition, code: AcceleratedHardwareReady, reasons: [DCGMError]}
  ladder: reboot
drain:
  rules:
  - {name: late, faults: [errors, xid-31], method: wait_for_completion, deadline: 20m}
  - {name: all, method: evict}
"""
)
TWO = load_policy(SMALLEST), load_policy(WITH_DRAIN)
DECISIONS = [Decisions(policy) for policy in TWO]
COMPARISON = Comparison(*TWO)
"""Kept over all examples: what an earlier one left in it must not answer a later one wrongly."""


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_a_kept_answer_is_the_answer(event):
    old, new = (decide(policy, event) for policy in TWO)
    assert [each.by(each.grounds(event), event) for each in DECISIONS] == [old, new]
    assert COMPARISON.of(event) == difference(old, new)


def many_kinds():
    """Faults of which hardly two are of one kind, of all pools and none."""
    for number in range(30):
        yield event(code=str(number + 1), labels=P5 | {"rack": str(number)})
        yield event(place=f"GPC {number} TPC 0", entity=Entity(kind="gpu"), before=number % 3)
        yield event(FaultSource.ALERT, f"Alert{number}", labels={"team": str(number)})
        reasons = f"NvidiaXID{number}Error, DCGMError" if number % 2 else f"NvidiaXID{number}Error"
        yield event(FaultSource.CONDITION, "AcceleratedHardwareReady", status="False", reason=reasons)


@pytest.mark.parametrize("kept", [0, 7, 10_000])
def test_many_kinds_have_their_own_answers_however_few_are_kept(monkeypatch, kept):
    monkeypatch.setattr(replay_module, "KEPT_ANSWERS", kept)
    comparison = Comparison(*TWO)
    for each in [*many_kinds(), *many_kinds()]:
        assert comparison.of(each) == difference(*(decide(policy, each) for policy in TWO))


def test_each_of_a_thousand_rules_for_one_condition_is_found():
    of_all = "- {name: any, match: {source: condition, code: KernelReady}, ladder: none}\n"
    rules = "".join(
        of_all.replace("any", f"r-{number}")
        .replace("Ready}", f"Ready, reasons: [R{number}, S{number}]}}")
        .replace("none", "block" if number % 2 else "reboot")
        for number in range(999)
    )
    policy = load_policy(f"{SMALLEST}faults:\n{of_all}{rules}")

    def rule(reason):
        fault = event(FaultSource.CONDITION, "KernelReady", status="False", reason=reason)
        return decide(policy, fault).plan.treatment.rule

    for number in (0, 1, 500, 997, 998):
        assert rule(f"R{number}") == rule(f"Unheard, S{number}") == f"r-{number}"
    assert rule("R1,S998,R3") == "r-998", "the gravest of them"
    assert rule("Unheard") == rule("") == "any"


def test_the_answers_are_compared_over_every_field_of_a_fault():
    assert {*FIELDS} == {*Fault.model_fields}
