"""What follows while a question stands, as tables."""

from datetime import timedelta

import pytest
from incident.plans import T0, fault, report

from gpu_runbooks.activities.model.plan import Rung, RungName
from gpu_runbooks.activities.model.repair import RepeatPolicy
from gpu_runbooks.workflows.acts import Act, Examined
from gpu_runbooks.workflows.asking import (
    after_deadline,
    escalate,
    is_overdue,
    next_turn,
    pages_now,
    stronger,
    what_is_asked,
)
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder import next_step
from gpu_runbooks.workflows.ladder_steps import AskOperator
from gpu_runbooks.workflows.ledger import Done
from gpu_runbooks.workflows.phases import Runbook
from gpu_runbooks.workflows.standing import Pending

RESET, REBOOT, REPLACE = RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def asking(ladder="reset", *, tried=(), rungs=None, **state) -> Incident:
    opened = report(ladder, after_deadline="escalate")
    if rungs is not None:
        treatment = opened.plan.treatment.model_copy(update={"rungs": rungs(opened.plan.treatment.rungs)})
        opened = opened.model_copy(update={"plan": opened.plan.model_copy(update={"treatment": treatment})})
    subject = Incident.open("test", "node/test/n1", "run", opened, T0)
    for rung in tried:
        act = Act(rung=rung, attempt=1, proven=False, proof="", started=T0, ended=T0)
        subject.record(act)
    subject.question, subject.asked_since, subject.blocked = "why?", T0, True
    subject.escalates = True
    subject.remind_at = T0 + minutes(240)
    return subject.model_copy(update=state)


@pytest.mark.parametrize(
    ("state", "after", "what"),
    [
        ({"page_again": T0 + minutes(30)}, 30, "repeat the alert"),
        ({"page_again": T0 + minutes(300)}, 240, "remind"),
        ({"page_again": T0 + minutes(2000), "remind_at": T0 + minutes(2000)}, 24 * 60, "nobody answered"),
        (
            {"page_again": T0 + minutes(2000), "remind_at": T0 + minutes(1999), "overdue": True},
            1999,
            "remind",
        ),
        ({"unanswered": True, "page_again": T0 + minutes(1)}, 10, "ask again"),
        ({"pending": [Pending(fault=fault(), until=T0 + minutes(3))], "unanswered": True}, 3, "tolerated"),
    ],
    ids=["alert", "reminder", "deadline", "after the deadline", "no answer of an API", "tolerated fault"],
)
def test_what_comes_first_while_nobody_speaks(state, after, what):
    turn = next_turn(asking(**state), T0)
    assert turn.at == T0 + minutes(after)
    assert what in turn.what


@pytest.mark.parametrize(
    ("state", "at", "pages"),
    [
        ({}, 0, True),
        ({"page_again": T0 + minutes(30)}, 29, False),
        ({"page_again": T0 + minutes(30)}, 30, True),
        ({"unanswered": True}, 29, False),
        ({"unanswered": True}, 30, True),
        ({"asked_since": None}, 0, False),
    ],
    ids=["at once", "stands", "repeated", "asks itself again", "still has no answer", "nothing is asked"],
)
def test_when_a_person_is_called(state, at, pages):
    assert pages_now(asking(**state), T0 + minutes(at)) is pages


@pytest.mark.parametrize(
    ("state", "hours", "overdue"),
    [({}, 23.9, False), ({}, 24, True), ({"overdue": True}, 48, False), ({"asked_since": None}, 48, False)],
)
def test_when_a_question_is_overdue(state, hours, overdue):
    assert is_overdue(asking(**state), T0 + timedelta(hours=hours)) is overdue


def wants_approval(name):
    def change(rungs: tuple[Rung, ...]) -> tuple[Rung, ...]:
        return tuple(rung.model_copy(update={"approval": rung.name is name}) for rung in rungs)

    return change


@pytest.mark.parametrize(
    ("subject", "follows"),
    [
        (asking(), RESET),
        (asking(tried=[RESET]), REBOOT),
        (asking(tried=[RESET, REBOOT]), REPLACE),
        (asking(tried=[REPLACE]), "page"),
        (asking(floor=REBOOT), REPLACE),
        (asking(begin_at=REBOOT), REPLACE),
        (asking(tried=[RESET], skipped=[REBOOT]), REPLACE),
        (asking(tried=[RESET], gone=True), REPLACE),
        (asking("drain"), "page"),
        (asking("block"), "page"),
        (asking(escalates=False), "page"),
        (asking(tried=[RESET], rungs=wants_approval(REBOOT)), "page"),
        (asking(runbook=Runbook.RESET), "page"),
    ],
    ids=[
        "nothing tried",
        "after a reset",
        "after a reboot",
        "nothing stronger",
        "a floor",
        "begun higher",
        "left out by a person",
        "machine gone",
        "no repair in the ladder",
        "only a block",
        "a question that nothing stronger answers",
        "the next one wants an approval",
        "a person's runbook",
    ],
)
def test_escalation_by_silence_is_a_stronger_repair_and_no_approval(subject, follows):
    assert after_deadline(subject) == follows
    assert follows == "page" or stronger(subject) is follows


def drained_in_vain(subject: Incident) -> None:
    subject.examined, subject.drains = Examined(evidence="sha256:abc"), 1


def capped(subject: Incident) -> None:
    subject.done_before = {RESET: Done(times=99, where="earlier")}
    subject.returned_before = Done(times=0, where="")
    repair = subject.plan.repair.model_copy(update={"repeats": RepeatPolicy()})
    subject.plan = subject.plan.model_copy(update={"repair": repair})


def opted_out(subject: Incident) -> None:
    subject.opted_out = True


def looped(subject: Incident) -> None:
    subject.returned_before, subject.returns_undone = Done(times=9, where="earlier"), 9


def refused(subject: Incident) -> None:
    subject.question = "MIG is on: nothing can be said of its row remaps"


@pytest.mark.parametrize(
    ("happened", "follows"),
    [(drained_in_vain, RESET), (capped, REBOOT), (opted_out, "page"), (looped, "page"), (refused, "page")],
)
def test_which_questions_of_the_ladder_silence_may_answer(happened, follows):
    subject = asking(question=None, escalates=False, slot_held=True)
    happened(subject)
    step = next_step(subject, T0 + minutes(60))
    assert isinstance(step, AskOperator)
    subject.question, subject.escalates = step.question, step.escalates
    assert after_deadline(subject) == follows


@pytest.mark.parametrize("then", ["page", "abort"])
def test_what_else_policy_may_say(then):
    subject = asking()
    subject.plan = subject.plan.model_copy(update={"after_deadline": then})
    assert after_deadline(subject) == then


def test_escalation_by_silence_still_meets_the_questions_of_policy():
    subject = asking(tried=[RESET, REBOOT], drains=1, slot_held=True)
    subject.plan = subject.plan.model_copy(
        update={"repair": subject.plan.repair.model_copy(update={"replace": "ask"})}
    )
    escalate(subject, REPLACE)
    assert (subject.question, subject.asked_since, subject.drains) == (None, None, 0)
    step = next_step(subject, T0 + timedelta(days=1))
    assert isinstance(step, AskOperator)
    assert "before an instance is replaced" in step.question


def test_question_that_asks_itself_again_keeps_its_clock_until_something_is_done():
    subject = asking(unanswered=True)
    subject.question = None
    assert subject.asked_since == T0
    subject.record(Act(rung=RESET, attempt=1, proven=False, proof="", started=T0, ended=T0))
    assert subject.asked_since is None


def test_what_had_no_answer_is_one_question_and_what_follows_is_another():
    subject = asking(unanswered=True)
    assert what_is_asked(subject, "a: no answer") == what_is_asked(subject, "b: no answer at 12:00")
    subject.ask_nothing()
    assert what_is_asked(subject, "approve it") != what_is_asked(asking(unanswered=True), "a: no answer")
