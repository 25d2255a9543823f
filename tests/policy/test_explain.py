"""What `policy explain` says would happen now, by what was seen."""

import asyncio
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from policy.factories import P5, SMALLEST, node
from rich.console import Console

from gpu_runbooks.activities.model.fleet import Brake, Halt
from gpu_runbooks.activities.model.node import BlockMarker, NodeObservation
from gpu_runbooks.activities.model.slot import PoolBudget, SlotRequest
from gpu_runbooks.activities.names import OPT_OUT_LABEL
from gpu_runbooks.workers.command_line import _parser
from gpu_runbooks.workers.policy import commands
from gpu_runbooks.workers.policy.explain import Question, answer
from gpu_runbooks.workers.policy.explanation import OpenIncident, Seen, Verdict, explain
from gpu_runbooks.workers.policy.fault_notation import read_fault
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.policy import Policy
from gpu_runbooks.workflows.policy.yaml_lines import read_yaml
from gpu_runbooks.workflows.slots import Holder, Limit, Slots

NOW = datetime(2026, 3, 2, 10, tzinfo=UTC)  # a Monday


def seen(labels=None, **changes):
    identity = changes.pop("identity", node())
    return Seen(identity, P5 if labels is None else labels, asked_temporal=True, **changes)


def explained(written="xid:119", policy=SMALLEST, at=NOW, **changes):
    return explain(load_policy(policy), read_fault(written, at), seen(**changes), at)


def slots(held, waiting=()):
    def request(number, severity=0):
        return SlotRequest(incident=f"node/test/n{number}", run_id="r", node=f"n{number}", severity=severity)

    return Slots(
        cluster="test",
        pool="p5",
        complete=True,
        holders=[Holder(**request(number).model_dump(), confirmed=True) for number in range(held)],
        waiters=[request(10 + number, severity) for number, severity in enumerate(waiting)],
    )


def test_whose_the_rule_is_does_not_hang_on_its_name():
    """A file with this rule is refused, so the policy is made without that check."""
    rule = "faults: [{name: xid-79, match: {source: xid, code: 119}, ladder: block}]\n"
    policy = Policy.model_validate(read_yaml(SMALLEST + rule).content)
    said = {code: explain(policy, read_fault(f"xid:{code}", NOW), seen(), NOW) for code in (79, 119)}
    assert {code: (each.rule, each.rule_of, each.ladder) for code, each in said.items()} == {
        79: ("xid-79", "built-in", "replace"),
        119: ("xid-79", "site", "block"),
    }
    assert (bool(said[79].why), said[119].why) == (True, "")


OPTED_OUT = P5 | {OPT_OUT_LABEL: "true"}


TELLS = SMALLEST + "faults: [{name: t, match: {source: xid, code: 119}, ladder: notify}]\n"


@pytest.mark.parametrize(
    ("changes", "verdict", "next_sentence"),
    [
        ({}, Verdict.LEFT_ALONE, "No incident would open; without the label it would be ladder reset."),
        ({"policy": SMALLEST.replace("enforce", "observe")}, Verdict.LEFT_ALONE, "No incident would open"),
        ({"incident": True}, Verdict.JOINS, "It would join the open incident"),
        ({"policy": TELLS}, Verdict.BEGINS, "An incident would open"),
    ],
    ids=["reset", "observed", "an incident is open", "an owner is told"],
)
def test_that_the_owners_opted_out_is_said_first(changes, verdict, next_sentence):
    changes = changes | ({"incident": OPEN} if changes.get("incident") else {})
    said = explained(labels=OPTED_OUT, **changes)
    assert said.verdict == verdict
    assert said.now[0].startswith(f"The node's owners want nothing done to it, by its label {OPT_OUT_LABEL}.")
    assert said.now[1].startswith(next_sentence)


FAN = SMALLEST + (
    'faults: [{name: f, match: {source: condition, code: example.com/Fan, status: "True"}, ladder: block}]\n'
)


OBSERVED = SMALLEST.replace("mode: enforce", "mode: observe")


IN_TWO = SMALLEST.replace(
    "validation:", "- {name: search, selector: {team: search}, budget: {max_unavailable: 1}}\nvalidation:"
)


OPEN = OpenIncident("node/test/gpu-a1", "run-1", "draining", "xid:79", "xid-79", "replace", "may it?")


@pytest.mark.parametrize(
    ("changes", "verdict", "sentence"),
    [
        ({"labels": {"team": "x"}}, Verdict.REFUSED, "node gpu-a1 is in no pool of the policy"),
        (
            {"policy": IN_TWO, "labels": P5 | {"team": "search"}},
            Verdict.REFUSED,
            "is in several pools (p5, search)",
        ),
        (
            {"identity": node("x9.large")},
            Verdict.REFUSED,
            "the hardware of instance type x9.large is not known",
        ),
        (
            {"incident": OPEN},
            Verdict.JOINS,
            "join the open incident node/test/gpu-a1 (run run-1, of xid:79, in",
        ),
        ({"incident": OPEN}, Verdict.JOINS, "It waits for a person: may it?"),
        ({"policy": OBSERVED}, Verdict.OBSERVED, "ladder reset (block, drain, reset_gpu"),
        ({"written": "condition:Ready=Unknown"}, Verdict.TOLERATED, "before 2026-03-02 10:30:00 UTC"),
        (
            {"slots": slots(0)},
            Verdict.BEGINS,
            "0 of 3 slots of pool p5 are used, 0 incidents wait: a slot is free",
        ),
        ({"slots": slots(3)}, Verdict.QUEUED, "it would be the next to get one"),
        (
            {"slots": slots(3, waiting=(100, 0))},
            Verdict.QUEUED,
            "would queue behind 1, the most severe first",
        ),
        (
            {"budget_of": "prod"},
            Verdict.BEGINS,
            "has no budget workflow in cluster prod yet, so that all slots",
        ),
        ({}, Verdict.BEGINS, "The budget of pool p5 (at most 3) could not be asked."),
        ({}, Verdict.BEGINS, "The first act would be block."),
        (
            {"written": "condition:Ready=True", "incident": OPEN},
            Verdict.NOTHING,
            "This status is not bad: Ready is bad when False or Unknown.",
        ),
        ({"written": "condition:KernelDeadlock=Unknown"}, Verdict.NOTHING, "is bad when True."),
        ({"written": "condition:example.com/Fan=True"}, Verdict.NOTHING, "nothing watches it"),
        ({"written": "condition:example.com/Fan=True", "policy": FAN}, Verdict.BEGINS, "would be block."),
        ({"written": "condition:Ready"}, Verdict.TOLERATED, "An incident would open"),
        ({"written": "xid:0"}, Verdict.LEFT_ALONE, "touches nothing"),
        ({"written": "xid:31"}, Verdict.BEGINS, "The first act would be notify_owner."),
    ],
)
def test_what_would_happen_now(changes, verdict, sentence):
    said = explained(**changes)
    assert said.verdict == verdict
    assert sentence in " ".join(said.now)


SHARED = SMALLEST.replace("{max_unavailable: 3}", "{percent: 20, block_waiting: true}")


NOW = datetime(2026, 3, 2, 10, tzinfo=UTC)


UNTIL = NOW + timedelta(hours=30)


WHO = {"operator": "ana", "reason": "network work", "since": NOW, "until": UNTIL}


@pytest.mark.parametrize(
    ("changes", "more", "verdict", "sentence"),
    [
        (
            {"halts": [Halt(**WHO)]},
            {},
            Verdict.QUEUED,
            "nobody may disrupt anything, halted by ana until 2026-03-03",
        ),
        (
            {"brake": Brake(mode="stop", why="storm xid:79")},
            {},
            Verdict.QUEUED,
            "disrupt anything, storm xid:79",
        ),
        ({"brake": Brake(mode="pace", storm="s1")}, {}, Verdict.QUEUED, "one at a time after storm s1"),
        ({"nodes": 50, "used": 3}, {}, Verdict.QUEUED, "3 of 3 slots of pool p5 are used"),
        (
            {"nodes": 50, "override": Limit(budget=PoolBudget(percent=10), **WHO)},
            {},
            Verdict.BEGINS,
            "0 incidents wait (limit 10 % of its nodes by ana: network work): a slot is free",
        ),
        ({"nodes": 11}, {"policy": SHARED}, Verdict.BEGINS, "1 of 2 slots"),
        ({"nodes": 9}, {"policy": SHARED}, Verdict.QUEUED, "Node gpu-a1 is blocked while it waits."),
        (
            {},
            {"policy": SHARED},
            Verdict.QUEUED,  # how many that are is not known before the first look
            "1 slots of pool p5 are used (at most 20 % of its nodes), 0 incidents wait: it would be",
        ),
    ],
)
def test_what_stops_a_pool_is_shown(changes, more, verdict, sentence):
    said = explained(**more, slots=slots(1).model_copy(update=changes))
    assert (said.verdict, sentence in " ".join(said.now)) == (verdict, True), said.now


def test_a_share_of_a_pool_that_was_not_asked_is_said_as_such():
    said = explained(policy=SHARED)
    assert "The budget of pool p5 (at most 20 % of its nodes) could not be asked." in said.now


TOLD_FIRST = SMALLEST + (
    "ladders: {restart: [{rung: notify_owner}, {rung: restart_workload}]}\n"
    "faults: [{name: hangs, match: {source: xid, code: 31}, application: true, ladder: restart}]\n"
)


def test_owner_is_told_before_the_restart_gets_its_slot():
    said = explained("xid:31", TOLD_FIRST, slots=slots(3, waiting=(100,)))
    assert said.verdict == Verdict.BEGINS
    sentences = " ".join(said.now)
    assert "The owner is told at once. 3 of 3 slots of pool p5 are used, 1 incidents wait: for" in sentences
    assert "for restart_workload it would queue behind 1, the most severe first." in sentences
    assert "The first act would be notify_owner." in sentences


def test_restart_alone_waits_for_its_slot():
    alone = TOLD_FIRST.replace("{rung: notify_owner}, ", "")
    assert explained("xid:31", alone, slots=slots(3)).verdict == Verdict.QUEUED


CAREFUL = SMALLEST.replace(
    "  budget: {max_unavailable: 3}",
    """\
  budget: {max_unavailable: 3}
  owners: team search
  windows: [{days: [sat], begins: "22:00", lasts: 4h}]
repair: {replace: ask}
ladders:
  careful:
  - {rung: block}
  - {rung: drain}
  - {rung: reboot, approval: true}
  - {rung: replace, mode: observe}
  - {rung: validate}
  - {rung: return}
faults:
- {name: gsp, match: {source: xid, code: 119}, ladder: careful}""",
)


def test_windows_approvals_and_observed_rungs_say_when_and_whom():
    said = explained(policy=CAREFUL)
    assert (said.rule, said.rule_of, said.ladder, said.owners) == ("gsp", "site", "careful", "team search")
    told = " ".join(said.now)
    assert "drain waits until 2026-03-07 22:00:00 UTC" in told
    assert "Before reboot it asks team search for approval." in told
    assert "replace is observed only: it tells team search" in told
    assert "Before replace it asks team search, as repair.replace says." in told
    in_window = explained(policy=CAREFUL, at=datetime(2026, 3, 7, 23, tzinfo=UTC))
    assert "windows" not in " ".join(in_window.now)
    assert "windows" not in " ".join(explained("manual", policy=CAREFUL).now), "a person waits for none"


def test_the_node_as_it_is_now_is_told():
    marker = BlockMarker(
        incident="node/test/gpu-a1",
        run_id="r",
        reasons=("x",),
        since=NOW - timedelta(days=1),
        was_unschedulable=False,
    )
    blocked = NodeObservation(identity=node(), ready="Unknown", blocked=True, marker=marker, karpenter=True)
    told = " ".join(explained(node=blocked).now)
    assert "Our block stands on the node since 2026-03-01 10:00:00 UTC" in told
    assert "not Ready (Unknown)" in told
    assert "deleting its NodeClaim" in told
    held = blocked.model_copy(update={"marker": marker.model_copy(update={"held": True})})
    assert explained(node=held).verdict == Verdict.HELD
    cordoned = explained(node=NodeObservation(identity=node(), ready="True"), cordoned=True)
    assert "Somebody has cordoned the node" in " ".join(cordoned.now)


def test_without_the_node_the_rest_is_explained():
    unknown = replace(seen(), labels=None, asked_temporal=False)
    said = explain(load_policy(SMALLEST), read_fault("xid:79", NOW), unknown, NOW)
    assert (said.verdict, said.rule, said.pool) == (Verdict.UNKNOWN, "xid-79", "")
    assert "give --labels" in said.now[0]


@pytest.fixture
def ask(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(CAREFUL)

    async def run(*, as_json=False, terminal=False, **changes):
        question = Question(
            **{
                "node": "gpu-a1",
                "fault": "xid:119",
                "policy": file,
                "cluster": "test",
                "said": {},
                "labels": P5,
                "instance_type": "p5.48xlarge",
                "offline": True,
            }
            | changes
        )
        out = Console(file=io.StringIO(), width=120, force_terminal=terminal, no_color=True)
        await answer(question, as_json=as_json, out=out, err=Console(file=io.StringIO()))
        return out.file.getvalue()

    return run


async def test_text_and_json_say_rule_ladder_and_what_follows(ask):
    lines = (await ask()).splitlines()
    assert lines[0] == "fault xid:119 on node gpu-a1"
    assert "rule gsp (site)" in lines
    assert "  3. reboot: timeout 20m, asks for approval" in lines
    assert "now: begins" in lines
    table = await ask(terminal=True)
    assert "asked for" in table
    said = json.loads(await ask(as_json=True))
    assert (said["rule"], said["verdict"], said["pool"]) == ("gsp", "begins", "p5")
    assert said["rungs"][2] == {
        "name": "reboot",
        "wait": 0.0,
        "attempts": 1,
        "timeout": 1200.0,
        "approval": True,
        "approval_lasts": 3600.0,
        "approval_by_other": False,
        "observe": False,
    }


async def test_what_cannot_be_reached_is_said_and_the_rest_explained(ask, monkeypatch, tmp_path):
    config = tmp_path / "kubeconfig"
    config.write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(config))
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    told = await asyncio.wait_for(ask(offline=False), 60)
    assert "now: begins" in told
    assert "not seen: node gpu-a1: " in told
    assert "not seen: incidents and budget: Temporal at 127.0.0.1:1" in told
    assert "could not be asked" in told


@pytest.mark.parametrize(
    ("named", "unseen"),
    [
        ((), "incidents and budget: no cluster is named (--cluster or GPU_RUNBOOKS_CLUSTER)"),
        (("--cluster", "prod"), "incidents and budget: Temporal at 127.0.0.1:1"),
    ],
)
def test_no_other_cluster_is_asked_about_where_none_is_named(named, unseen, monkeypatch, tmp_path, capsys):
    (tmp_path / "policy.yaml").write_text(SMALLEST)
    (tmp_path / "kubeconfig").write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    monkeypatch.delenv("GPU_RUNBOOKS_CLUSTER", raising=False)
    words = ["--policy", str(tmp_path / "policy.yaml"), "--node", "gpu-a1", "--fault", "xid:119", "--json"]
    where = ["--labels", "gpu-runbooks.dev/pool=p5", "--instance-type", "p5.48xlarge"]
    assert commands.run(_parser().parse_args(["policy", "explain", *words, *where, *named])) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["unseen"][-1].startswith(unseen)
    assert "could not be asked" in " ".join(said["now"])
