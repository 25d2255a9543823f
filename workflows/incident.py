"""The state of one incident: everything that a run hands to the next when it continues as new.

Changed only by the methods here and by the workflow that owns it; read by `ladder.next_step`.
"""

from datetime import datetime

from pydantic import BaseModel

from gpu_runbooks.activities.model.drain import PodBlocker, PodOverride
from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import FaultReport, Plan, RungName, Treatment
from gpu_runbooks.workflows.phases import Outcome, Phase, Runbook

REPAIRS = (RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE)
"""The rungs that can cure, mildest first."""

BLOCKS = 2
"""Severity of a fault that blocks the node and knows no repair."""

KEPT_FAULTS = 10
"""Faults kept in full, the first one always: a payload holds 16 KiB. The others stay in the history."""

LONGEST_PROOF = 500
"""Characters of a proof."""

KEPT_FINGERPRINTS = 100
"""Fingerprints that are known as repeats. One that is forgotten joins again, and changes nothing."""


class Act(BaseModel):
    """One attempt at a rung, or one validation, and what it showed."""

    rung: RungName
    attempt: int
    proven: bool
    proof: str
    """What was read back, or why there is no proof."""
    evidence: str = ""
    """Digest and place of the list that belongs to it."""
    started: datetime
    ended: datetime


class Note(BaseModel):
    """A line of the audit that is no act: a fault that joined, an operator's word, a reminder."""

    at: datetime
    text: str


class Incident(BaseModel):
    """One node from the first accepted fault until it is back, replaced, or handed to a person."""

    cluster: str
    runbook: Runbook = Runbook.REMEDIATE
    take_held: bool = False
    """A person asked for the node although another one holds it."""
    workflow_id: str
    run_id: str
    """First run id: it stays when the run continues as new."""
    opened: datetime
    plan: Plan
    """Of the most severe fault so far."""
    faults: list[Fault]
    fingerprints: list[str]

    target: NodeIdentity
    """The machine that acts are for: changes with a reboot's new boot id and with a replacement."""
    not_before: datetime
    """End of the toleration, or of a wait for another incident's block."""
    slot_wanted: bool = False
    """A request is with the budget: a grant counts only then."""
    slot_held: bool = False
    blocked: bool = False
    block_rules: list[str] = []
    """Rules whose reasons the marker is to show."""
    marker_due: bool = False
    """A rule joined since the marker was written."""
    drained: bool = False
    """True from a drain that ended `drained` until the next act."""
    left: int = 0
    """Pods that the last drain left on the node by an operator's order."""
    drains: int = 0
    """Drains since the last act that did not end `drained`."""
    draining: bool = False
    """A drain runs now."""
    drain_began: datetime | None = None
    """When the drain began that runs, or that an order cut short: the pods' waits count from here."""
    overrides: list[PodOverride] = []
    """What operators ordered for pods that stood in the way of a drain."""
    orders: int = 0
    """How often an operator ordered something for pods."""
    workload_faults: list[Fault] = []
    """Faults of GPUs whose pods are still to be restarted."""
    acts: list[Act] = []
    floor: RungName | None = None
    """An operator's `escalate_to`: nothing milder is tried again."""
    granted: dict[RungName, int] = {}
    """Attempts that operators added to what policy allows."""
    reset_gpu: tuple[str | None, str | None] = (None, None)
    """UUID and PCI address of the GPU that was reset last; nothing for all of them."""
    unsent: datetime | None = None
    """Since when a repair could not even be asked for."""
    repaired: datetime | None = None
    """When a repair was proven that is not yet validated, nor refuted by a newer fault."""
    validations: int = 0
    """Validations of that repair that failed."""
    validated: bool = False
    returned: bool = False
    question: str | None = None
    """Why a person is needed."""
    unanswered: bool = False
    """The question is that something had no answer: it is asked again, person or not."""
    blockers: list[PodBlocker] = []
    blockers_seen: datetime | None = None
    """When the drain said so."""

    phase: Phase = Phase.OPEN
    outcome: Outcome | None = None
    reason: str = ""
    notes: list[Note] = []

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
    ) -> "Incident":
        """Begin with the first fault. Its toleration counts from when the fault was first seen."""
        return cls(
            cluster=cluster,
            runbook=runbook,
            take_held=take_held,
            workflow_id=workflow_id,
            run_id=run_id,
            opened=now,
            plan=report.plan,
            faults=[report.fault],
            fingerprints=[report.fault.fingerprint],
            target=report.plan.identity,
            not_before=report.fault.first_seen + report.plan.treatment.toleration,
            block_rules=[report.plan.treatment.rule],
            workload_faults=[report.fault] if restarts_workload(report.plan.treatment) else [],
            # Whoever gives a node back says with it that the repair is done: validation decides.
            repaired=now if runbook is Runbook.RETURN else None,
        )

    def join(self, report: FaultReport, now: datetime) -> None:
        """Take in a fault that arrived while the incident is open.

        The most severe treatment decides. Evidence newer than the last proven repair refutes it: the ladder
        goes on. Older evidence is explained by that repair and is only recorded.
        """
        fault = report.fault
        if fault.fingerprint in self.fingerprints:
            return
        self.faults = [self.faults[0], *[*self.faults[1:], fault][1 - KEPT_FAULTS :]]
        self.fingerprints = [*self.fingerprints, fault.fingerprint][-KEPT_FINGERPRINTS:]
        self.note(now, f"{fault.source} {fault.code} joined, reported by {fault.reporter}: {fault.summary}")
        rank = severity(report.plan.treatment)
        if rank == 0:
            return
        if restarts_workload(report.plan.treatment):
            self.workload_faults = [*self.workload_faults, fault][-KEPT_FAULTS:]
        elif report.plan.treatment.rule not in self.block_rules:
            self.block_rules = [*self.block_rules, report.plan.treatment.rule][-KEPT_FAULTS:]
            self.marker_due = self.blocked
        if self.runbook is not Runbook.REMEDIATE:
            self.note(now, f"recorded: a person runs {self.runbook}, and no repair follows from it")
        elif rank > severity(self.plan.treatment):
            self.note(now, f"rule {report.plan.treatment.rule} is more severe and decides from here")
            # Slot and audit stay with the machine and the pool of the first fault.
            kept = {
                name: getattr(self.plan, name) for name in ("identity", "pool", "pool_selector", "budget")
            }
            self.plan = report.plan.model_copy(update=kept)
            self.not_before = min(self.not_before, fault.first_seen + report.plan.treatment.toleration)
        if self.repaired is not None and (fault.first_seen > self.repaired or not self._covers(report)):
            self.note(now, "not explained by the last repair, which therefore does not count")
            self.refute_repair()

    def _covers(self, report: FaultReport) -> bool:
        """Whether the last proven repair reaches a fault: not a milder one, and not one of another GPU."""
        last = next((act.rung for act in reversed(self.acts) if act.rung in REPAIRS and act.proven), None)
        if last is None:
            return True  # a person, or somebody's reboot: the validation that follows decides
        first = _first_repair(report.plan.treatment)
        if first is not None and REPAIRS.index(first) > REPAIRS.index(last):
            return False
        entity = report.fault.entity
        return (
            last is not RungName.RESET_GPU
            or self.reset_gpu == (None, None)
            or (entity.kind == "gpu" and self.reset_gpu == (entity.uuid, entity.pci_address))
        )

    def faulty_gpu(self) -> tuple[str | None, str | None]:
        """UUID and PCI address of the one GPU that the faults name; nothing for none or several."""
        named = {
            (fault.entity.uuid, fault.entity.pci_address)
            for fault in self.faults
            if fault.entity.kind == "gpu"
        }
        return named.pop() if len(named) == 1 else (None, None)

    def note(self, now: datetime, text: str) -> None:
        """Record a line for the auditor; the oldest are dropped, they stay in the history."""
        self.notes = [*self.notes, Note(at=now, text=text[:300])][-30:]

    def refute_repair(self) -> None:
        """Whatever was repaired is not: nothing may return on its account."""
        self.repaired = None
        self.validated = False
        self.validations = 0
        self.returned = False

    def record(self, act: Act) -> None:
        """Record an attempt at a rung. Any repair, proven or not, asks for a new drain before the next."""
        self.acts = [*self.acts, act.model_copy(update={"proof": act.proof[:LONGEST_PROOF]})]
        if act.rung in REPAIRS:
            self.unsent = None
            self.drained = False
            self.drains = 0
            self.refute_repair()
            if act.proven:
                self.repaired = act.ended

    def end(self, outcome: Outcome, reason: str) -> None:
        """Decide the end; the ladder closes the incident at its next step."""
        self.outcome, self.reason, self.question = outcome, reason, None

    def why(self) -> str:
        """The latest fault in a line, for markers and calls."""
        fault = self.faults[-1]
        if fault.source is FaultSource.MANUAL:
            return f"{fault.summary}, asked for by {fault.reporter}"
        return f"{fault.source} {fault.code}, reported by {fault.reporter}"

    def hardware(self) -> list[str]:
        """Instances and GPUs that this incident is about."""
        ids = [self.plan.identity.instance_id, self.target.instance_id]
        ids += [fault.entity.uuid or "" for fault in self.faults]
        return list(dict.fromkeys(name for name in ids if name))

    def measurements(self) -> int:
        """Number of the next measurement through the agent: no two share a NodeTask."""
        return self.attempts(RungName.VALIDATE) + self.attempts(RungName.RESTART_WORKLOAD) + 1

    def last(self, rung: RungName) -> datetime:
        """When the last act of this rung ended; the opening where there was none."""
        return max((act.ended for act in self.acts if act.rung is rung), default=self.opened)

    def attempts(self, rung: RungName) -> int:
        """Attempts at a rung so far."""
        return sum(act.rung is rung for act in self.acts)


def severity(treatment: Treatment) -> int:
    """0 touches nothing, 1 restarts a workload, 2 only blocks the node, 3 to 5 by the first repair."""
    if not treatment.rungs:
        return 0
    if restarts_workload(treatment):
        return 1
    first = _first_repair(treatment)
    return BLOCKS if first is None else BLOCKS + 1 + REPAIRS.index(first)


def restarts_workload(treatment: Treatment) -> bool:
    """Whether the pods that hold a GPU are restarted, and the node is left alone."""
    return any(rung.name is RungName.RESTART_WORKLOAD for rung in treatment.rungs)


def _first_repair(treatment: Treatment) -> RungName | None:
    return next((rung.name for rung in treatment.rungs if rung.name in REPAIRS), None)
