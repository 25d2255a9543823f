"""What follows from what a sweep sees, as tables: no server, no clock but the one handed in."""

from datetime import UTC, datetime, timedelta

import pytest

from gpu_runbooks.activities.model.sweep import (
    BadCondition,
    LookAgain,
    NodeMachine,
    NodeWork,
    OpenIncident,
    Run,
    Standing,
    SweptNode,
    TakeUp,
)
from gpu_runbooks.activities.names import digest
from gpu_runbooks.workflows.phases import Outcome, Phase
from gpu_runbooks.workflows.sweep_findings import (
    SETTLES,
    ClearLeftovers,
    DeleteWork,
    Kind,
    ResumeServices,
    of_incident,
    of_node,
    of_paused,
    of_running,
    of_work,
    run_of_work,
    runs_of,
    waits_for_node,
)

NOW = datetime(2026, 3, 1, 8, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=1)
OWN = "node/test/n1"
BAD = (BadCondition(type="KernelDeadlock", status="True", since=LONG_AGO),)


def node(**carries) -> SweptNode:
    if carries.get("marker") in {"ours", "held"}:
        carries = {"incident": OWN, "run_id": "run-1"} | carries
    if carries.get("pause") == "ours":
        carries = {"pause_incident": OWN, "pause_run_id": "run-1"} | carries
    return SweptNode(name="n1", uid="u1", **carries)


def what(seen: SweptNode, state: str = "forgotten", how: str = "", **others: str) -> dict:
    """Kind and mend of each finding, where all runs that matter stand so."""
    known = {
        run: Standing(run=run, state=others.get(run.id.rpartition("/")[2], state), how=how)
        for run in runs_of(seen, "test")
    }
    return {each.kind: type(each.mend) for each in of_node(seen, "test", known)}


NOTHING = type(None)


@pytest.mark.parametrize(
    "ended", ["failed", "cancelled", "terminated", "timed-out", "returned", "expired", ""]
)
def test_a_block_without_an_open_incident_is_for_a_person_however_its_run_ended(ended):
    assert what(node(marker="ours", taint=True), "closed", ended) == {Kind.ORPHAN_BLOCK: NOTHING}


@pytest.mark.parametrize(
    ("carries", "state", "how", "expected"),
    [
        ({"marker": "ours"}, "forgotten", "", {Kind.ORPHAN_BLOCK: NOTHING}),
        ({"marker": "ours"}, "open", "running", {}),
        ({"marker": "ours"}, "open", "paused", {}),
        ({"marker": "ours"}, "open-later", "running", {}),
        ({"marker": "ours"}, "closed", Outcome.ABORTED, {Kind.KEPT_BLOCK: NOTHING}),
        ({"marker": "ours"}, "closed", Outcome.VALIDATED, {Kind.KEPT_BLOCK: NOTHING}),
        ({"marker": "held"}, "closed", Outcome.DRAINED, {}),
        ({"marker": "held"}, "closed", "terminated", {}),
        ({"marker": "unreadable", "taint": True}, "forgotten", "", {Kind.UNREADABLE: NOTHING}),
        ({"taint": True}, "closed", "returned", {Kind.LEFTOVERS: ClearLeftovers}),
        ({"taint": True}, "open", "running", {}),
        ({"replaces": "node/test/n0"}, "closed", "failed", {Kind.LEFTOVERS: ClearLeftovers}),
        ({"marker": "held", "taint": True, "replaces": "node/test/n0"}, "closed", "drained", {}),
        ({"pause": "ours"}, "closed", "failed", {Kind.PAUSED_SERVICES: ResumeServices}),
        ({"pause": "ours"}, "open", "running", {}),
        ({"pause": "bare"}, "forgotten", "", {Kind.PAUSED_SERVICES: ResumeServices}),
        ({"pause": "bare"}, "open", "running", {}),
        ({"pause": "unreadable"}, "forgotten", "", {Kind.UNREADABLE: NOTHING}),
        ({"bad": BAD}, "forgotten", "", {Kind.UNHANDLED_CONDITION: TakeUp}),
        ({"bad": BAD}, "closed", "returned", {Kind.UNHANDLED_CONDITION: TakeUp}),
        ({"bad": BAD}, "open", "running", {}),
        ({"bad": BAD, "marker": "held"}, "closed", "drained", {}),
        ({"bad": BAD, "marker": "ours"}, "closed", Outcome.ABORTED, {Kind.KEPT_BLOCK: NOTHING}),
        (
            {"bad": BAD, "marker": "ours"},
            "closed",
            "terminated",
            {Kind.ORPHAN_BLOCK: NOTHING, Kind.UNHANDLED_CONDITION: TakeUp},
        ),
        (
            {"marker": "ours", "pause": "ours"},
            "closed",
            "terminated",
            {Kind.ORPHAN_BLOCK: NOTHING, Kind.PAUSED_SERVICES: ResumeServices},
        ),
    ],
)
def test_what_a_node_carries_and_what_follows(carries, state, how, expected):
    assert what(node(**carries), state, how) == expected


@pytest.mark.parametrize(
    "carries",
    [
        {"marker": "ours"},
        {"taint": True},
        {"replaces": "node/test/n0"},
        {"pause": "ours"},
        {"pause": "bare"},
        {"bad": BAD},
    ],
)
def test_where_temporal_does_not_answer_nothing_of_the_node_is_touched(carries):
    assert what(node(**carries), "unknown", "UNAVAILABLE") == {Kind.UNKNOWN: NOTHING}


def test_the_claim_of_an_incident_that_is_at_work_is_its_own():
    seen = node(replaces="node/test/n0")
    assert what(seen, "forgotten", n0="open") == {}
    assert what(seen, "forgotten", n0="unknown") == {Kind.UNKNOWN: NOTHING}


@pytest.mark.parametrize(
    ("changes", "state", "digests", "expected"),
    [
        ({"incident": OWN}, "closed", None, {Kind.LEFT_WORK: DeleteWork}),
        ({"incident": OWN}, "forgotten", None, {Kind.LEFT_WORK: DeleteWork}),
        ({"incident": OWN}, "open", None, {}),
        ({"incident": OWN}, "open-later", None, {}),
        ({"incident": OWN}, "unknown", set(), {Kind.UNKNOWN: NOTHING}),
        ({"incident": OWN, "runs": True}, "closed", set(), {}),
        ({"incident": OWN, "made": NOW}, "closed", set(), {}),
        ({"digest": digest(OWN), "node": "n1"}, "closed", None, {Kind.LEFT_WORK: DeleteWork}),
        ({"digest": digest("node/test/n0"), "node": "n1"}, "", set(), {Kind.LEFT_WORK: DeleteWork}),
        ({"digest": digest("node/test/n0"), "node": "n1"}, "", {digest("node/test/n0")}, {}),
        ({"digest": digest("node/test/n0"), "node": "n1"}, "", None, {Kind.UNKNOWN: NOTHING}),
        ({}, "", set(), {Kind.UNKNOWN: NOTHING}),
    ],
)
def test_work_is_deleted_once_its_incident_is_surely_over(changes, state, digests, expected):
    fields = {"kind": "NodeTask", "name": "w", "uid": "u", "version": "1", "made": LONG_AGO} | changes
    work = NodeWork(**fields)
    run = run_of_work(work, "test")
    standing = Standing(run=run, state=state) if run is not None else None
    found = of_work(work, standing, digests, NOW)
    assert {each.kind: type(each.mend) for each in found} == expected


def incident(**changes) -> OpenIncident:
    fields = {"id": OWN, "run_id": "run-1", "started": LONG_AGO, "phase": "needs-operator", "pool": "p5"}
    return OpenIncident(**(fields | {"instances": ("i-1",)} | changes))


@pytest.mark.parametrize(
    ("machine", "gone"),
    [(None, True), ("i-2", True), ("i-1", False), ("", False)],
)
def test_an_incident_whose_machine_is_gone_is_asked_to_look(machine, gone):
    seen = None if machine is None else NodeMachine(name="n1", instance_id=machine, made=NOW)
    found = of_incident(incident(), seen)
    assert [each.mend for each in found] == ([LookAgain(incident=OWN, run_id="run-1", node="n1")] * gone)


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, True),
        ({"phase": Phase.WAITING_FOR_SLOT}, True),
        ({"phase": Phase.PROBATION}, True),
        ({"phase": Phase.REPLACING}, False),
        ({"phase": Phase.REBOOTING}, False),
        ({"phase": "of a newer version"}, False),
        ({"paused": True}, False),
        ({"started": NOW}, False),
    ],
)
def test_only_incidents_that_wait_are_compared_with_their_node(changes, waits):
    assert waits_for_node(incident(**changes), NOW) is waits


@pytest.mark.parametrize(
    ("incidents", "pools", "guard", "subjects"),
    [
        ([], (), "forgotten", []),
        ([incident()], ("p5",), "open", []),
        ([incident()], (), "open", ["budget of p5"]),
        ([incident(phase=Phase.TOLERATING)], (), "open", []),
        ([incident(started=NOW - SETTLES / 2)], (), "forgotten", []),
        ([incident()], ("p5",), "forgotten", ["guard"]),
        ([incident()], ("p5",), "closed", ["guard"]),
        ([incident()], ("p5",), "unknown", []),
    ],
)
def test_a_budget_and_a_guard_that_should_run_and_do_not(incidents, pools, guard, subjects):
    standing = Standing(run=Run(id="fleet/test"), state=guard)
    assert [each.subject for each in of_running(incidents, pools, standing, NOW)] == subjects


def test_an_incident_that_is_paused_through_temporal_is_told():
    found = of_paused([incident(), incident(id="node/test/n2", paused=True)])
    assert [(each.kind, each.subject) for each in found] == [(Kind.UNKNOWN, "n2")]
