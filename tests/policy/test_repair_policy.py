"""The section `repair`: for all pools, for one, its contradictions, and what a plan gets of it."""

from datetime import timedelta

import pytest
from policy.factories import P5, SMALLEST, fault, node

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.repair import RebootMethod, RepairPolicy, RepeatPolicy
from gpu_runbooks.workflows.policy.file import PolicyError, load_policy
from gpu_runbooks.workflows.policy.planning import plan

TWO_POOLS = """\
mode: enforce
pools:
- name: p5
  selector: {gpu-runbooks.dev/pool: p5}
  budget: {max_unavailable: 3}
- name: spare
  selector: {gpu-runbooks.dev/pool: spare}
  budget: {max_unavailable: 1}
  repair: {replace: ask, launch_first: false, repeats: {reboots: 1}}
repair:
  reset_scope: node
  reboot: command
  launch_first: true
  without_evidence: go-on
  repeats: {window: 14d, resets: 5}
validation:
  test_pod: {image: "registry.example/gpu-test:1", command: [gpu-test, --all]}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(PolicyError) as error:
        load_policy(text)
    return [str(problem) for problem in error.value.problems]


def planned(text: str, pool: str = "p5") -> RepairPolicy:
    labels = {"gpu-runbooks.dev/pool": pool}
    return plan(load_policy(text), fault(FaultSource.XID, "48"), node(), labels, "ns").repair


def test_file_without_the_section_gets_what_is_built_in():
    assert planned(SMALLEST) == RepairPolicy()


def test_pool_without_a_section_gets_that_of_the_file():
    assert planned(TWO_POOLS) == RepairPolicy(
        reset_scope="node",
        reboot=RebootMethod.COMMAND,
        launch_first=True,
        without_evidence="go-on",
        repeats=RepeatPolicy(window=timedelta(days=14), resets=5),
    )


def test_pool_overrides_field_by_field():
    assert planned(TWO_POOLS, "spare") == RepairPolicy(
        reset_scope="node",
        reboot=RebootMethod.COMMAND,
        replace="ask",
        without_evidence="go-on",
        repeats=RepeatPolicy(window=timedelta(days=14), resets=5, reboots=1),
    )


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("{reset_scope: board}", "repair.reset_scope: it should be 'gpu' or 'node'; not 'board'"),
        ("{reboot: ssh}", "repair.reboot: it should be 'ec2', 'agent' or 'command'; not 'ssh'"),
        ("{replace: never}", "repair.replace: it should be 'allowed' or 'ask'; not 'never'"),
        ("{launch_first: yes}", "repair.launch_first: it should be a valid boolean; not 'yes'"),
        ("{without_evidence: go_on}", "repair.without_evidence: it should be 'go-on' or 'stop'; not 'go_on'"),
        ("[reboot]", "repair: write fields here, as in `key: value`; not ['reboot']"),
        (
            "{rebot: ec2}",
            "repair.rebot: unknown field: did you mean reboot? known here: launch_first, reboot, repeats, ",
        ),
        (
            "{repeats: {reset: 3}}",
            "repair.repeats.reset: unknown field: did you mean resets? known here: reboots, replacements, ",
        ),
        ("{repeats: {window: 7}}", "repair.repeats.window: write a duration with units, such as 30s"),
        ("{repeats: {window: 30m}}", "repair.repeats.window: write a window of at least 1h and at most 365d"),
        (
            "{repeats: {window: 366d}}",
            "repair.repeats.window: write a duration of at most 365d; not '366d'",
        ),
        ("{repeats: {resets: 0}}", "repair.repeats.resets: it should be greater than or equal to 1; not 0"),
        ('{repeats: {reboots: "2"}}', "repair.repeats.reboots: it should be a valid integer; not '2'"),
        ("{repeats: {replacements: true}}", "repair.repeats.replacements: it should be a valid integer; not"),
    ],
)
@pytest.mark.parametrize("in_pool", [False, True])
def test_errors_have_line_and_field(section, expected, in_pool):
    if in_pool:
        text = SMALLEST.replace("validation:", f"  repair: {section}\nvalidation:")
        (problem,) = problems(text)
        assert problem.startswith(f"line 6: pools[0].{expected}")
    else:
        (problem,) = problems(f"{SMALLEST}repair: {section}\n")
        assert problem.startswith(f"line 8: {expected}")


@pytest.mark.parametrize("label", ["karpenter.sh/nodepool", "karpenter.k8s.aws/instance-family"])
def test_karpenter_launches_nothing_ahead(label):
    text = SMALLEST.replace("gpu-runbooks.dev/pool", label)
    launching = text.replace("validation:", "  repair: {launch_first: true}\nvalidation:")
    (problem,) = problems(launching)
    assert problem.startswith(f"line 6: pools[0].repair.launch_first: nodes with the label {label} are")
    # For the whole file it is no contradiction: it counts in the pools where it can.
    assert load_policy(text + "repair: {launch_first: true}\n").repair.launch_first


ATTEMPTS = """\
ladders:
  patient:
  - rung: block
  - rung: drain
  - {rung: reset_gpu, attempts: 4}
  - {rung: reboot, attempts: 2}
  - rung: validate
  - rung: return
"""


def test_more_attempts_than_the_cap():
    (problem,) = problems(SMALLEST + ATTEMPTS)
    assert problem.startswith(
        "line 12: ladders.patient[2].attempts: 4 attempts at reset_gpu, and pool p5 allows 3 for the same"
    )
    assert load_policy(f"{SMALLEST}{ATTEMPTS}repair: {{repeats: {{resets: 4}}}}\n").ladders


def test_pool_that_allows_fewer_is_named_with_its_line():
    text = SMALLEST.replace("validation:", "  repair: {repeats: {reboots: 1}}\nvalidation:")
    (problem,) = problems(text + ATTEMPTS.replace("4}", "3}"))
    assert problem.startswith(
        "line 14: ladders.patient[3].attempts: 2 attempts at reboot, and pool p5 allows 1"
    )
    assert problem.endswith("(the other is on line 6)")


@pytest.mark.parametrize("section", ["repair: {reboot: agent}", "repair: {repeats: {resets: 2}}"])
def test_digest_follows_the_section(section):
    assert load_policy(SMALLEST + section).digest != load_policy(SMALLEST).digest


def test_digest_is_the_same_for_a_default_that_is_written():
    assert load_policy(SMALLEST + "repair: {reboot: ec2}").digest == load_policy(SMALLEST).digest


def test_plan_with_the_section_stays_small():
    labels = {**P5}
    made = plan(load_policy(TWO_POOLS), fault(FaultSource.XID, "119"), node(), labels, "gpu-runbooks")
    assert len(made.model_dump_json()) < 4096
