"""What an incident is told by intakes, its budget and its activities. What people say is in `people`."""

import contextlib
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.activities.model.drain import DrainProgress
    from gpu_runbooks.activities.model.fault import ConditionCleared, Repeated
    from gpu_runbooks.activities.model.plan import FaultReport
    from gpu_runbooks.activities.model.slot import Stop
    from gpu_runbooks.workflows import audit
    from gpu_runbooks.workflows.holding_slot import refuse_slot
    from gpu_runbooks.workflows.incident import Incident
    from gpu_runbooks.workflows.opening import AutomaticStart, ContinuedStart, read_start
    from gpu_runbooks.workflows.people import PeopleMessages
    from gpu_runbooks.workflows.phases import Outcome, Phase
    from gpu_runbooks.workflows.recording import show
    from gpu_runbooks.workflows.slots import read_request

KNOWN = "Known"
"""Rejection of a fault that the incident has already: a repeat, not an error."""

OTHER_MACHINE = "OtherMachine"
"""Rejection of a fault of another instance than the incident's: to be sent again when it is over."""

ENDING = "Ending"
"""Rejection of a fault that this incident cannot take now: to be sent again, for it or for its successor."""

EXPIRED = "expired"
"""Answer to a fault that is not this incident's, such as one of the machine that took the name: the incident
ends, and the fault opens its own."""


MAKES_ROOM = frozenset({Phase.NEEDS_OPERATOR, Phase.PROBATION})
"""Phases in which a fault of the machine that took the name ends the incident: nothing is under way."""


class IncidentMessages(PeopleMessages):
    """Handlers of every runbook. They change the incident, and leave the acting to `run`."""

    def __init__(self, raw: Any = None) -> None:
        self._raw = raw  # read in run, where an error can fail the workflow
        self._incident = None

    @workflow.update(description="A fault of this node, from an intake")
    async def report_fault(self, report: FaultReport) -> str:
        await workflow.wait_condition(lambda: self._incident is not None)
        incident = self._open_incident()
        if incident.outcome is not None:
            return EXPIRED
        if _is_of(incident, report):
            if incident.leaves_alone(report):
                incident.stop_watching(report, workflow.now())
                return EXPIRED
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
        if not _is_of(self._incident, report) and self._incident.phase not in MAKES_ROOM:
            raise ApplicationError(
                f"the incident is about {self._incident.target.provider_id}, "
                f"the fault about {report.plan.identity.provider_id}",
                type=OTHER_MACHINE,
            )

    @workflow.signal(
        description="The pool's budget grants the slot",
        unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON,
    )
    async def slot_granted(self, raw: Any = None, *_: Any) -> None:
        grant = read_request(raw)
        if self._incident is None:  # a run that continues an earlier one, and has not read it yet
            await workflow.wait_condition(lambda: self._incident is not None)
        incident = self._open_incident()
        if grant is None or grant.run_id != incident.run_id:
            return
        if not incident.slot_wanted:
            await refuse_slot(incident)  # it came after the request was withdrawn: nobody would return it
            return
        if grant.turn != incident.slot_turn:
            return  # the budget has heard by now, or will, that this one was given back
        if incident.stopped:
            incident.drained = incident.examined = None  # days may have passed
        incident.slot_held, incident.stopped = True, ""
        incident.looked = False  # it may have waited for hours

    @workflow.signal(
        description="A halt or a storm: nothing more is done until the slot is granted anew",
        unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON,
    )
    async def disruption_stopped(self, raw: Any = None, *_: Any) -> None:
        try:
            stop = Stop.model_validate(raw)
        except ValidationError:
            return  # a signal cannot be refused, and an error would stop the incident for ever
        if self._incident is None:
            await workflow.wait_condition(lambda: self._incident is not None)
        incident = self._open_incident()
        if stop.run_id == incident.run_id and incident.slot_held:
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


def _is_of(incident: Incident, report: FaultReport) -> bool:
    """Whether a fault is of the incident's machine: the one that broke, or its replacement."""
    machines = {incident.plan.identity.provider_id, incident.target.provider_id}
    return report.plan.identity.provider_id in machines
