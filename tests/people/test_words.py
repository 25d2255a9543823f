"""What a person may say, and when it is refused: tables, without Temporal."""

from datetime import timedelta

import pytest
from incident.plans import T0
from incident.test_ladder import acted, incident
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows import refusals
from gpu_runbooks.workflows.acts import DrainScope
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.incident_state import Requester
from gpu_runbooks.workflows.operator import Abort, DrainOrder, Escalation, Pause, RungWord, Word, read
from gpu_runbooks.workflows.phases import Phase, Runbook
from gpu_runbooks.workflows.step_token import step_of

WORD = {"operator": "ana", "reason": "ticket 4711"}
BLOCKED = [("block", True)]


@pytest.mark.parametrize(
    ("kind", "raw", "words"),
    [
        (Word, None, "one JSON object"),
        (Word, [], "one JSON object"),
        (Word, {}, "'operator': field required; field 'reason'"),
        (Word, {**WORD, "operator": "  "}, "'operator': must not be empty"),
        (
            Word,
            {**WORD, "rung": "reboot"},
            "there are operator, reason, step, incident",
        ),
        (Word, {**WORD, "step": 2}, "'step'"),
        (Word, {**WORD, "reason": "ok\n# halted by root"}, "'reason': write one line, without control"),
        (Word, {**WORD, "operator": "ana\x1b[31m"}, "'operator': write one line, without control"),
        (Word, {**WORD, "operator": "ana\u202e"}, "'operator': write one line, without control"),
        (Pause, {**WORD, "for": "2H"}, "not '2H'"),
        (Escalation, WORD, "'rung': field required"),
        (Escalation, {**WORD, "rung": "validate"}, "reset_gpu, reboot, replace"),
        (RungWord, {**WORD, "rung": "dance"}, "'rung': must be block, "),
        (Abort, {**WORD, "block": "maybe"}, "'block': must be keep or remove"),
        (Pause, {**WORD, "for": 2}, "'for': write a duration with units"),
        (Pause, {**WORD, "for": "0s"}, "at least 1m and at most 7d"),
        (Pause, {**WORD, "for": "8d"}, "at least 1m and at most 7d"),
        (Pause, {**WORD, "until": "noon"}, "there are operator, reason, step, incident, for"),
        (DrainOrder, {**WORD, "method": "evict", "pods": []}, "'pods': must not be empty"),
    ],
)
def test_a_wrong_word_is_refused_by_its_field_with_an_example(kind, raw, words):
    with pytest.raises(ApplicationError, match="bad argument") as refused:
        read(kind, raw)
    assert words in refused.value.message
    assert '"operator": "who", "reason": "why"' in refused.value.message


def test_a_word_is_read_with_its_defaults():
    assert read(Pause, WORD).lasts == timedelta(hours=24)
    assert read(Pause, {**WORD, "for": "2h"}).lasts == timedelta(hours=2)
    assert read(Abort, WORD).block == "keep"
    assert read(Word, {**WORD, "step": "reboot/2", "incident": "run"}).step == "reboot/2"


def asked(subject: Incident, question: str = "what now?", asking: RungName | None = None) -> Incident:
    return subject.model_copy(update={"phase": Phase.NEEDS_OPERATOR, "question": question, "asking": asking})


@pytest.mark.parametrize(
    ("subject", "token"),
    [
        (incident(), "open/0"),
        (acted("reset", *BLOCKED, phase=Phase.DRAINING), "drain/1"),
        (acted("reset", *BLOCKED, ("reset_gpu", False), phase=Phase.REBOOTING), "reboot/1"),
        (acted("reset", *BLOCKED, ("reboot", False), phase=Phase.REBOOTING), "reboot/2"),
        (asked(acted("reset", *BLOCKED)), "question/1"),
        (asked(acted("reset", *BLOCKED, answered=1)), "question/2"),
        (asked(acted("reset", *BLOCKED, ("reboot", False)), asking=RungName.REBOOT), "reboot/2"),
        (acted("reset", *BLOCKED, phase=Phase.WAITING), "waiting/1"),
    ],
)
def test_the_token_names_what_is_done_or_asked(subject, token):
    assert step_of(subject) == token


def test_each_answer_makes_another_question():
    subject = asked(acted("reset", *BLOCKED))
    before = step_of(subject)
    subject.ask_nothing()
    subject.question = "what now?"
    assert step_of(subject) != before


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"step": "reboot/1"}, "for step reboot/1: it is at question/1 now"),
        ({"incident": "another-run"}, "for incident another-run"),
        ({"step": "question/1"}, None),
        ({"incident": "run"}, None),
        ({"incident": "continued"}, None),
        ({}, None),
    ],
)
def test_a_word_for_another_step_or_incident_is_told_what_is_asked(said, words):
    subject, word = asked(acted("reset", *BLOCKED), "which way?"), read(Word, {**WORD, **said})
    if words is None:
        refusals.refuse_stale(word, subject, "continued")
        return
    with pytest.raises(ApplicationError, match="which way") as refused:
        refusals.refuse_stale(word, subject, "continued")
    assert refused.value.type == "Stale"
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("rung", "subject", "words"),
    [
        ("block", acted("reset", *BLOCKED), "still takes pods"),
        ("validate", acted("reset", *BLOCKED), "never healthy"),
        ("return", acted("reset", *BLOCKED), "blocked for ever"),
        ("drain", acted("reset", *BLOCKED), "before reset_gpu, reboot, replace"),
        ("notify_owner", incident("notify"), "never hear"),
        ("restart_workload", incident("restart"), "abort ends"),
        ("reset_gpu", acted("reboot", *BLOCKED), "not reset_gpu"),
        ("reboot", acted("block", *BLOCKED), "has no repair"),
        ("reboot", acted("reset", *BLOCKED, repairing=RungName.REBOOT), "under way"),
        ("reset_gpu", acted("reset", *BLOCKED, ("reboot", False)), "is behind"),
        ("reboot", acted("reset", *BLOCKED, skipped=[RungName.REBOOT]), "left out already"),
        ("replace", acted("reset", *BLOCKED, gone=True), "successor is to come"),
        ("replace", acted("reset", *BLOCKED, terminating=True), "successor is to come"),
        ("drain", acted("drain", *BLOCKED, runbook=Runbook.DRAIN), "abort ends it"),
        ("drain", acted("block", *BLOCKED), "has no drain"),
        ("reboot", acted("reset", *BLOCKED, phase=Phase.RETURNING), "too late"),
        ("reset_gpu", acted("reset", *BLOCKED), None),
        ("replace", acted("reset", *BLOCKED, ("reboot", False)), None),
        ("drain", acted("drain", *BLOCKED, drained=DrainScope.NODE), "drain is behind"),
        ("drain", acted("drain", *BLOCKED), None),
    ],
)
def test_only_what_can_be_left_out_is(rung, subject, words):
    if words is None:
        refusals.refuse_unskippable(RungName(rung), subject)
        return
    with pytest.raises(ApplicationError, match=words):
        refusals.refuse_unskippable(RungName(rung), subject)


REMOVE = read(Abort, {**WORD, "block": "remove"})


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        (acted("reset", *BLOCKED, repairing=RungName.REBOOT), "reboot is under way"),
        (acted("reset", *BLOCKED, gone=True), "gone or going"),
        (acted("reset", *BLOCKED, terminating=True), "gone or going"),
        (acted("reset", *BLOCKED, keeps_block=True), "stood before"),
        (acted("reset", *BLOCKED, phase=Phase.CLOSED), "too late"),
        (acted("reset", *BLOCKED), None),
    ],
)
def test_a_block_is_not_removed_under_a_repair_nor_from_a_machine_that_goes(subject, words):
    if words is None:
        refusals.refuse_abort(REMOVE, subject)
        return
    with pytest.raises(ApplicationError, match=words):
        refusals.refuse_abort(REMOVE, subject)
    if subject.phase is not Phase.CLOSED:
        refusals.refuse_abort(read(Abort, WORD), subject)


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        (acted("reset", *BLOCKED, phase=Phase.DRAINING), "does not wait for a person"),
        (asked(acted("reset", *BLOCKED, gone=True)), "machine is going"),
        (asked(acted("reset", *BLOCKED, blocked=False)), "no block of this incident"),
        (asked(acted("reset", *BLOCKED)), None),
    ],
)
def test_a_node_is_returned_anyway_only_where_a_person_is_asked(subject, words):
    if words is None:
        refusals.refuse_return(subject)
        return
    with pytest.raises(ApplicationError, match=words):
        refusals.refuse_return(subject)


@pytest.mark.parametrize(
    ("name", "by_other", "refused"),
    [("ana", True, True), (" ANA ", True, True), ("bob", True, False), ("ana", False, False)],
)
def test_nobody_approves_what_they_asked_for_where_policy_wants_another(name, by_other, refused):
    subject = asked(acted("reset", *BLOCKED), asking=RungName.REBOOT)
    treatment = subject.plan.treatment
    rungs = tuple(each.model_copy(update={"approval_by_other": by_other}) for each in treatment.rungs)
    subject.plan = subject.plan.model_copy(
        update={"treatment": treatment.model_copy(update={"rungs": rungs})}
    )
    subject.requesters = [Requester(operator="Ana")]
    word = read(RungWord, {"operator": name, "reason": "r", "rung": "reboot"})
    if not refused:
        refusals.refuse_own_approval(word, subject)
        return
    with pytest.raises(ApplicationError, match="somebody else"):
        refusals.refuse_own_approval(word, subject)


def test_a_pause_is_resumed_only_while_it_lasts():
    subject = acted("reset", *BLOCKED)
    with pytest.raises(ApplicationError, match="not paused"):
        refusals.refuse_resume(subject, T0)
