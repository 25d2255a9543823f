"""What people tell an incident: updates, so that the `temporal` command line is enough.

A validator refuses, says why, and leaves no event in the history; a handler changes the incident and leaves
the acting to `run`. Nothing here waits.
"""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.activities.model.drain import OverrideMethod
    from gpu_runbooks.activities.model.plan import RungName
    from gpu_runbooks.workflows import refusals
    from gpu_runbooks.workflows.endings import back_in_service
    from gpu_runbooks.workflows.incident import Incident
    from gpu_runbooks.workflows.incident_state import Paused, Requester, Spoken
    from gpu_runbooks.workflows.operator import (
        Abort,
        DrainOrder,
        Escalation,
        Pause,
        RungWord,
        Said,
        Word,
        ordered,
        read,
    )
    from gpu_runbooks.workflows.phases import Outcome, Phase, Runbook
    from gpu_runbooks.workflows.recording import show
    from gpu_runbooks.workflows.refusals import NOT_NOW, not_now
    from gpu_runbooks.workflows.severity import BLOCKS, REPAIRS, severity

MOST_ORDERS = 20
"""Orders for pods that one incident takes: they travel with each of its drains."""


class PeopleMessages:
    """The updates of people, the same for every runbook."""

    _incident: Incident | None = None

    @workflow.update(description="Drain or validate again, after a person mended what was in the way")
    def retry(self, raw: Any = None) -> str:
        unanswered = self._open_incident().unanswered
        incident = self._answer(read(Word, raw), "retry")
        incident.drains = 0
        if incident.runbook is Runbook.DRAIN:
            return f"node {incident.target.name}: drains again"
        if incident.gone:
            _grant(incident, RungName.REPLACE)
            return f"node {incident.target.name}: looks for its successor again"
        if unanswered:
            return f"node {incident.target.name}: asks again what had no answer"
        last = incident.acts[-1] if incident.acts else None
        repaired = last is not None and last.rung in {*REPAIRS, RungName.VALIDATE}
        undrained = last is not None and last.rung is RungName.DRAIN and not last.proven
        # A ladder without repairs leaves the repair to the person, who says with this that it is done.
        if repaired or (severity(incident.plan.treatment) == BLOCKS and not undrained):
            incident.validations = 0
            incident.repaired = workflow.now()
        return f"node {incident.target.name}: going on"

    @retry.validator
    def _validate_retry(self, raw: Any = None) -> None:
        refusals.refuse_unless_asked(self._addressed(read(Word, raw)))

    @workflow.update(description="Try this rung next, once more than policy allows")
    def escalate_to(self, raw: Any = None) -> str:
        word = read(Escalation, raw)
        incident = self._answer(word, f"escalate to {word.rung}")
        incident.drains = 0
        incident.refute_repair()
        incident.floor = word.rung
        incident.skipped = [rung for rung in incident.skipped if rung is not word.rung]
        incident.ordered = {**incident.ordered, word.rung: incident.attempts(word.rung) + 1}
        incident.insisted = list(dict.fromkeys([*incident.insisted, word.rung]))
        incident.requesters = [*incident.requesters, Requester(operator=word.operator)]
        _grant(incident, word.rung)
        return f"node {incident.target.name}: next rung {word.rung}"

    @escalate_to.validator
    def _validate_escalate_to(self, raw: Any = None) -> None:
        word = read(Escalation, raw)
        incident = self._addressed(word)
        refusals.refuse_unless_asked(incident)
        refusals.refuse_impossible(word.rung, incident)

    @workflow.update(description="Let the rung be done that policy wants approved, or only observes")
    def approve(self, raw: Any = None) -> str:
        word = read(RungWord, raw)
        incident = self._answer(word, f"{word.rung} approved", approves=word.rung)
        rung = next(each for each in incident.plan.treatment.rungs if each.name is word.rung)
        ends = workflow.now() + rung.approval_lasts
        incident.approved = {**incident.approved, word.rung: incident.attempts(word.rung) + 1}
        incident.approved_until = {**incident.approved_until, word.rung: ends}
        follows = f"node {incident.target.name}: {word.rung} follows, if it can begin by {ends:%H:%M:%S} UTC"
        if rung.approval_by_other:
            follows += ", and if the server saw you under another identity than whoever asked for it"
        return follows

    @approve.validator
    def _validate_approve(self, raw: Any = None) -> None:
        word = read(RungWord, raw)
        incident = self._addressed(word)
        refusals.refuse_unasked(word.rung, incident)
        refusals.refuse_own_approval(word, incident)

    @workflow.update(description="Leave the rung out that the incident asks to do: the next one follows")
    def reject(self, raw: Any = None) -> str:
        word = read(RungWord, raw)
        if word.rung in REPAIRS:
            incident = self._answer(word, f"{word.rung} rejected")
            incident.skipped = [*incident.skipped, word.rung]
            return f"node {incident.target.name}: {word.rung} is left out, the next rung follows"
        incident = self._hear(word, f"{word.rung} rejected")
        incident.ask_nothing()
        incident.question = (
            f"{word.operator} rejected {word.rung} ({word.reason}), without which nothing can follow: "
            "answer retry to be asked again, or abort"
        )
        show(incident)
        return f"node {incident.target.name}: {word.rung} is not done; it waits for retry or abort"

    @reject.validator
    def _validate_reject(self, raw: Any = None) -> None:
        word = read(RungWord, raw)
        refusals.refuse_unasked(word.rung, self._addressed(word))

    @workflow.update(description="Leave a repair out, now or when its turn would come")
    def skip_rung(self, raw: Any = None) -> str:
        word = read(RungWord, raw)
        answers = self._open_incident().question is not None
        said = f"{word.rung} left out"
        incident = self._answer(word, said) if answers else self._hear(word, said)
        incident.skipped = [*incident.skipped, word.rung]
        show(incident)
        return f"node {incident.target.name}: {word.rung} will not be done"

    @skip_rung.validator
    def _validate_skip_rung(self, raw: Any = None) -> None:
        word = read(RungWord, raw)
        refusals.refuse_unskippable(word.rung, self._addressed(word))

    @workflow.update(description="Do nothing until resumed, or until the time is over: 24 hours if not said")
    def pause(self, raw: Any = None) -> str:
        word = read(Pause, raw)
        until = workflow.now() + word.lasts
        incident = self._hear(word, f"paused until {until:%Y-%m-%d %H:%M:%S} UTC")
        incident.paused = Paused(operator=word.operator, until=until)
        show(incident)
        after = f", after {incident.repairing}, which is under way" if incident.repairing else ""
        return f"node {incident.target.name}: paused until {until:%Y-%m-%d %H:%M:%S} UTC{after}"

    @pause.validator
    def _validate_pause(self, raw: Any = None) -> None:
        refusals.refuse_ending(self._addressed(read(Pause, raw)))

    @workflow.update(description="Go on before the pause is over")
    def resume(self, raw: Any = None) -> str:
        incident = self._hear(read(Word, raw), "resumed")
        incident.paused = None
        show(incident)
        return f"node {incident.target.name}: going on"

    @resume.validator
    def _validate_resume(self, raw: Any = None) -> None:
        refusals.refuse_resume(self._addressed(read(Word, raw)), workflow.now())

    @workflow.update(description="Give the node back without a validation, on a person's word")
    def return_anyway(self, raw: Any = None) -> str:
        word = read(Word, raw)
        incident = self._answer(word, "returned anyway")
        incident.vouched = (
            f"back in service without a validation, on the word of {word.operator}: {word.reason}"
        )
        return f"node {incident.target.name}: goes back into service, and nobody validated it"

    @return_anyway.validator
    def _validate_return_anyway(self, raw: Any = None) -> None:
        refusals.refuse_return(self._addressed(read(Word, raw)))

    @workflow.update(description="Order what happens to pods that keep a drain from ending")
    def override_drain(self, raw: Any = None) -> str:
        order = read(DrainOrder, raw)
        orders = ordered(order, self._open_incident().blockers)
        overridden = {pod.uid for pod in orders}
        pods = (pod for pod in self._open_incident().blockers if pod.uid in overridden)
        named = ", ".join(f"{pod.namespace}/{pod.name}" for pod in pods)
        incident = self._hear(order, f"{order.method} of {named} ordered")
        kept = [known for known in incident.overrides if known.uid not in overridden]
        incident.overrides = [*kept, *orders]
        incident.orders += 1
        if incident.question is not None:
            incident.ask_nothing()
            incident.drains = 0
        show(incident)
        budgets = "; budgets still hold" if order.method is OverrideMethod.EVICT else ""
        return f"node {incident.target.name}: {order.method} {named}, and the drain goes on{budgets}"

    @override_drain.validator
    def _validate_override_drain(self, raw: Any = None) -> None:
        order = read(DrainOrder, raw)
        incident = self._addressed(order)
        if incident.outcome is not None:
            raise not_now("the incident is ending")
        if not incident.draining and not (incident.phase is Phase.NEEDS_OPERATOR and incident.drains):
            raise not_now(f"no drain waits for a person: the incident is in phase {incident.phase}")
        orders = ordered(order, incident.blockers)
        if max(incident.orders, len(incident.overrides) + len(orders)) > MOST_ORDERS:
            raise not_now(f"an incident takes {MOST_ORDERS} orders for pods at most")

    @workflow.update(description="End the incident; the node keeps its block, unless block is remove")
    def abort(self, raw: Any = None) -> str:
        word = read(Abort, raw)
        if self._open_incident().returned:  # not by the phase: a fault may have ended the probation just now
            incident = self._hear(word, "probation ended")
            back = back_in_service(incident)
            incident.end(back.outcome, back.reason)
            return f"node {incident.target.name}: ends now; the node is in service and not blocked"
        incident = self._hear(word, "abort" if word.block == "keep" else "abort, the block removed")
        when = (
            "now" if incident.draining or incident.question or incident.paused else "after the current step"
        )
        block = "the block stays" if incident.blocked else "it is not blocked"
        if word.block == "remove":
            incident.removes_block = True
            block = "its block is removed then, and nobody validated it"
        incident.end(Outcome.ABORTED, f"aborted by {word.operator}: {word.reason}")
        return f"node {incident.target.name}: ends {when}, {block}"

    @abort.validator
    def _validate_abort(self, raw: Any = None) -> None:
        word = read(Abort, raw)
        refusals.refuse_abort(word, self._addressed(word))

    def _open_incident(self) -> Incident:
        if self._incident is None:
            raise ApplicationError("the incident has not opened yet", type=NOT_NOW)
        return self._incident

    def _addressed(self, word: Word) -> Incident:
        """The incident, if it is the one, and at the step, that the person saw."""
        incident = self._open_incident()
        refusals.refuse_stale(word, incident, workflow.info().run_id)
        return incident

    def _hear(self, word: Said, what: str, approves: RungName | None = None) -> Incident:
        """Put on record what a person said, and that the history is to say who it was."""
        incident, update = self._open_incident(), workflow.current_update_info()
        incident.note(workflow.now(), f"{what} by {word.operator}: {word.reason}")
        if update is not None:
            spoken = Spoken(
                run_id=workflow.info().run_id,
                update=update.id,
                operator=word.operator,
                what=what,
                approves=approves,
            )
            incident.unattributed = [*incident.unattributed, spoken]
        return incident

    def _answer(self, word: Said, decision: str, approves: RungName | None = None) -> Incident:
        incident = self._hear(word, decision, approves)
        incident.returns_answered = incident.returns_known()
        incident.ask_nothing()
        incident.unsent = None
        incident.drained = incident.examined = None  # days may have passed
        incident.opted_out = False  # the label may be off by now: the look before the next act says
        return incident


def _grant(incident: Incident, rung: RungName) -> None:
    """Allow one more attempt than there were."""
    used, allowed = incident.attempts(rung), _attempts(incident, rung)
    incident.granted = {**incident.granted, rung: max(0, used + 1 - allowed)}


def _attempts(incident: Incident, rung: RungName) -> int:
    """Attempts that the ladder allows for a rung; 0 where it lacks the rung."""
    return next((known.attempts for known in incident.plan.treatment.rungs if known.name is rung), 0)
