"""The explorer finds nothing in the product as it is, and finds each rule that is broken on purpose."""

from model.explorer import explore
from model.lanes import Limits
from model.pools import Pools, Worlds
from model.scenarios import QUIET, SHORT, run
from temporalio import workflow

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows import (
    blocking,
    draining,
    holding_slot,
    ladder,
    rebooting,
    steps,
)
from gpu_runbooks.workflows.acts import DrainScope
from gpu_runbooks.workflows.guard import Clear
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.phases import Phase
from gpu_runbooks.workflows.proof import Proof
from gpu_runbooks.workflows.slots import Slots


def test_no_rule_is_broken_within_the_short_exploration():
    reports = list(run(SHORT))
    assert [str(each) for report in reports for each in report.violations] == []
    assert sum(report.states for report in reports) > 11_000


def test_the_same_exploration_meets_the_same():
    def counts():
        (report,) = run(SHORT[2:3])
        return report.states, report.transitions, report.depth

    assert counts() == counts()


def found(rule, first, *, limits=QUIET, worlds=None, most=12_000, before=""):
    """The shortest way to break a rule; `before` this step all has gone well."""
    system = Pools(first, limits, worlds or Worlds())
    start = well_until(system, before) if before else system.begin()
    report = explore("broken", system, most=most, stop_at=rule, start=start)
    broken = [each for each in report.violations if each.rule.startswith(rule)]
    assert broken, [each.rule for each in report.violations]
    return broken[0]


def well_until(system, words):
    """The state before this step of a story in which all goes well."""
    state, met = system.begin(), set()
    while True:
        met.add(state)
        coming = [step for step in system.steps(state) if not step.forced and step.state not in met]
        best = next((step for step in coming if step.best), coming[0])
        if best.words.startswith(words):
            return state
        state = best.state


def test_rule_1_a_node_that_goes_back_without_validation_is_found(monkeypatch):
    async def believe(incident, _):
        incident.validated = True

    monkeypatch.setitem(steps.STEPS, ladder.Validate, believe)
    violation = found("rule 1", ("119",))
    assert "n1: await_reboot sees another boot id" in violation.steps


def test_rule_2_an_act_without_a_slot_is_found(monkeypatch):
    monkeypatch.setattr(ladder, "_needs_slot", lambda *_: False)
    monkeypatch.setattr(ladder, "_begins_with_slot", lambda *_: False)
    violation = found("rule 2: drain begins without a slot", ("119",))
    assert len(violation.steps) < 10


def test_rule_2_an_act_without_our_block_is_found(monkeypatch):
    monkeypatch.setattr(blocking, "inspect", lambda *_, **__: Clear())
    violation = found("rule 2: drain begins without our block", ("119",), limits=Limits(0, 0, 1))
    assert "n1: a person runs kubectl uncordon" in violation.steps


def test_rule_2_an_act_without_a_fresh_look_is_found(monkeypatch):
    async def looked(*_):
        return True

    monkeypatch.setattr(draining, "may_act", looked)
    assert found("rule 2: drain begins without a fresh look", ("119",))


def test_rule_2_a_repair_without_a_drain_is_found(monkeypatch):
    async def drained(incident, _):
        incident.drained = DrainScope.NODE

    monkeypatch.setitem(steps.STEPS, ladder.Drain, drained)
    violation = found("rule 2: reboot begins without a drain", ("119",))
    assert not any("drain_pods" in words for words in violation.steps)


def test_rule_3_a_request_taken_for_a_proof_is_found(monkeypatch):
    async def trusting(incident, step):
        await rebooting._ask(incident, step)
        return Proof(proven=True, text="accepted")

    phase, _ = steps.REPAIRS[RungName.REBOOT]
    monkeypatch.setitem(steps.REPAIRS, RungName.REBOOT, (phase, trusting))
    violation = found("rule 3", ("119",))
    assert violation.steps[-1].startswith("n1: reboot_instance")


def test_rule_5_a_fault_that_is_lost_is_found(monkeypatch):
    join = Incident.join

    def forget(incident, report, now):
        if incident.phase is Phase.RETURNING:
            incident.fingerprints = [*incident.fingerprints, report.fault.fingerprint]
        else:
            join(incident, report, now)

    monkeypatch.setattr(Incident, "join", forget)
    violation = found("rule 5", ("119",), limits=Limits(0, 1, 0), before="n1: unblock_node")
    assert violation.steps[0].startswith("n1: a fault joins")
    assert violation.steps[-1] == "n1: unblock_node removes the block"


def test_rule_6_a_wait_without_an_end_is_found(monkeypatch):
    async def for_ever(condition, *_):
        await workflow.wait_condition(condition)
        return True

    monkeypatch.setattr(holding_slot, "wait_for", for_ever)
    violation = found("rule 6", ("119",))
    assert len(violation.steps) < 5


def test_rule_10_more_slots_than_the_budget_has_are_found(monkeypatch):
    monkeypatch.setattr(Slots, "limit", lambda *_: 2)
    violation = found("rule 10", ("79", "79"))
    assert any("n2" in words for words in violation.steps)


def test_rule_10_a_slot_under_a_storm_is_found(monkeypatch):
    monkeypatch.setattr(Slots, "stopped", lambda *_: "")
    violation = found("rule 10", ("79",), worlds=Worlds(brakes=1))
    assert "the guard tells of a storm" in violation.steps


def test_an_incident_that_can_never_end_is_found(monkeypatch):
    hear = Slots.hear
    monkeypatch.setattr(Slots, "hear", lambda slots, word: word.mode == "stop" and hear(slots, word))
    violation = found("the incidents cannot end", ("119",), worlds=Worlds(brakes=1), most=1_000)
    assert "the guard tells of a storm" in violation.steps
    first = str(violation).splitlines()[1]
    assert first == "   1. n1: ensure_budget starts the budget"
