"""The benchmark of a storm on a small scale: a real fleet of Karpenter's, its witness, and the figures."""

import asyncio
import time

import pytest
from rich.console import Console

from gpu_runbooks.activities.karpenter.objects import NODE_CLAIMS
from testbed.bench_storm.contenders import CONTENDERS, NAMESPACE, OURS, started
from testbed.bench_storm.detector import BrokenDetector
from testbed.bench_storm.plan import Plan
from testbed.bench_storm.report import Figures, missed, show
from testbed.bench_storm.storm import Outcome
from testbed.bench_storm.witness import Witness, is_disturbed

SMALL = Plan(nodes=3, pods_per_node=1, calm_seconds=0.0, patience_seconds=60.0)
LEGACY = CONTENDERS[-1]


async def until(holds):
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.1)


async def test_the_witness_sees_what_is_marked_disturbed_destroyed_and_killed(tmp_path):
    async with (
        started(LEGACY, tmp_path, SMALL) as cluster,
        Witness.watching(cluster.kubernetes, NAMESPACE, SMALL) as witness,
    ):
        detector = BrokenDetector(cluster.kubernetes)
        assert witness.abnormal() == ""
        await detector.mark(2)
        await until(lambda: witness.abnormal() == "2 nodes called unhealthy")
        await detector.mark(1)  # no more are wanted than are marked
        await detector.mend()
        await until(lambda: witness.abnormal() == "")
        assert (witness.disturbed, witness.destroyed, witness.killed) == (set(), set(), set())

        claim = (await cluster.kubernetes.items(NODE_CLAIMS))[0]["metadata"]
        await cluster.kubernetes.request("DELETE", f"{NODE_CLAIMS}/{claim['name']}")
        await until(lambda: claim["uid"] in witness.destroyed)
        await until(lambda: witness.disturbed)
        await until(lambda: witness.abnormal() == "")  # Karpenter has launched another one
        assert len(witness.destroyed) == len(witness.disturbed) == witness.most_at_once == 1


def test_the_detector_calls_more_and_more_nodes_bad():
    assert Plan().steps == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24]
    assert Plan().budget == 4
    assert Plan(nodes=3).budget == 1


@pytest.mark.parametrize(
    ("spec", "metadata", "disturbed"),
    [
        ({}, {}, False),
        ({"unschedulable": True}, {}, True),
        ({"taints": [{"key": "example.com/karpenter"}]}, {}, False),
        ({"taints": [{"key": "karpenter.sh/disrupted"}]}, {}, True),
        ({"taints": [{"key": "gpu-runbooks.dev/remediation"}]}, {}, True),
        ({}, {"deletionTimestamp": "2026-03-01T00:00:00Z"}, True),
    ],
)
def test_which_nodes_are_out_of_service(spec, metadata, disturbed):
    assert is_disturbed({"metadata": {"name": "n", **metadata}, "spec": spec}) is disturbed


def test_a_node_that_went_away_was_disturbed_though_nobody_saw_it_go():
    witness = Witness(SMALL)
    node = {"metadata": {"name": "n"}, "spec": {}}
    witness.see_nodes({"a": node, "b": node})
    witness.see_nodes({"b": node})
    assert witness.disturbed == {"a"}
    witness.see_pods({"p": {"metadata": {}}})
    witness.see_pods({})
    assert witness.killed == {"p"}


async def test_a_fleet_that_stays_abnormal_needs_a_person():
    witness = Witness(Plan(nodes=2, pods_per_node=0, calm_seconds=0.1, patience_seconds=0.1))
    seconds, left = await witness.calm(since=time.monotonic())
    assert (seconds, left) == (None, "2 nodes too few or too many")


def figures_of(**changed):
    same = {"disturbed": 4, "most_at_once": 4, "destroyed": 0, "pods_killed": 8, "seconds_to_normal": 20.0}
    ours = Outcome(OURS, **(same | {"left_for_a_person": ""} | changed))
    theirs = [
        Outcome(
            contender,
            disturbed=12,
            most_at_once=4,
            destroyed=12,
            pods_killed=24,
            seconds_to_normal=None,
            left_for_a_person="2 nodes not Ready",
        )
        for contender in CONTENDERS[1:]
    ]
    return Figures(Plan(), (ours, *theirs), load_before=0.5)


def test_all_three_are_told_and_only_ours_is_judged(capsys):
    figures = figures_of()
    written = figures.as_json()
    for name in ("ours", "karpenter", "karpenter_legacy"):
        assert {f"{name}_disturbed", f"{name}_destroyed", f"{name}_seconds_to_normal"} <= set(written)
    assert written["budget"] == 4
    assert written["karpenter_seconds_to_normal"] is None
    assert missed(figures) == []
    show(figures, Console(width=200))
    out = capsys.readouterr().out
    assert all(contender.title in out for contender in CONTENDERS)
    assert "MISSED" not in out
    assert "2 nodes not Ready" in out


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"disturbed": 5}, "5 nodes were disturbed, and the budget is 4"),
        ({"destroyed": 1}, "1 healthy machines were destroyed"),
        ({"seconds_to_normal": None, "left_for_a_person": "x"}, "it did not recover by itself: x"),
    ],
)
def test_what_ours_did_not_keep_to_is_told(changed, said, capsys):
    figures = figures_of(**changed)
    assert missed(figures) == [said]
    show(figures, Console(width=200))
    assert f"MISSED: {said}" in capsys.readouterr().out
