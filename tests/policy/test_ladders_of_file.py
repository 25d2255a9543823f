"""Ladders that a site writes: which could do harm, and what a person approves or only reads."""

from datetime import timedelta

import pytest
from policy.factories import SMALLEST, fault, problems

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.planning import treatment_of


@pytest.mark.parametrize(
    ("rungs", "expected"),
    [
        ("[block, reboot, validate, return]", "reboot needs drain in its ladder"),
        ("[block, drain, reboot, return]", "a ladder needs validate"),
        ("[block, drain, reboot, validate]", "a ladder needs return"),
        ("[drain, reboot, validate, return]", "a ladder needs block"),
        (
            "[block, drain, reboot, reset_gpu, validate, return]",
            "reset_gpu cannot follow reboot",
        ),
        ("[block, drain, validate, reboot, return]", "reboot cannot follow validate"),
        ("[block, drain, drain, validate, return]", "drain stands twice"),
        ("[block, return]", "a ladder needs validate"),
        ("[]", "a ladder without rungs: name none"),
    ],
)
def test_ladder_that_could_do_harm(rungs, expected):
    steps = ", ".join(f"{{rung: {rung}}}" for rung in rungs.strip("[]").split(", ") if rung)
    (problem,) = problems(f"{SMALLEST}ladders: {{mine: [{steps}]}}")
    assert problem.startswith("line 8: ladders.mine")
    assert expected in problem


def test_ladder_of_unknown_faults_repairs_nothing():
    rungs = "[{rung: block}, {rung: drain}, {rung: reboot}, {rung: validate}, {rung: return}]"
    (problem,) = problems(f"{SMALLEST}ladders: {{block: {rungs}}}")
    assert "ladder block is what unknown faults get and may not hold reboot" in problem


def test_ladder_of_unknown_faults_drains_nothing():
    rungs = "[{rung: block}, {rung: drain}, {rung: validate}, {rung: return}]"
    (problem,) = problems(f"{SMALLEST}ladders: {{block: {rungs}}}")
    assert "ladder block is what unknown faults get and may not hold drain" in problem


@pytest.mark.parametrize(
    ("name", "rungs", "missing"),
    [
        ("reset", "[block, drain, reboot, validate, return]", "reset_gpu"),
        ("reboot", "[block, drain, reset_gpu, replace, validate, return]", "reboot"),
        ("replace", "[block, drain, reboot, validate, return]", "replace"),
        ("reset", "[block, validate, return]", "reset_gpu"),
        ("drain", "[block, validate, return]", "drain"),
        ("reset", "[restart_workload]", "reset_gpu"),
    ],
)
def test_name_of_a_built_in_ladder_says_what_it_holds(name, rungs, missing):
    steps = ", ".join(f"{{rung: {rung}}}" for rung in rungs.strip("[]").split(", "))
    (problem,) = problems(f"{SMALLEST}ladders: {{{name}: [{steps}]}}")
    assert problem == (f"line 8: ladders.{name}: ladder {name} is known to hold {missing}: use another name")


def test_ladder_of_unknown_faults_restarts_nothing():
    (problem,) = problems(f"{SMALLEST}ladders: {{block: [{{rung: restart_workload}}]}}")
    assert "may not hold restart_workload" in problem


@pytest.mark.parametrize(
    "rungs",
    [
        "[{rung: block}, {rung: restart_workload}]",
        "[{rung: restart_workload}, {rung: validate}, {rung: return}]",
        "[{rung: restart_workload}, {rung: notify_owner}, {rung: return}]",
    ],
)
def test_rungs_for_workloads_stand_beside_none_for_the_node(rungs):
    (problem,) = problems(f"{SMALLEST}ladders: {{mine: {rungs}}}")
    assert problem.startswith("line 8: ladders.mine[")
    assert "restart_workload is for workloads and leaves the node" in problem


@pytest.mark.parametrize(
    ("rungs", "wrong"),
    [
        ("[{rung: restart_workload}, {rung: restart_workload}]", "restart_workload stands twice"),
        ("[{rung: restart_workload}, {rung: notify_owner}]", "notify_owner cannot follow restart_workload"),
    ],
)
def test_rungs_for_workloads_have_an_order(rungs, wrong):
    (problem,) = problems(f"{SMALLEST}ladders: {{mine: {rungs}}}")
    assert problem.startswith(f"line 8: ladders.mine[1].rung: {wrong}")


def test_ladder_restart_leaves_the_node():
    rungs = "[{rung: block}, {rung: validate}, {rung: return}]"
    (problem,) = problems(f"{SMALLEST}ladders: {{restart: {rungs}}}")
    assert problem == (
        "line 8: ladders.restart: ladder restart leaves the node and holds restart_workload: use another name"
    )


def test_restart_has_its_own_time():
    assert [(step.rung, step.timeout) for step in load_policy(SMALLEST).ladder("restart") or ()] == [
        (RungName.RESTART_WORKLOAD, timedelta(minutes=15))
    ]
    longer = load_policy(SMALLEST + "ladders: {restart: [{rung: restart_workload, timeout: 1h}]}")
    assert [step.timeout for step in longer.ladder("restart") or ()] == [timedelta(hours=1)]


def test_ladder_none_touches_nothing():
    (problem,) = problems(f"{SMALLEST}ladders: {{none: [{{rung: block}}]}}")
    assert "ladder none touches nothing" in problem


REPAIRING = """\
ladders:
  mine:
  - {rung: block%(block)s}
  - {rung: drain%(drain)s}
  - {rung: reset_gpu%(reset_gpu)s}
  - {rung: reboot%(reboot)s}
  - {rung: validate%(validate)s}
  - {rung: return%(return)s}
"""
"""Its rungs are on the lines 10 to 15."""

PLAIN = dict.fromkeys(("block", "drain", "reset_gpu", "reboot", "validate", "return"), "")


def with_rungs(**fields: str) -> str:
    return SMALLEST + REPAIRING % {**PLAIN, **{rung: f", {field}" for rung, field in fields.items()}}


def test_approvals_and_modes_reach_the_plan():
    text = with_rungs(drain="approval: true", reset_gpu="mode: observe", reboot="mode: observe")
    policy = load_policy(f"{text}faults: [{{name: a, match: {{source: xid, code: 79}}, ladder: mine}}]")
    rungs = treatment_of(policy, fault(FaultSource.XID, "79")).rungs
    assert {rung.name for rung in rungs if rung.approval} == {RungName.DRAIN}
    assert {rung.name for rung in rungs if rung.observe} == {RungName.RESET_GPU, RungName.REBOOT}


def test_built_in_ladders_ask_nobody_and_act():
    policy = load_policy(SMALLEST)
    rungs = [step for name in policy.ladder_names() for step in policy.ladder(name) or ()]
    assert not any(step.approval or step.mode for step in rungs)


def test_restart_of_a_workload_can_be_approved_or_observed():
    for field in ("approval: true", "mode: observe"):
        ladder = f"ladders: {{restart: [{{rung: notify_owner}}, {{rung: restart_workload, {field}}}]}}"
        assert load_policy(SMALLEST + ladder).ladder("restart")


@pytest.mark.parametrize(
    ("rungs", "expected"),
    [
        ({"block": "approval: true"}, "line 10: ladders.mine[0].approval: block keeps new work away"),
        ({"block": "mode: observe"}, "line 10: ladders.mine[0].mode: block keeps new work away"),
        ({"validate": "approval: true"}, "line 14: ladders.mine[4].approval: validate only tests a node"),
        ({"validate": "mode: observe"}, "line 14: ladders.mine[4].mode: validate only tests a node"),
        ({"return": "approval: true"}, "line 15: ladders.mine[5].approval: return follows a validation"),
        ({"return": "mode: observe"}, "line 15: ladders.mine[5].mode: return follows a validation"),
        (
            {"reboot": "approval: true, mode: observe"},
            "line 13: ladders.mine[3].approval: reboot is only observed, so that there is nothing to approve",
        ),
        (
            {"reset_gpu": "mode: observe"},
            "line 13: ladders.mine[3]: reboot is never done, since reset_gpu before it is only observed",
        ),
        (
            {"drain": "mode: observe", "reboot": "mode: observe"},
            "line 12: ladders.mine[2]: reset_gpu is never done, since drain before it is only observed",
        ),
        (
            {"reboot": "mode: enforce"},
            "line 13: ladders.mine[3].mode: it should be 'observe'; not 'enforce'",
        ),
        (
            {"reboot": "approval: yes"},
            "line 13: ladders.mine[3].approval: write true, false, or what it is worth",
        ),
        (
            {"reboot": "aproval: true"},
            "line 13: ladders.mine[3].aproval: unknown field: did you mean approval?",
        ),
    ],
)
def test_approval_or_mode_where_it_has_no_sense(rungs, expected):
    (problem,) = problems(with_rungs(**rungs))
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    ("rungs", "expected"),
    [
        ({"block": "wait: 5m"}, "line 10: ladders.mine[0].wait: block does not wait: drop it, or write it"),
        ({"drain": "wait: 1s"}, "line 11: ladders.mine[1].wait: drain does not wait: drop it, or write it"),
        ({"validate": "wait: 5m"}, "line 14: ladders.mine[4].wait: validate does not wait: drop it"),
        ({"return": "wait: 5m"}, "line 15: ladders.mine[5].wait: return does not wait: drop it"),
        ({"block": "attempts: 2"}, "line 10: ladders.mine[0].attempts: block is tried until the API server"),
        (
            {"return": "attempts: 2"},
            "line 15: ladders.mine[5].attempts: return is tried until the API server",
        ),
    ],
)
def test_field_that_nothing_looks_at(rungs, expected):
    (problem,) = problems(with_rungs(**rungs))
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    ("ladder", "expected"),
    [
        ("notify: [{rung: notify_owner, attempts: 3}]", "notify[0].attempts: notify_owner is tried until"),
        ("notify: [{rung: notify_owner, wait: 3m}]", "notify[0].wait: notify_owner does not wait"),
        ("restart: [{rung: restart_workload, wait: 3m}]", "restart[0].wait: restart_workload does not wait"),
    ],
)
def test_field_that_nothing_looks_at_in_a_ladder_of_workloads(ladder, expected):
    (problem,) = problems(f"{SMALLEST}ladders: {{{ladder}}}")
    assert problem.startswith(f"line 8: ladders.{expected}")


def test_fields_that_say_what_counts_anyway_are_no_error():
    assert load_policy(with_rungs(block="attempts: 1, wait: 0s", **{"return": "attempts: 1"}))


def test_attempts_and_waits_that_count():
    fields = {"drain": "attempts: 2", "reset_gpu": "attempts: 2, wait: 5m", "validate": "attempts: 3"}
    ladder = load_policy(with_rungs(**fields)).ladder("mine") or ()
    assert [step.attempts for step in ladder] == [1, 2, 2, 1, 3, 1]
    assert load_policy(f"{SMALLEST}ladders: {{restart: [{{rung: restart_workload, attempts: 2}}]}}")


def test_owner_is_told_without_asking():
    (problem,) = problems(f"{SMALLEST}ladders: {{notify: [{{rung: notify_owner, approval: true}}]}}")
    assert problem.startswith("line 8: ladders.notify[0].approval: notify_owner only says something")
