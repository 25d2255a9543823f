"""The life of an incident, whatever runbook it runs: open, one step after the other, close."""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.activities.contracts import ClusterActivities
    from gpu_runbooks.activities.errors import BAD_INPUT, NOT_BLOCKED, OPTED_OUT, refusal
    from gpu_runbooks.activities.history.recorded_repairs import repairs_memo
    from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource
    from gpu_runbooks.activities.model.plan import FaultReport, PlanIncident
    from gpu_runbooks.workflows import audit, steps
    from gpu_runbooks.workflows.attribution import attribute
    from gpu_runbooks.workflows.blocking import remove_block, what_stands
    from gpu_runbooks.workflows.failures import cause_type, in_words
    from gpu_runbooks.workflows.holding_slot import return_slot
    from gpu_runbooks.workflows.incident import Incident
    from gpu_runbooks.workflows.incident_state import Requester, Spoken
    from gpu_runbooks.workflows.ladder import next_step
    from gpu_runbooks.workflows.ladder_steps import Close
    from gpu_runbooks.workflows.messages import IncidentMessages
    from gpu_runbooks.workflows.opening import (
        LADDERS,
        AutomaticStart,
        ContinuedStart,
        HandStart,
        ManualStart,
        ResetStart,
        narrowed,
        read_cluster,
        read_start,
    )
    from gpu_runbooks.workflows.opting_out import OWNERS_WORD, how_to_opt_in
    from gpu_runbooks.workflows.options import CLUSTER
    from gpu_runbooks.workflows.paging import say_left_blocked, take_back
    from gpu_runbooks.workflows.phases import Outcome, Phase, Runbook
    from gpu_runbooks.workflows.recording import enter, remembered
    from gpu_runbooks.workflows.resetting import resume_before_leaving
    from gpu_runbooks.workflows.search_attributes import RUNBOOK_OUTCOME, opening


class IncidentLife(IncidentMessages):
    """Base of the runbooks: one incident on one node, from its first fault to its end."""

    _runbook = Runbook.REMEDIATE

    async def _climb(self, raw: Any) -> audit.Result:
        """Take the next step until the ladder says that the incident is over."""
        incident = self._incident = await self._open(raw)
        try:
            while True:
                await attribute(incident)
                if isinstance(step := next_step(incident, workflow.now()), Close):
                    break
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
        start = read_start(raw, self._runbook)
        info = workflow.info()
        if isinstance(start, ContinuedStart):
            return start.incident
        if isinstance(start, HandStart):
            read_cluster(info.workflow_id, start.node)
            report = await self._plan(start)
        else:
            report = start.report  # of an intake
        cluster = read_cluster(info.workflow_id, report.plan.identity.name)
        if report.plan.cluster != cluster:
            right = info.workflow_id.replace(f"/{cluster}/", f"/{report.plan.cluster}/")
            raise refusal(
                BAD_INPUT, f"this is cluster {report.plan.cluster!r}: start it with --workflow-id {right}"
            )
        incident = Incident.open(
            cluster,
            info.workflow_id,
            info.first_execution_run_id,
            report,
            workflow.now(),
            runbook=self._runbook,
            take_held=isinstance(start, ManualStart) and start.take_held,
            named_ladder=isinstance(start, ManualStart) and start.ladder is not None,
        )
        if isinstance(start, AutomaticStart) and start.slot_asked:
            incident.let_intake_ask(workflow.now())
        # An intake starts an incident with all of them; each that is missing is one of a start by hand.
        missing = [
            pair.key.value_set(pair.value)
            for pair in opening(cluster, report.plan, report.fault, incident.phase)
            if info.typed_search_attributes.get(pair.key) != pair.value
        ]
        if missing:
            workflow.upsert_search_attributes(missing)
        if isinstance(start, HandStart):
            incident.requesters = [Requester(operator=start.operator)]
            started = Spoken(run_id=info.run_id, operator=start.operator, what=f"start of {self._runbook}")
            incident.unattributed = [started]
        return incident

    async def _plan(self, start: HandStart) -> FaultReport:
        now = workflow.now()
        fault = Fault(
            source=FaultSource.MANUAL,
            code="manual",
            entity=start.entity() if isinstance(start, ResetStart) else Entity(),
            summary=start.reason,
            first_seen=now,
            last_seen=now,
            fingerprint=f"manual/{workflow.info().run_id}",
            reporter=start.operator,
        )
        ladder = start.ladder if isinstance(start, ManualStart) else LADDERS[self._runbook][0]
        try:
            plan = await workflow.execute_activity_method(
                ClusterActivities.plan_incident,
                PlanIncident(node=start.node, fault=fault, ladder=ladder),
                summary=f"read node {start.node} and the policy",
                **CLUSTER,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            # Said by the workflow itself: a person reads the first line of a failure.
            raise refusal(cause_type(error) or BAD_INPUT, in_words(error)) from None
        if plan.opted_out and self._runbook not in {Runbook.VALIDATE, Runbook.RETURN}:
            raise refusal(OPTED_OUT, f"{OWNERS_WORD}; nothing was changed. {how_to_opt_in(start.node)}")
        return FaultReport(fault=fault, plan=narrowed(plan, self._runbook))

    async def _continue_when_long(self, incident: Incident) -> None:
        if workflow.info().is_continue_as_new_suggested():
            await workflow.wait_condition(workflow.all_handlers_finished)
            workflow.continue_as_new(
                {"incident": incident.model_dump(mode="json")},
                memo={**workflow.memo(), **repairs_memo(remembered())},  # what a run is given replaces all
            )

    async def _close(self, incident: Incident, step: Close) -> audit.Result:
        incident.end(step.outcome, step.reason)
        incident.fingerprints = [each for each in incident.fingerprints if each not in incident.unsettled()]
        await resume_before_leaving(incident)
        if incident.removes_block and incident.outcome is Outcome.ABORTED:
            await remove_block(incident)
        await return_slot(incident)
        await take_back(incident)
        if incident.left_unanswered and incident.blocked:
            await say_left_blocked(incident)
        enter(incident, Phase.CLOSED, RUNBOOK_OUTCOME.value_set(step.outcome))
        return audit.result(incident, step.outcome, incident.reason)

    async def _leave(self, incident: Incident, error: BaseException) -> None:
        """Cancelled or failed: the block stays, since nobody validated the node. The slot does not."""
        if is_cancelled_exception(error):
            outcome, why = Outcome.CANCELLED, workflow.cancellation_reason() or "no reason given"
        else:
            outcome, why = Outcome.FAILED, str(error)
        incident.end(outcome, f"{outcome} ({why})")
        if isinstance(error, ApplicationError) and error.type in {NOT_BLOCKED, OPTED_OUT}:
            incident.reason = f"refused: {error.message}"
        else:
            incident.reason += f": node {incident.target.name} {await what_stands(incident)}"
        workflow.upsert_search_attributes([RUNBOOK_OUTCOME.value_set(outcome)])
        await resume_before_leaving(incident)
        enter(incident, Phase.CLOSED)
        await return_slot(incident)
        await take_back(incident)
        if outcome is Outcome.FAILED and incident.blocked:
            await say_left_blocked(incident)
