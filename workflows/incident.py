"""One incident: its faults, its acts, and the machine that they are for.

Changed only by the methods here and by the workflow that owns it; read by `ladder.next_step`.
"""

from collections.abc import Iterable
from datetime import datetime

from gpu_runbooks.activities.history.recorded_repairs import indexed
from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import FaultReport, RungName
from gpu_runbooks.workflows.acts import Act, DrainScope
from gpu_runbooks.workflows.incident_faults import KEPT_FINGERPRINTS, IncidentFaults, short
from gpu_runbooks.workflows.phases import Phase, Runbook
from gpu_runbooks.workflows.severity import (
    REPAIRS,
    notifies_owner,
    restarts_workload,
)

BY_HAND = {
    Runbook.RESET: RungName.RESET_GPU,
    Runbook.REBOOT: RungName.REBOOT,
    Runbook.REPLACE: RungName.REPLACE,
}
"""Runbooks by which a person orders one repair."""

LONGEST_PROOF = 400
"""Characters of a proof."""


class Incident(IncidentFaults):
    """One node from the first accepted fault until it is back, replaced, or handed to a person."""

    @classmethod
    def open(
        cls,
        cluster: str,
        workflow_id: str,
        run_id: str,
        report: FaultReport,
        now: datetime,
        *,
        runbook: Runbook = Runbook.REMEDIATE,
        take_held: bool = False,
        named_ladder: bool = False,
    ) -> "Incident":
        """Begin with the first fault. Its toleration counts from when the fault was first seen."""
        return cls(
            cluster=cluster,
            runbook=runbook,
            take_held=take_held,
            named_ladder=named_ladder,
            workflow_id=workflow_id,
            run_id=run_id,
            opened=now,
            plan=report.plan,
            faults=[short(report.fault)],
            fingerprints=[report.fault.fingerprint],
            decisive=report.fault.fingerprint,
            target=report.plan.identity,
            not_before=report.fault.first_seen + report.plan.treatment.toleration,
            block_rules=[report.plan.treatment.rule],
            workload_faults=[short(report.fault)] if restarts_workload(report.plan.treatment) else [],
            unnotified=[short(report.fault)] if notifies_owner(report.plan.treatment) else [],
            # Whoever gives a node back, or wants it tested, asks for no repair: validation decides.
            repaired=now if runbook in {Runbook.RETURN, Runbook.VALIDATE} else None,
            pods_stay=runbook is Runbook.VALIDATE,
            opted_out=report.plan.opted_out,
            hardware=[report.plan.identity.instance_id] if report.plan.identity.instance_id else [],
        )

    def let_intake_ask(self, now: datetime) -> None:
        """Begin as one that waits for its slot, which the intake asks for as soon as the incident runs."""
        self.slot_asked = self.slot_wanted = True
        self.phase = Phase.WAITING_FOR_SLOT
        self.remind_at = now + self.plan.operator_reminder

    def record(self, act: Act) -> None:
        """Record an attempt at a rung. Any repair, proven or not, asks for a new drain before the next."""
        self.acts = [*self.acts, act.model_copy(update={"proof": act.proof[:LONGEST_PROOF]})]
        self.looked = False
        if self.question is None:
            self.asked_since = None  # what had no answer has one
        if act.rung in REPAIRS:
            self.unsent = None
            self.pods_stay = self.drained is not DrainScope.NODE
            self.drained = self.examined = None
            self.drains = 0
            self.refute_repair()
            if act.proven and not self.unexplained:
                self.repaired = act.ended
            self.unexplained = False

    def why(self) -> str:
        """The latest fault in a line, for markers and calls."""
        fault = self.faults[-1]
        if fault.source is FaultSource.MANUAL:
            return f"{fault.summary}, asked for by {fault.reporter}"
        return f"{fault.source} {fault.code}, reported by {fault.reporter}"

    def go_on_with(self, target: NodeIdentity) -> None:
        """Take over the machine as an act left it, or its successor."""
        if target.provider_id != self.target.provider_id:
            # What was reported was of the machine that is gone.
            known = [*self.cleared, *(fault.fingerprint for fault in self.standing())]
            self.cleared, self.pending = known[-KEPT_FINGERPRINTS:], []
            # It may be one that was repaired before, under another name: the ledger is asked anew.
            self.recalled, self.done_before = False, {}
        self.target, self.agent_silent = target, False
        self.gone = self.terminating = False
        self.terminated = self.requested = self.node_claim = None

    def know(self, names: Iterable[str]) -> None:
        """Add names of hardware; new ones show with the next phase."""
        known = indexed([*self.hardware, *names])
        self.hardware_due = self.hardware_due or known != self.hardware
        self.hardware = known

    def skip_to(self, rung: RungName) -> None:
        """Try nothing milder than this rung any more."""
        if self.floor is None or REPAIRS.index(rung) > REPAIRS.index(self.floor):
            self.floor = rung

    def measurements(self) -> int:
        """Number of the next measurement through the agent: no two share a NodeTask."""
        return self.attempts(RungName.VALIDATE) + self.attempts(RungName.RESTART_WORKLOAD) + 1
