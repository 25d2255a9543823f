"""The decision as tables: no Temporal, no clock but the one handed in."""

from datetime import timedelta

import pytest
from incident.plans import T0, fault, identity, report

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.acts import Act, DrainScope, Examined
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.incident_state import Paused
from gpu_runbooks.workflows.ladder import next_step
from gpu_runbooks.workflows.ladder_steps import (
    AskOperator,
    Block,
    Close,
    Drain,
    Examine,
    HoldSlot,
    Look,
    Repair,
    Return,
    Tolerate,
    Validate,
)
from gpu_runbooks.workflows.phases import Outcome


def incident(ladder: str = "reset", **changes) -> Incident:
    return Incident.open("test", "node/test/n1", "run", report(ladder, **changes), T0)


def acted(ladder: str, *acts: tuple[str, bool], **state) -> Incident:
    """An incident that holds its slot, is blocked, and has these acts behind it."""
    subject = incident(ladder)
    subject.slot_held = subject.blocked = True
    for minute, (rung, proven) in enumerate(acts, start=1):
        moment = T0 + timedelta(minutes=minute)
        name = RungName(rung)
        subject.record(
            Act(
                rung=name,
                attempt=subject.attempts(name) + 1,
                proven=proven,
                proof="",
                started=moment,
                ended=moment,
            )
        )
        if name is RungName.VALIDATE:
            subject.validated = proven
            subject.validations += not proven
        if name is RungName.DRAIN:
            subject.examined = Examined(evidence="sha256:abc")
            subject.drained = DrainScope.NODE if proven else None
            subject.drains += not proven
    return subject.model_copy(update=state)


LATER = T0 + timedelta(hours=1)


def words(step) -> str:
    match step:
        case Repair(rung=rung, attempt=attempt):
            return f"{rung.name} {attempt}"
        case Close(outcome=outcome):
            return f"close {outcome}"
        case _:
            return type(step).__name__


def test_a_slot_and_a_block_come_before_any_act():
    subject = incident()
    assert isinstance(next_step(subject, T0), HoldSlot)
    subject.slot_held = True
    assert isinstance(next_step(subject, T0), Block)
    subject.blocked = True
    assert isinstance(next_step(subject, T0), Examine)
    subject.examined = Examined(evidence="sha256:abc")
    assert isinstance(next_step(subject, T0), Drain)
    subject.drained = DrainScope.NODE
    assert words(next_step(subject, T0)) == "reset_gpu 1"


def test_a_refused_block_asks_a_person_before_it_is_tried_again():
    subject = incident()
    subject.slot_held = True
    subject.question = "block_node: nodes is forbidden [Forbidden]"
    assert isinstance(next_step(subject, T0), AskOperator)
    subject.question = None
    assert isinstance(next_step(subject, T0), Block)


def test_a_blocked_node_without_a_slot_is_not_drained():
    subject = incident()
    subject.blocked = True
    assert isinstance(next_step(subject, LATER), HoldSlot)


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ([], "Examine"),
        ([("drain", True)], "reset_gpu 1"),
        ([("drain", False)], "AskOperator"),
        ([("drain", True), ("reset_gpu", True)], "Validate"),
        ([("drain", True), ("reset_gpu", False)], "Examine"),
        ([("drain", True), ("reset_gpu", False), ("drain", True)], "reboot 1"),
        ([("drain", True), ("reset_gpu", True), ("validate", True)], "Return"),
        ([("drain", True), ("reset_gpu", True), ("validate", False)], "Examine"),
        ([("reset_gpu", True), ("validate", False), ("drain", True)], "reboot 1"),
        ([("reset_gpu", False), ("reboot", False), ("drain", True)], "replace 1"),
        ([("reset_gpu", False), ("reboot", True)], "Validate"),
        ([("reset_gpu", False), ("reboot", False), ("replace", False)], "AskOperator"),
        ([("reset_gpu", False), ("reboot", False), ("replace", True), ("validate", False)], "AskOperator"),
        ([("reset_gpu", False), ("reboot", False), ("replace", True), ("validate", True)], "Return"),
    ],
)
def test_the_ladder_escalates_only_on_proof(acts, expected):
    assert words(next_step(acted("reset", *acts), LATER)) == expected


def test_an_empty_gpu_is_not_an_empty_node():
    subject = acted("reset", ("reset_gpu", False))
    subject.examined, subject.drained = Examined(evidence="sha256:abc", pods=()), DrainScope.GPU
    step = next_step(subject, LATER)
    assert isinstance(step, Drain)
    assert step.pods is None


@pytest.mark.parametrize(
    ("ladder", "first"),
    [("reset", "reset_gpu 1"), ("reboot", "reboot 1"), ("replace", "replace 1"), ("block", "AskOperator")],
)
def test_each_ladder_begins_with_its_own_first_repair(ladder, first):
    assert words(next_step(acted(ladder, ("drain", True)), LATER)) == first


def test_attempts_of_a_rung_are_used_before_the_next():
    subject = acted("reset", ("reset_gpu", False), ("drain", True))
    rungs = tuple(
        rung.model_copy(update={"attempts": 2}) if rung.name is RungName.RESET_GPU else rung
        for rung in subject.plan.treatment.rungs
    )
    treatment = subject.plan.treatment.model_copy(update={"rungs": rungs})
    subject.plan = subject.plan.model_copy(update={"treatment": treatment})
    assert words(next_step(subject, LATER)) == "reset_gpu 2"


def test_the_wait_of_a_rung_counts_from_the_last_act():
    subject = acted("reset", ("reset_gpu", False), ("drain", True))
    rungs = tuple(
        rung.model_copy(update={"wait": timedelta(hours=2)}) for rung in subject.plan.treatment.rungs
    )
    treatment = subject.plan.treatment.model_copy(update={"rungs": rungs})
    subject.plan = subject.plan.model_copy(update={"treatment": treatment})
    reset = subject.acts[0].ended
    assert next_step(subject, LATER) == Tolerate(reset + timedelta(hours=2))
    assert words(next_step(subject, reset + timedelta(hours=2))) == "reboot 1"
    subject.drained = None
    assert words(next_step(subject, reset + timedelta(hours=2))) == "Drain"


def test_a_toleration_counts_from_the_first_sight_of_the_fault():
    subject = incident(toleration=timedelta(minutes=10))
    assert next_step(subject, T0) == Tolerate(T0 + timedelta(minutes=10))
    assert isinstance(next_step(subject, T0 + timedelta(minutes=10)), HoldSlot)


@pytest.mark.parametrize(
    ("ladder", "changes", "outcome"),
    [("none", {}, Outcome.LEFT_ALONE), ("reset", {"enforce": False}, Outcome.OBSERVED)],
)
def test_what_touches_nothing_asks_for_nothing(ladder, changes, outcome):
    step = next_step(incident(ladder, **changes), T0)
    assert isinstance(step, Close)
    assert step.outcome is outcome


def test_a_returned_node_closes_and_a_replaced_one_says_so():
    subject = acted("reset", ("reset_gpu", True), ("validate", True), blocked=False, returned=True)
    assert words(next_step(subject, LATER)) == "close returned"
    subject.target = identity("n2")
    assert words(next_step(subject, LATER)) == "close replaced"


def test_a_newer_fault_takes_a_validated_repair_back():
    subject = acted("reset", ("drain", True), ("reset_gpu", True), ("validate", True))
    assert isinstance(next_step(subject, LATER), Return)
    subject.join(report("reset", of=fault("95", at=LATER)), LATER)
    assert isinstance(next_step(subject, LATER), Examine)
    subject.examined, subject.drained = Examined(evidence="sha256:def"), DrainScope.NODE
    assert words(next_step(subject, LATER)) == "reboot 1"


def test_a_newer_fault_after_the_return_blocks_again():
    subject = acted("reset", ("reset_gpu", True), ("validate", True), blocked=False, returned=True)
    subject.join(report("reset", of=fault("95", at=LATER)), LATER)
    assert isinstance(next_step(subject, LATER), Block)


def test_a_fault_from_before_the_repair_is_explained_by_it():
    subject = acted("reset", ("drain", True), ("reset_gpu", True), ("validate", True))
    subject.join(report("reset", of=fault("63", at=T0 - timedelta(minutes=5))), LATER)
    assert isinstance(next_step(subject, LATER), Return)


@pytest.mark.parametrize(
    ("ladder", "gpu"), [("replace", "GPU-1"), ("reboot", "GPU-1"), ("reset", "GPU-7"), ("reset", None)]
)
def test_a_reset_does_not_explain_what_it_cannot_reach(ladder, gpu):
    """A stronger treatment, another GPU, or the whole node: known late, though seen before the reset."""
    subject = acted("reset", ("drain", True), ("reset_gpu", True), ("validate", True))
    subject.reset_gpu = ("GPU-1", None)
    subject.join(report(ladder, of=fault("79", at=T0 - timedelta(minutes=5), gpu=gpu)), LATER)
    subject.marker_due = False  # the reason is on the node
    assert isinstance(next_step(subject, LATER), Examine)
    subject.examined, subject.drained = Examined(evidence="sha256:def"), DrainScope.NODE
    assert words(next_step(subject, LATER)) == ("replace 1" if ladder == "replace" else "reboot 1")


@pytest.mark.parametrize("application", [True, False], ids=["application", "informational"])
def test_a_fault_that_touches_no_node_does_not_take_a_repair_back(application):
    subject = acted("reset", ("drain", True), ("reset_gpu", True), ("validate", True))
    late = report("none", of=fault("92", at=LATER))
    treatment = late.plan.treatment.model_copy(update={"application": application})
    subject.join(
        late.model_copy(update={"plan": late.plan.model_copy(update={"treatment": treatment})}), LATER
    )
    assert isinstance(next_step(subject, LATER), Return)


def test_the_most_severe_fault_decides():
    subject = incident("none")
    subject.join(report("reset", of=fault("119")), T0)
    assert subject.plan.treatment.ladder == "reset"
    subject.join(report("replace", of=fault("79")), T0)
    subject.join(report("block", of=fault("63")), T0)
    assert subject.plan.treatment.ladder == "replace"


def test_an_operator_can_have_a_rung_tried_again():
    subject = acted("reset", ("reset_gpu", False), ("reboot", False), ("replace", False), ("drain", True))
    assert isinstance(next_step(subject, LATER), AskOperator)
    subject.floor, subject.granted = RungName.REPLACE, {RungName.REPLACE: 1}
    assert words(next_step(subject, LATER)) == "replace 2"


def test_a_second_validation_where_policy_gives_two_attempts():
    subject = acted("reset", ("drain", True), ("reset_gpu", True), ("validate", False))
    rungs = tuple(rung.model_copy(update={"attempts": 2}) for rung in subject.plan.treatment.rungs)
    treatment = subject.plan.treatment.model_copy(update={"rungs": rungs})
    subject.plan = subject.plan.model_copy(update={"treatment": treatment})
    assert isinstance(next_step(subject, LATER), Validate)


@pytest.mark.parametrize(
    ("state", "looks"),
    [
        ({}, True),
        ({"question": "what now?"}, True),
        ({"slot_held": False}, True),
        ({"paused": Paused(operator="ana", until=LATER + timedelta(hours=1))}, True),
        ({"gone": True}, False),
        ({"terminating": True}, True),
        ({"outcome": Outcome.ABORTED}, False),
    ],
)
def test_a_node_that_the_sweep_missed_is_looked_at_first(state, looks):
    subject = acted("reset", ("block", True), look_due=True, **state)
    assert isinstance(next_step(subject, LATER), Look) is looks
