"""`NodeRemediation`: one incident on one node, from its first fault to its end."""

import asyncio
import contextlib
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.activities.contracts import ClusterActivities
    from gpu_runbooks.activities.errors import BAD_INPUT, refusal
    from gpu_runbooks.activities.model.fault import Fault, FaultSource
    from gpu_runbooks.activities.model.plan import FaultReport, PlanIncident, RungName
    from gpu_runbooks.activities.names import BLOCK_ANNOTATION
    from gpu_runbooks.workflows import audit, steps
    from gpu_runbooks.workflows.failures import cause_type, in_words
    from gpu_runbooks.workflows.incident import REPAIRS, Incident, Outcome, Phase, severity
    from gpu_runbooks.workflows.ladder import Close, next_step
    from gpu_runbooks.workflows.opening import (
        AutomaticStart,
        ContinuedStart,
        ManualStart,
        read_cluster,
        read_start,
    )
    from gpu_runbooks.workflows.operator import Word, read_escalation, read_word
    from gpu_runbooks.workflows.options import CLUSTER
    from gpu_runbooks.workflows.search_attributes import RUNBOOK_OUTCOME, opening
    from gpu_runbooks.workflows.slots import read_request

KNOWN = "Known"
"""Rejection of a fault that the incident has already: a repeat, not an error."""

OTHER_MACHINE = "OtherMachine"
"""Rejection of a fault of another instance than the incident's: to be sent again when it is over."""

ENDING = "Ending"
"""Rejection of a fault that came too late for this incident: to be sent again, then it opens its own."""

EXPIRED = "expired"
"""Answer to a fault of the machine that took the name: this incident ends, and the fault opens its own."""

NOT_NOW = "NotNow"
"""Rejection of a person's message that does not fit what the incident is doing."""


@workflow.defn
class NodeRemediation:
    """Blocks, drains, repairs, validates and returns one GPU node, escalating only on proof."""

    @workflow.init
    def __init__(self, raw: Any = None) -> None:
        self._raw = raw  # read in run, where an error can fail the workflow
        self._incident: Incident | None = None

    @workflow.run
    async def run(self, raw: Any = None) -> audit.Result:
        """Take the next step until the ladder says that the incident is over."""
        incident = self._incident = await self._open(raw)
        try:
            while not isinstance(step := next_step(incident, workflow.now()), Close):
                await steps.take(incident, step)
                if workflow.cancellation_reason() is not None:
                    raise asyncio.CancelledError  # a cancellation that met something on its way is not lost
                await self._continue_when_long(incident)
            return await self._close(incident, step)
        except (Exception, asyncio.CancelledError) as error:
            # Continuing as new is no end, and an evicted run cannot act: neither is caught here.
            await self._leave(incident, error)
            raise

    async def _open(self, raw: Any) -> Incident:
        """Read the input, plan where nobody did, and show who or what began the incident."""
        start = read_start(raw)
        info = workflow.info()
        if isinstance(start, ContinuedStart):
            return start.incident
        if isinstance(start, ManualStart):
            read_cluster(info.workflow_id, start.node)
            report = await self._plan(start)
        else:
            report = start.report
        cluster = read_cluster(info.workflow_id, report.plan.identity.name)
        if report.plan.cluster != cluster:
            right = info.workflow_id.replace(f"/{cluster}/", f"/{report.plan.cluster}/")
            raise refusal(
                BAD_INPUT, f"this is cluster {report.plan.cluster!r}: start it with --workflow-id {right}"
            )
        workflow.upsert_search_attributes(
            [pair.key.value_set(pair.value) for pair in opening(cluster, report.plan, report.fault)]
        )
        return Incident.open(cluster, info.workflow_id, info.first_execution_run_id, report, workflow.now())

    async def _plan(self, start: ManualStart) -> FaultReport:
        now = workflow.now()
        fault = Fault(
            source=FaultSource.MANUAL,
            code="manual",
            summary=start.reason,
            first_seen=now,
            last_seen=now,
            fingerprint=f"manual/{workflow.info().run_id}",
            reporter=start.operator,
        )
        try:
            plan = await workflow.execute_activity_method(
                ClusterActivities.plan_incident,
                PlanIncident(node=start.node, fault=fault, ladder=start.ladder),
                summary=f"read node {start.node} and the policy",
                **CLUSTER,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            # Said by the workflow itself: a person reads the first line of a failure.
            raise refusal(cause_type(error) or BAD_INPUT, in_words(error)) from None
        return FaultReport(fault=fault, plan=plan)

    async def _continue_when_long(self, incident: Incident) -> None:
        if workflow.info().is_continue_as_new_suggested():
            await workflow.wait_condition(workflow.all_handlers_finished)
            workflow.continue_as_new({"incident": incident.model_dump(mode="json")})

    async def _close(self, incident: Incident, step: Close) -> audit.Result:
        incident.end(step.outcome, step.reason)
        await steps.return_slot(incident)
        workflow.upsert_search_attributes([RUNBOOK_OUTCOME.value_set(step.outcome)])
        steps.enter(incident, Phase.CLOSED)
        return audit.result(incident, step.outcome, step.reason)

    async def _leave(self, incident: Incident, error: BaseException) -> None:
        """Cancelled or failed: the block stays, since nobody validated the node. The slot does not."""
        if is_cancelled_exception(error):
            outcome, why = Outcome.CANCELLED, workflow.cancellation_reason() or "no reason given"
        else:
            outcome, why = Outcome.FAILED, str(error)
        if incident.phase in {Phase.BLOCKING, Phase.RETURNING}:
            left = f"may carry our block or not, see its annotation {BLOCK_ANNOTATION}"
        else:
            left = "had our block when last seen, and keeps it" if incident.blocked else "was not blocked"
        incident.end(outcome, f"{outcome} ({why}): node {incident.target.name} {left}")
        workflow.upsert_search_attributes([RUNBOOK_OUTCOME.value_set(outcome)])
        steps.enter(incident, Phase.CLOSED)
        await steps.return_slot(incident)

    # --- messages ------------------------------------------------------------------------------------

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
        # One that waits for a person would wait for ever for a machine that is gone: it makes room.
        if not _is_of(self._incident, report) and self._incident.phase is not Phase.NEEDS_OPERATOR:
            raise ApplicationError(
                f"the incident is about {self._incident.target.provider_id}, "
                f"the fault about {report.plan.identity.provider_id}",
                type=OTHER_MACHINE,
            )

    @workflow.update(description="Drain or validate again, after a person mended what was in the way")
    def retry(self, raw: Any = None) -> str:
        incident = self._answer(read_word(raw), "retry")
        incident.drains = 0
        last = incident.acts[-1] if incident.acts else None
        repaired = last is not None and last.rung in {*REPAIRS, RungName.VALIDATE}
        undrained = last is not None and last.rung is RungName.DRAIN and not last.proven
        # A ladder without repairs leaves the repair to the person, who says with this that it is done.
        if repaired or (severity(incident.plan.treatment) == 1 and not undrained):
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
        used, allowed = incident.attempts(word.rung), _attempts(incident, word.rung)
        incident.granted = {**incident.granted, word.rung: max(0, used + 1 - allowed)}
        return f"node {incident.target.name}: next rung {word.rung}"

    @workflow.update(description="End the incident; the node keeps its block")
    def abort(self, raw: Any = None) -> str:
        word = read_word(raw)
        incident = self._open_incident()
        incident.note(workflow.now(), f"abort by {word.operator}: {word.reason}")
        incident.end(Outcome.ABORTED, f"aborted by {word.operator}: {word.reason}")
        return f"node {incident.target.name}: ends after the current step, the block stays"

    @retry.validator
    def _validate_retry(self, raw: Any = None) -> None:
        read_word(raw)
        self._refuse_unless_asked()

    @escalate_to.validator
    def _validate_escalate_to(self, raw: Any = None) -> None:
        word = read_escalation(raw)
        self._refuse_unless_asked()
        incident = self._open_incident()
        if not _attempts(incident, word.rung):
            repairs = [rung.name for rung in incident.plan.treatment.rungs if rung.name in REPAIRS]
            has = f"has the repairs {', '.join(repairs)}" if repairs else "has no repair"
            raise refusal(
                BAD_INPUT,
                f"ladder {incident.plan.treatment.ladder} {has}, not {word.rung}: abort this incident "
                "and start one with a ladder that has it",
            )

    @abort.validator
    def _validate_abort(self, raw: Any = None) -> None:
        read_word(raw)
        self._open_incident()

    @workflow.signal(description="The pool's budget grants the slot")
    def slot_granted(self, raw: Any = None) -> None:
        incident, grant = self._incident, read_request(raw)
        if incident is None or grant is None:
            return
        if incident.slot_wanted and grant.run_id == incident.run_id:
            incident.slot_held = True

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
        incident.question = incident.unsent = None
        incident.drained = False  # days may have passed
        return incident


def _is_of(incident: Incident, report: FaultReport) -> bool:
    """Whether a fault is of the incident's machine: the one that broke, or its replacement."""
    machines = {incident.plan.identity.provider_id, incident.target.provider_id}
    return report.plan.identity.provider_id in machines


def _attempts(incident: Incident, rung: RungName) -> int:
    """Attempts that the ladder allows for a rung; 0 where it lacks the rung."""
    return next((known.attempts for known in incident.plan.treatment.rungs if known.name is rung), 0)
