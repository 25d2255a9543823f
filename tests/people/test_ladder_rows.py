"""What the decision makes of people's words: tables, without Temporal."""

from datetime import UTC, datetime, timedelta

import pytest
from incident.plans import T0, fault, plan, report
from incident.test_ladder import LATER, acted, incident
from incident.test_policy_gates import gated

from gpu_runbooks.activities.model.plan import ChangeFreeze, RungName
from gpu_runbooks.workflows.acts import Act, Examined
from gpu_runbooks.workflows.incident_state import Paused
from gpu_runbooks.workflows.ladder import next_step
from gpu_runbooks.workflows.ladder_steps import (
    AskOperator,
    Block,
    Close,
    Drain,
    Examine,
    HoldSlot,
    Repair,
    ResumeServices,
    Return,
    StayPaused,
    Tolerate,
    Validate,
    Watch,
)
from gpu_runbooks.workflows.phases import Outcome, Runbook
from gpu_runbooks.workflows.windows import next_permitted

PAUSED = Paused(operator="ana", until=LATER + timedelta(hours=2))
BLOCKED = [("block", True)]
DRAINED = [*BLOCKED, ("drain", True)]


@pytest.mark.parametrize(
    ("subject", "step"),
    [
        (acted("reset", *BLOCKED), StayPaused),
        (acted("reset", *DRAINED), StayPaused),
        (acted("reset", *DRAINED, ("reset_gpu", True)), StayPaused),
        (acted("reset", *DRAINED, services_paused=True), ResumeServices),
        (acted("reset", *BLOCKED, blocked=False), Block),
        (acted("reset", *BLOCKED, outcome=Outcome.ABORTED), Close),
        (incident(), StayPaused),
    ],
)
def test_a_pause_holds_all_but_the_end_and_what_is_put_back(subject, step):
    subject.paused = PAUSED
    assert isinstance(next_step(subject, LATER), step)


@pytest.mark.parametrize(
    ("state", "step"),
    [({"gone": True, "terminating": True}, Repair), ({"gone": True}, HoldSlot), ({}, HoldSlot)],
    ids=["terminated by us", "gone by itself", "there"],
)
def test_a_halt_stops_no_claim_of_a_successor(state, step):
    subject = acted("replace", *DRAINED, stopped="halted by ana", **state)
    assert isinstance(next_step(subject, LATER), step)


def test_a_pause_does_not_prolong_a_probation():
    subject = acted("reset", *DRAINED, ("reset_gpu", True), ("return", True), blocked=False, paused=PAUSED)
    subject.returned, subject.watched_until = True, LATER + timedelta(hours=1)
    assert next_step(subject, LATER) == StayPaused(subject.watched_until)
    assert isinstance(next_step(subject, subject.watched_until), Close)


def test_a_pause_ends_by_itself():
    subject = acted("reset", *BLOCKED, paused=PAUSED)
    assert isinstance(next_step(subject, PAUSED.until), Examine)


def test_a_rung_that_is_left_out_is_not_done_and_the_next_one_follows():
    subject = acted("reset", *DRAINED, skipped=[RungName.RESET_GPU])
    assert isinstance(step := next_step(subject, LATER), Repair)
    assert step.rung.name is RungName.REBOOT


def test_a_person_is_asked_once_every_repair_is_left_out():
    left_out = [RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE]
    subject = acted("reset", *DRAINED, skipped=left_out)
    assert isinstance(step := next_step(subject, LATER), AskOperator)
    assert "left out by a person: reset_gpu, reboot, replace" in step.question


def test_a_drain_is_left_out_only_where_no_repair_follows():
    assert isinstance(next_step(acted("drain", *BLOCKED), LATER), Drain)
    subject = acted("drain", *BLOCKED, skipped=[RungName.DRAIN])
    assert isinstance(next_step(subject, LATER), AskOperator)
    repaired = acted("reset", *BLOCKED, skipped=[RungName.DRAIN], examined=Examined(evidence="x"))
    assert isinstance(next_step(repaired, LATER), Drain)


@pytest.mark.parametrize("ladder", ["reset", "drain", "block"])
def test_a_node_that_a_person_vouches_for_returns_without_a_slot(ladder):
    subject = acted(ladder, *BLOCKED, slot_held=False, vouched="on the word of ana")
    assert isinstance(next_step(subject, LATER), Return)
    subject.returned, subject.blocked = True, False
    assert next_step(subject, LATER) == Close(Outcome.RETURNED, "on the word of ana")


def test_a_fault_that_joins_takes_the_word_for_the_node_back():
    subject = acted("reset", *BLOCKED, vouched="on the word of ana")
    subject.join(report("reset", of=fault("79", at=LATER, fingerprint="new")), LATER)
    assert not isinstance(next_step(subject, LATER), Return)


@pytest.mark.parametrize(("minutes", "step"), [(5, HoldSlot), (-5, Watch)], ids=["newer", "older"])
def test_a_fault_in_the_probation_of_a_node_that_nobody_repaired_takes_it_out_again(minutes, step):
    """Nothing was repaired that could explain it, and the word was given before."""
    subject = acted("reset", *BLOCKED, ("return", True), blocked=False, slot_held=False)
    subject.vouched, subject.returned = "on the word of ana", True
    subject.watched_until = LATER + timedelta(hours=1)
    began = subject.last(RungName.RETURN) + timedelta(minutes=minutes)
    subject.join(report("reset", of=fault("95", at=began)), LATER)
    assert isinstance(next_step(subject, LATER), step)


def test_a_word_for_the_node_waits_for_what_is_tolerated_and_falls_with_it():
    """Returned before, the node would be blocked for the tolerated fault at once, and returned again."""
    subject = acted("reset", *BLOCKED)
    late = report("reset", of=fault("48", at=LATER), toleration=timedelta(minutes=10))
    subject.join(late, LATER)
    subject.vouched = "on the word of ana"
    ends = LATER + timedelta(minutes=10)
    assert next_step(subject, LATER) == Tolerate(ends)
    over = subject.model_copy(deep=True)
    over.clear([late.fault], ends)
    assert isinstance(next_step(over, ends), Return)
    subject.count(late, ends)
    subject.marker_due = False
    assert isinstance(next_step(subject, ends), Examine)


@pytest.mark.parametrize(
    ("subject", "step"),
    [
        (incident(), Close),
        (acted("reset", *BLOCKED), AskOperator),
        (acted("reset", *DRAINED), AskOperator),
        (acted("reset", *DRAINED, ("reset_gpu", True)), Validate),
        (acted("reset", *DRAINED, ("reset_gpu", True), ("validate", True)), Return),
        (acted("reset", *BLOCKED, blocked=False), Block),
        (acted("replace", *DRAINED, gone=True, terminating=True), Repair),
        (incident().model_copy(update={"runbook": Runbook.VALIDATE}), HoldSlot),
    ],
)
def test_an_opted_out_node_is_left_alone_but_validated_and_returned(subject, step):
    subject.opted_out = True
    found = next_step(subject, LATER)
    assert isinstance(found, step)
    if isinstance(found, Close):
        assert (found.outcome, "opt-out" in found.reason) == (Outcome.LEFT_ALONE, True)


def test_the_alert_of_an_opted_out_node_stays_news():
    subject = incident()
    subject.opted_out = True
    subject.end(Outcome.LEFT_ALONE, "its owners")
    assert subject.unsettled() == set(subject.fingerprints)


def test_an_approval_that_was_not_used_in_time_is_asked_for_again():
    subject = gated("reset", *DRAINED, rung="reset_gpu", approval=True)
    subject.approved = {RungName.RESET_GPU: 1}
    subject.approved_until = {RungName.RESET_GPU: LATER}
    assert isinstance(next_step(subject, LATER - timedelta(minutes=1)), Repair)
    assert isinstance(next_step(subject, LATER), AskOperator)


@pytest.mark.parametrize(("by_other", "step"), [(True, AskOperator), (False, Repair)])
def test_what_one_person_orders_wants_another_ones_approval_where_policy_says_so(by_other, step):
    subject = gated("reset", *DRAINED, rung="reset_gpu", approval=True, approval_by_other=by_other)
    subject.ordered = {RungName.RESET_GPU: 1}
    assert isinstance(next_step(subject, LATER), step)
    by_hand = gated("reset", *DRAINED, rung="reset_gpu", approval=True, approval_by_other=by_other)
    by_hand.runbook = Runbook.RESET
    assert isinstance(next_step(by_hand, LATER), step)


@pytest.mark.parametrize("gate", ["approval", "replace: ask"])
def test_an_order_is_for_one_attempt(gate):
    """What policy wants a word for wants another one once the ordered attempt failed."""
    subject = gated("replace", *DRAINED, rung="replace", attempts=2, approval=gate == "approval")
    repair = subject.plan.repair.model_copy(
        update={"replace": "ask" if gate == "replace: ask" else "allowed"}
    )
    subject.plan = subject.plan.model_copy(update={"repair": repair})
    subject.ordered = {RungName.REPLACE: 1}
    assert isinstance(next_step(subject, LATER), Repair)
    failed = Act(rung=RungName.REPLACE, attempt=1, proven=False, proof="", started=LATER, ended=LATER)
    subject.record(failed)
    assert isinstance(step := next_step(subject, LATER), AskOperator)
    assert step.question.startswith("policy ")


def freeze(begins: str, ends: str) -> ChangeFreeze:
    moments = [datetime.fromisoformat(each).replace(tzinfo=UTC) for each in (begins, ends)]
    return ChangeFreeze(begins=moments[0], ends=moments[1], why="a launch")


def test_nobody_leaves_a_node_in_a_freeze_and_blocking_and_validating_go_on():
    frozen = {"freezes": (freeze("2026-01-01T00:00", "2026-01-02T00:00"),)}
    subject = acted("reset", *BLOCKED, examined=Examined(evidence="x"), plan=plan("reset", **frozen))
    step = next_step(subject, LATER)
    assert step == Tolerate(T0 + timedelta(days=1))
    assert "a launch" in step.why
    first = incident(**frozen)
    first.slot_held = True
    assert isinstance(next_step(first, LATER), Block)
    repaired = acted("reset", *DRAINED, ("reset_gpu", True), plan=plan("reset", **frozen))
    assert isinstance(next_step(repaired, LATER), Validate)
    by_person = subject.model_copy(update={"runbook": Runbook.DRAIN})
    assert isinstance(next_step(by_person, LATER), Drain)


@pytest.mark.parametrize("rung", ["drain", "reset_gpu"])
def test_approval_is_asked_for_when_the_window_is_open(rung):
    subject = gated("reset", *BLOCKED, rung=rung, approval=True)
    subject.examined = Examined(evidence="x")
    frozen = (freeze("2026-01-01T00:00", "2026-01-02T00:00"),)
    subject.plan = subject.plan.model_copy(update={"freezes": frozen})
    assert next_step(subject, LATER) == Tolerate(T0 + timedelta(days=1))
    assert isinstance(next_step(subject, T0 + timedelta(days=1)), AskOperator)


def test_freezes_that_meet_are_waited_for_one_after_the_other():
    both = [freeze("2026-01-01T00:00", "2026-01-02T00:00"), freeze("2026-01-01T12:00", "2026-01-03T00:00")]
    assert next_permitted((), both, LATER) == T0 + timedelta(days=2)
    assert next_permitted((), both, T0 - timedelta(hours=1)) == T0 - timedelta(hours=1)
