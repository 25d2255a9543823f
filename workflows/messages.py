"""What an incident is told: faults by an intake, decisions by people, a slot by its budget."""

import contextlib
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.activities.model.drain import DrainProgress, OverrideMethod
    from gpu_runbooks.activities.model.fault import ConditionCleared, Repeated
    from gpu_runbooks.activities.model.plan import FaultReport, RungName
    from gpu_runbooks.activities.model.slot import Stop
    from gpu_runbooks.workflows import audit
    from gpu_runbooks.workflows.incident import Incident
    from gpu_runbooks.workflows.opening import AutomaticStart, ContinuedStart, read_start
    from gpu_runbooks.workflows.operator import (
        Word,
        ordered,
        read_approval,
        read_drain_order,
        read_escalation,
        read_word,
        refuse_impossible,
    )
    from gpu_runbooks.workflows.phases import Outcome, Phase, Runbook
    from gpu_runbooks.workflows.recording import show
    from gpu_runbooks.workflows.severity import BLOCKS, REPAIRS, severity
    from gpu_runbooks.workflows.slots import read_request

KNOWN = "Known"
"""Rejection of a fault that the incident has already: a repeat, not an error."""

OTHER_MACHINE = "OtherMachine"
"""Rejection of a fault of another instance than the incident's: to be sent again when it is over."""

ENDING = "Ending"
"""Rejection of a fault that this incident cannot take now: to be sent again, for it or for its successor."""

EXPIRED = "expired"
"""Answer to a fault of the machine that took the name: this incident ends, and the fault opens its own."""

MOST_ORDERS = 20
"""Orders for pods that one incident takes: they travel with each of its drains."""

NOT_NOW = "NotNow"
"""Rejection of a person's message that does not fit what the incident is doing."""


class IncidentMessages:
    """Handlers of every runbook. They change the incident, and leave the acting to `run`."""

    def __init__(self, raw: Any = None) -> None:
        self._raw = raw  # read in run, where an error can fail the workflow
        self._incident: Incident | None = None

    @workflow.update(description="A fault of this node, from an intake")
    async def report_fault(self, report: FaultReport) -> str:
        await workflow.wait_condition(lambda: self._incident is not None)
        incident = self._open_incident()
        if incident.outcome is not None:
            return EXPIRED
        if _is_of(incident, report):
            incident.join(report, workflow.now())
            return "joined"
        provider_id = report.plan.identity.provider_id
        incident.end(Outcome.EXPIRED, f"node {incident.target.name} is another machine now: {provider_id}")
        return EXPIRED

    @report_fault.validator
    def _validate_report_fault(self, report: FaultReport) -> None:
        if report.fault.fingerprint in self._known_fingerprints():
            raise ApplicationError("this fault is part of the incident already", type=KNOWN)
        if self._incident is None:
            return
        if self._incident.outcome is not None:
            raise ApplicationError("the incident is ending: send it again for one of its own", type=ENDING)
        if self._incident.is_full(report, workflow.now()):
            raise ApplicationError("the incident tolerates as many faults as it can hold", type=ENDING)
        # One that waits for a person would wait for ever for a machine that is gone: it makes room.
        if not _is_of(self._incident, report) and self._incident.phase is not Phase.NEEDS_OPERATOR:
            raise ApplicationError(
                f"the incident is about {self._incident.target.provider_id}, "
                f"the fault about {report.plan.identity.provider_id}",
                type=OTHER_MACHINE,
            )

    @workflow.update(description="Drain or validate again, after a person mended what was in the way")
    def retry(self, raw: Any = None) -> str:
        unanswered = self._open_incident().unanswered
        incident = self._answer(read_word(raw), "retry")
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

    @workflow.update(description="Try this rung next, once more than policy allows")
    def escalate_to(self, raw: Any = None) -> str:
        word = read_escalation(raw)
        incident = self._answer(word, f"escalate to {word.rung}")
        incident.drains = 0
        incident.refute_repair()
        incident.floor = word.rung
        incident.ordered = list(dict.fromkeys([*incident.ordered, word.rung]))
        incident.insisted = list(dict.fromkeys([*incident.insisted, word.rung]))
        _grant(incident, word.rung)
        return f"node {incident.target.name}: next rung {word.rung}"

    @workflow.update(description="Let the rung be done that policy wants approved, or only observes")
    def approve(self, raw: Any = None) -> str:
        word = read_approval(raw)
        incident = self._answer(word, f"{word.rung} approved")
        incident.approved = {**incident.approved, word.rung: incident.attempts(word.rung) + 1}
        return f"node {incident.target.name}: {word.rung} follows"

    @workflow.update(description="Order what happens to pods that keep a drain from ending")
    def override_drain(self, raw: Any = None) -> str:
        order = read_drain_order(raw)
        incident = self._open_incident()
        orders = ordered(order, incident.blockers)
        overridden = {pod.uid for pod in orders}
        named = ", ".join(f"{pod.namespace}/{pod.name}" for pod in incident.blockers if pod.uid in overridden)
        incident.note(
            workflow.now(), f"{order.method} of {named} ordered by {order.operator}: {order.reason}"
        )
        kept = [known for known in incident.overrides if known.uid not in overridden]
        incident.overrides = [*kept, *orders]
        incident.orders += 1
        if incident.question is not None:
            incident.ask_nothing()
            incident.drains = 0
        show(incident)
        budgets = "; budgets still hold" if order.method is OverrideMethod.EVICT else ""
        return f"node {incident.target.name}: {order.method} {named}, and the drain goes on{budgets}"

    @workflow.update(description="End the incident; the node keeps its block")
    def abort(self, raw: Any = None) -> str:
        word = read_word(raw)
        incident = self._open_incident()
        incident.note(workflow.now(), f"abort by {word.operator}: {word.reason}")
        when = "now" if incident.draining or incident.question else "after the current step"
        block = "the block stays" if incident.blocked else "it is not blocked"
        incident.end(Outcome.ABORTED, f"aborted by {word.operator}: {word.reason}")
        return f"node {incident.target.name}: ends {when}, {block}"

    @retry.validator
    def _validate_retry(self, raw: Any = None) -> None:
        read_word(raw)
        self._refuse_unless_asked()

    @escalate_to.validator
    def _validate_escalate_to(self, raw: Any = None) -> None:
        word = read_escalation(raw)
        self._refuse_unless_asked()
        refuse_impossible(word.rung, self._open_incident())

    @approve.validator
    def _validate_approve(self, raw: Any = None) -> None:
        word = read_approval(raw)
        self._refuse_unless_asked()
        asking = self._open_incident().asking
        if word.rung is not asking:
            asked = f"approval of {asking}" if asking else "something else, see its details"
            raise ApplicationError(
                f"the incident does not ask for {word.rung}, but for {asked}", type=NOT_NOW
            )

    @override_drain.validator
    def _validate_override_drain(self, raw: Any = None) -> None:
        order = read_drain_order(raw)
        incident = self._open_incident()
        if incident.outcome is not None:
            raise ApplicationError("the incident is ending", type=NOT_NOW)
        if not incident.draining and not (incident.phase is Phase.NEEDS_OPERATOR and incident.drains):
            raise ApplicationError(
                f"no drain waits for a person: the incident is in phase {incident.phase}", type=NOT_NOW
            )
        orders = ordered(order, incident.blockers)
        if max(incident.orders, len(incident.overrides) + len(orders)) > MOST_ORDERS:
            raise ApplicationError(f"an incident takes {MOST_ORDERS} orders for pods at most", type=NOT_NOW)

    @abort.validator
    def _validate_abort(self, raw: Any = None) -> None:
        read_word(raw)
        incident = self._open_incident()
        if incident.outcome is not None or incident.phase in {Phase.RETURNING, Phase.CLOSED}:
            raise ApplicationError(
                f"too late: the incident is in phase {incident.phase} and ends", type=NOT_NOW
            )

    @workflow.signal(description="The pool's budget grants the slot")
    def slot_granted(self, raw: Any = None, *_: Any) -> None:
        incident, grant = self._incident, read_request(raw)
        if incident is None or grant is None:
            return
        if incident.slot_wanted and grant.run_id == incident.run_id:
            incident.slot_held, incident.stopped = True, ""
            incident.looked = False  # it may have waited for hours

    @workflow.signal(description="A halt or a storm: nothing more is done until the slot is granted anew")
    def disruption_stopped(self, raw: Any = None, *_: Any) -> None:
        incident = self._incident
        try:
            stop = Stop.model_validate(raw)
        except ValidationError:
            return  # a signal cannot be refused, and an error would stop the incident for ever
        if incident is not None and stop.run_id == incident.run_id and incident.slot_held:
            incident.stopped = stop.why
            show(incident)

    @workflow.signal(description="How far the drain is, and which pods stand in its way")
    def drain_progress(self, raw: Any = None, *_: Any) -> None:
        incident = self._incident
        try:
            progress = DrainProgress.model_validate(raw)
        except ValidationError:
            return  # a signal cannot be refused, and an error would stop the incident for ever
        if incident is not None and incident.draining and incident.drain_began == progress.started:
            incident.blockers, incident.blockers_seen = list(progress.blockers), workflow.now()
            show(incident)

    @workflow.signal(description="A condition of the node is good again, as a watch saw it")
    def condition_cleared(self, raw: Any = None, *_: Any) -> None:
        incident = self._incident
        try:
            cleared = ConditionCleared.model_validate(raw)
        except ValidationError:
            return  # as above
        if incident is not None and cleared.uid == incident.target.uid:
            incident.hear(cleared, workflow.now())
            show(incident)

    @workflow.signal(description="The sweep saw that the node is gone or another machine: look at it again")
    def look_again(self, *_: Any) -> None:
        if self._incident is not None:
            self._incident.look_due = True

    @workflow.signal(description="How often faults of this incident came again, told rarely")
    def repeated(self, raw: Any = None, *_: Any) -> None:
        incident = self._incident
        try:
            word = Repeated.model_validate(raw)
        except ValidationError:
            return  # as above
        if incident is not None:
            incident.count_repeats(word)

    @workflow.query(description="Phase, acts with their proofs, and what is waited for")
    def status(self) -> audit.Status:
        return audit.status(self._open_incident())

    def _known_fingerprints(self) -> list[str]:
        """Of the incident, or of the input where `run` has not read it yet."""
        if self._incident is not None:
            return self._incident.fingerprints
        with contextlib.suppress(ApplicationError):
            start = read_start(self._raw)
            if isinstance(start, AutomaticStart):
                return [start.report.fault.fingerprint]
            if isinstance(start, ContinuedStart):
                return start.incident.fingerprints
        return []

    def _open_incident(self) -> Incident:
        if self._incident is None:
            raise ApplicationError("the incident has not opened yet", type=NOT_NOW)
        return self._incident

    def _refuse_unless_asked(self) -> None:
        incident = self._open_incident()
        if incident.phase is not Phase.NEEDS_OPERATOR or incident.question is None:
            raise ApplicationError(
                f"the incident does not wait for a person, it is in phase {incident.phase}", type=NOT_NOW
            )

    def _answer(self, word: Word, decision: str) -> Incident:
        incident = self._open_incident()
        incident.note(workflow.now(), f"{decision} by {word.operator}: {word.reason}")
        incident.ask_nothing()
        incident.unsent = None
        incident.drained = incident.examined = None  # days may have passed
        return incident


def _is_of(incident: Incident, report: FaultReport) -> bool:
    """Whether a fault is of the incident's machine: the one that broke, or its replacement."""
    machines = {incident.plan.identity.provider_id, incident.target.provider_id}
    return report.plan.identity.provider_id in machines


def _grant(incident: Incident, rung: RungName) -> None:
    """Allow one more attempt than there were."""
    used, allowed = incident.attempts(rung), _attempts(incident, rung)
    incident.granted = {**incident.granted, rung: max(0, used + 1 - allowed)}


def _attempts(incident: Incident, rung: RungName) -> int:
    """Attempts that the ladder allows for a rung; 0 where it lacks the rung."""
    return next((known.attempts for known in incident.plan.treatment.rungs if known.name is rung), 0)
