"""The state of one incident: everything that a run hands to the next when it continues as new.

Changed only by the methods here and by the workflow that owns it; read by `ladder.next_step`.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from pydantic import BaseModel

from gpu_runbooks.activities.history.recorded_repairs import indexed
from gpu_runbooks.activities.model.drain import PodBlocker, PodOverride
from gpu_runbooks.activities.model.fault import ConditionCleared, Fault, FaultSource, Repeated
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import FaultReport, Plan, RungName
from gpu_runbooks.activities.model.repair import NodeClaimDeleted, ReplaceRequested
from gpu_runbooks.workflows.acts import Act, DrainScope, Examined, Note
from gpu_runbooks.workflows.aftermath import is_reset
from gpu_runbooks.workflows.ledger import Done
from gpu_runbooks.workflows.phases import Outcome, Phase, Runbook
from gpu_runbooks.workflows.policy.sequence import Explanation, Kind, Ours, explained, takes_back
from gpu_runbooks.workflows.severity import (
    BLOCKS,
    REPAIRS,
    first_repair,
    notifies_owner,
    restarts_workload,
    severity,
)
from gpu_runbooks.workflows.standing import (
    Pending,
    counts_from,
    decisive,
    over_by_look,
    over_by_word,
)

BY_HAND = {
    Runbook.RESET: RungName.RESET_GPU,
    Runbook.REBOOT: RungName.REBOOT,
    Runbook.REPLACE: RungName.REPLACE,
}
"""Runbooks by which a person orders one repair."""

KEPT_FAULTS = 10
"""Faults kept in full, the first one always: a payload holds 16 KiB. The others stay in the history."""

LONGEST_NOTE, KEPT_NOTES = 250, 20
LONGEST_SUMMARY = 200
"""Characters of a fault's summary: ten faults are kept."""

LONGEST_PROOF = 400
"""Characters of a proof."""

MOST_REPEATS = 10**9
"""Repeats of a fault that are counted."""

KEPT_FINGERPRINTS = 100
"""Fingerprints that are known as repeats. One that is forgotten joins again, and changes nothing."""


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
    decisive: str = ""
    """Fingerprint of the fault that the plan is for."""
    pending: list[Pending] = []
    """Faults that are tolerated for now."""
    cleared: list[str] = []
    """Fingerprints of faults that are over, or need nothing done to the node."""
    looked: bool = False
    """The node was looked at since the last fault, and since the slot was granted."""
    plan_anew: bool = False
    """The fault that the plan is for is over, and others stand."""
    approved: dict[RungName, int] = {}
    """Attempts at a rung up to which a person approved."""
    asking: RungName | None = None
    """The rung that a person is asked to approve."""
    slot_wanted: bool = False
    """A request is with the budget: a grant counts only then."""
    slot_held: bool = False
    blocked: bool = False
    block_rules: list[str] = []
    """Rules whose reasons the marker is to show."""
    marker_due: bool = False
    """A rule joined since the marker was written."""
    drained: DrainScope | None = None
    """Of the last drain that ended `drained`, until the next act."""
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
    unnotified: list[Fault] = []
    """Faults of which the workload's owner is still to be told."""
    acts: list[Act] = []
    repairing: RungName | None = None
    """The repair that is under way."""
    unexplained: bool = False
    """A fault joined during a repair that does not reach it: proven or not, it does not count."""
    floor: RungName | None = None
    """Nothing milder is tried again: an operator's `escalate_to`, or what a repair showed."""
    insisted: list[RungName] = []
    """Of those, what a person ordered by `escalate_to`: nobody is asked again before it."""
    ordered: list[RungName] = []
    """Rungs that a person asked for by name: no question of policy stands before them."""
    granted: dict[RungName, int] = {}
    """Attempts that operators added to what policy allows."""
    examined: Examined | None = None
    """Of the examination for the next repair."""
    examinations: int = 0
    hardware: list[str] = []
    """Names of all machines and GPUs of the incident, as the search attribute holds them."""
    machine: list[str] = []
    """Names of the target and all its GPUs, by the last examination."""
    faulty: list[str] = []
    """Those of the GPUs that the faults name; of the machine where they name none."""
    agent_silent: bool = False
    """No agent took the last examination of this boot."""
    recalled: bool = False
    """The ledger was asked what was done to this hardware before."""
    named_ladder: bool = False
    """A person named the ladder: it begins where they expect it to."""
    begin_at: RungName | None = None
    """By the ledger: milder repairs of the same hardware did not last."""
    done_before: dict[RungName, Done] = {}
    """What this hardware had of each repair within the window, by the ledger."""
    all_gpus: bool = False
    """The faulty GPU cannot be reset by itself."""
    reset_gpu: tuple[str | None, str | None] = (None, None)
    """UUID and PCI address of the GPU that was reset last; nothing for all of them."""
    reset_began: datetime | None = None
    """When the last reset began: what the driver logs of it is no fault."""
    services_paused: bool = False
    """The GPU services of the node are stopped for a reset."""
    pods_stay: bool = False
    """The last repair left other pods at work: the test takes the GPUs that are free."""
    gpus_seen: int = 1
    """Allocatable GPUs at the last look."""
    karpenter: bool = False
    """Karpenter launched the machine, by the last look."""
    gone: bool = False
    """The machine went away under a repair: nothing is left to drain, and its successor is to be found."""
    terminated: datetime | None = None
    """Since when the target's successor may come."""
    terminating: bool = False
    """Its owner was asked to terminate the target, whatever came of that: it may go at any time."""
    requested: ReplaceRequested | None = None
    """The group's answer. Its successor is found by it, also when EC2 has forgotten the old instance."""
    node_claim: NodeClaimDeleted | None = None
    """The NodeClaim that was deleted."""
    keeps_block: bool = False
    """A block stood before that this runbook is not to take away."""
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
            faults=[_short(report.fault)],
            fingerprints=[report.fault.fingerprint],
            decisive=report.fault.fingerprint,
            target=report.plan.identity,
            not_before=report.fault.first_seen + report.plan.treatment.toleration,
            block_rules=[report.plan.treatment.rule],
            workload_faults=[_short(report.fault)] if restarts_workload(report.plan.treatment) else [],
            unnotified=[_short(report.fault)] if notifies_owner(report.plan.treatment) else [],
            # Whoever gives a node back, or wants it tested, asks for no repair: validation decides.
            repaired=now if runbook in {Runbook.RETURN, Runbook.VALIDATE} else None,
            pods_stay=runbook is Runbook.VALIDATE,
            ordered=[BY_HAND[runbook]] if runbook in BY_HAND else [],
            hardware=[report.plan.identity.instance_id] if report.plan.identity.instance_id else [],
        )

    def join(self, report: FaultReport, now: datetime) -> None:
        """Take in a fault that arrived while the incident is open."""
        fault = _short(report.fault)
        if fault.fingerprint in self.fingerprints:
            return
        self.faults = as_many_as_fit([*self.faults, fault])
        self.fingerprints = [*self.fingerprints, fault.fingerprint][-KEPT_FINGERPRINTS:]
        self.looked = False
        self.note(now, f"{fault.source} {fault.code} joined, reported by {fault.reporter}: {fault.summary}")
        explanation = self._explanation(report)
        if explanation or severity(report.plan.treatment) == 0:
            self.cleared = [*self.cleared, fault.fingerprint][-KEPT_FINGERPRINTS:]
        self.clear([each for each in self.standing() if takes_back(fault, each)], now)
        if explanation:
            self.note(now, f"{explanation.kind}: {explanation.why}")
            return
        if notifies_owner(report.plan.treatment):
            self.unnotified = as_many_as_fit([*self.unnotified, fault])
        if severity(report.plan.treatment) == 0:
            return
        until = counts_from(report)
        if until > now and self.runbook is Runbook.REMEDIATE:
            self.pending = [*self.pending, Pending(fault=fault, until=until)][-KEPT_FAULTS:]
            self.note(now, f"it counts from {until:%H:%M:%S} UTC, unless it is over by then")
            return
        self.count(report, now)

    def _explanation(self, report: FaultReport) -> Explanation | None:
        """Why a fault needs no answer beside that of the others, or of what we did; None where it counts."""
        fault = report.fault
        found = explained(fault, self.faults, self._ours())
        if found is None or found.kind is Kind.OURS:
            return found
        if severity(report.plan.treatment) > severity(self.plan.treatment):
            return None  # nothing that is done for the other would cure it
        refutes = self.repaired is not None and fault.first_seen > self.repaired
        return None if refutes else found

    def _ours(self) -> Iterator[Ours]:
        """When we reset GPUs, or had pods end: what the driver logs of it is no fault."""
        if self.reset_began is not None:
            ended = max((act.ended for act in self.acts if act.rung is RungName.RESET_GPU), default=None)
            running = ended is None or ended < self.reset_began
            yield Ours(self.reset_gpu, self.reset_began, None if running else ended)
        for act in self.acts:
            if act.rung in {RungName.DRAIN, RungName.RESTART_WORKLOAD}:
                yield Ours((None, None), act.started, act.ended)
        if self.draining and self.drain_began is not None:
            yield Ours((None, None), self.drain_began)

    def count(self, report: FaultReport, now: datetime) -> None:
        """Take a fault into account.

        The most severe treatment decides. Evidence newer than the last proven repair refutes it: the ladder
        goes on. Older evidence is explained by that repair and is only recorded.
        """
        fault, rank = _short(report.fault), severity(report.plan.treatment)
        self.pending = [each for each in self.pending if each.fault.fingerprint != fault.fingerprint]
        # Which GPU to reset, and whose pods are in the way, was decided without it.
        self.examined = None
        if restarts_workload(report.plan.treatment):
            self.workload_faults = as_many_as_fit([*self.workload_faults, fault])
        elif report.plan.treatment.rule not in self.block_rules:
            self.block_rules = [*self.block_rules, report.plan.treatment.rule][-KEPT_FAULTS:]
            self.marker_due = self.blocked
        if self.runbook is not Runbook.REMEDIATE:
            self.note(now, f"recorded: a person runs {self.runbook}, and no repair follows from it")
        elif not self.begun and now < self.not_before:
            self._tolerate_decisive()
            self._decide_by(report)
        elif rank > severity(self.plan.treatment):
            self.note(now, f"rule {report.plan.treatment.rule} is more severe and decides from here")
            if severity(self.plan.treatment) <= BLOCKS:
                # What was asked, or tried in vain, was about a ladder that knew no repair.
                self.question, self.unanswered, self.drains = None, False, 0
            self._decide_by(report)
        if self._is_of_work_that_goes_on(report):
            self.note(now, "of pods that work on beside the repaired GPU: it takes nothing back")
        elif self.repairing is not None and not self._reaches(self.repairing, report):
            self.note(now, "not explained by the repair under way, which therefore will not count")
            self.unexplained = True
        elif self.repaired is not None and (fault.first_seen > self.repaired or not self._covers(report)):
            self.note(now, "not explained by the last repair, which therefore does not count")
            self.refute_repair()

    def _decide_by(self, report: FaultReport) -> None:
        """Have this fault's plan decide. Slot and audit stay with the machine and pool of the first fault."""
        kept = {name: getattr(self.plan, name) for name in ("identity", "pool", "pool_selector", "budget")}
        self.plan = report.plan.model_copy(update=kept)
        self.decisive = report.fault.fingerprint
        if not self.begun:
            self.not_before = counts_from(report)

    def _tolerate_decisive(self) -> None:
        """Let the fault that decided so far wait for the end of its toleration, unless it touches nothing."""
        if severity(self.plan.treatment) == 0:
            return
        fault = next((each for each in self.faults if each.fingerprint == self.decisive), None)
        if fault is not None and fault.fingerprint not in self.cleared:
            self.pending = [*self.pending, Pending(fault=fault, until=self.not_before)][-KEPT_FAULTS:]

    @property
    def begun(self) -> bool:
        """Whether anything was done yet to the node or the pods on it."""
        return self.blocked or any(act.rung is not RungName.NOTIFY_OWNER for act in self.acts)

    def standing(self) -> list[Fault]:
        """The faults that are not known to be over."""
        return [fault for fault in self.faults if fault.fingerprint not in self.cleared]

    def due(self, now: datetime) -> list[Fault]:
        """Faults that need a plan: their toleration is over, or the one that decided is."""
        if self.plan_anew:
            return self.standing() if self.question is None else []
        return [each.fault for each in self.pending if each.until <= now]

    def postpone(self, fault: Fault, until: datetime) -> None:
        """Tolerate a fault for longer, since nobody could say what policy makes of it."""
        rest = [each for each in self.pending if each.fault.fingerprint != fault.fingerprint]
        self.pending = [*rest, Pending(fault=fault, until=until)]

    def decide_anew(self, reports: Iterable[FaultReport], now: datetime) -> None:
        """Begin with the faults that stand, since the one that decided is over and nothing was done yet."""
        reports, self.plan_anew = list(reports), False
        chosen = decisive(reports, now)
        self._decide_by(chosen)
        self.pending = [
            Pending(fault=_short(report.fault), until=counts_from(report))
            for report in reports
            if report is not chosen and counts_from(report) > now
        ]
        self.note(now, f"{chosen.fault.source} {chosen.fault.code} stands, and decides from here")

    def clear(self, over: Iterable[Fault], now: datetime) -> None:
        """Take faults for over: the end before anything is done; a block stays until validated."""
        over = [fault for fault in over if fault.fingerprint not in self.cleared]
        if not over:
            return
        for fault in over:
            self.note(now, f"{fault.source} {fault.code} {fault.reason} is over".replace("  ", " "))
        fingerprints = {fault.fingerprint for fault in over}
        self.cleared = [*self.cleared, *fingerprints][-KEPT_FINGERPRINTS:]
        self.pending = [each for each in self.pending if each.fault.fingerprint not in fingerprints]
        all_over = not self.standing() and len(self.fingerprints) == len(self.faults)
        if self.runbook is not Runbook.REMEDIATE or self.outcome is not None:
            return
        if not self.begun:
            if all_over:
                self.end(Outcome.CLEARED, "it was over before anything was done")
            else:
                self.plan_anew = self.plan_anew or self.decisive in fingerprints
        elif all_over and self.repaired is None and {act.rung for act in self.acts} <= {RungName.BLOCK}:
            self.note(now, "only the block was done: the hardware is validated, and no repair follows")
            self.repaired, self.pods_stay, self.validations, self.question = now, True, 0, None

    def look_at(self, conditions: Mapping[str, str], now: datetime) -> None:
        """Take in what a look at the node showed of its conditions."""
        self.looked = True
        self.clear(over_by_look(self.standing(), conditions), now)

    def count_repeats(self, word: Repeated) -> None:
        """Fold repeats into the faults that are kept. They are no news, and nothing follows from them."""
        self.faults = [
            fault.model_copy(
                update={
                    "count": min(fault.count + times, MOST_REPEATS),
                    "last_seen": max(fault.last_seen, word.last_seen),
                }
            )
            if (times := word.counts.get(fault.fingerprint, 0)) > 0
            else fault
            for fault in self.faults
        ]

    def hear(self, cleared: ConditionCleared, now: datetime) -> None:
        """Take in that a watch saw a condition become good."""
        self.clear(over_by_word(self.standing(), cleared.type, cleared.at), now)

    def _covers(self, report: FaultReport) -> bool:
        """Whether the last proven repair reaches a fault."""
        last = next((act.rung for act in reversed(self.acts) if act.rung in REPAIRS and act.proven), None)
        # Of a person, or somebody's reboot, the validation that follows decides.
        return last is None or self._reaches(last, report)

    def _reaches(self, repair: RungName, report: FaultReport) -> bool:
        """Whether a repair can cure a fault: not a milder one, and not one of another GPU."""
        first = first_repair(report.plan.treatment)
        if first is not None and REPAIRS.index(first) > REPAIRS.index(repair):
            return False
        return repair is not RungName.RESET_GPU or is_reset(report.fault.entity, self.reset_gpu)

    def _is_of_work_that_goes_on(self, report: FaultReport) -> bool:
        """Whether it is an application's, on another GPU than the one that was emptied and reset."""
        one_gpu = self.pods_stay or (self.repairing is RungName.RESET_GPU and self.drained is DrainScope.GPU)
        return (
            one_gpu
            and restarts_workload(report.plan.treatment)
            and not is_reset(report.fault.entity, self.reset_gpu)
        )

    def unsettled(self) -> set[str]:
        """Fingerprints that stay news: tolerated faults, and applications' that no drain has settled."""
        faults = [each.fault for each in self.pending] + (self.workload_faults if self.pods_stay else [])
        return {fault.fingerprint for fault in faults}

    def faulty_gpus(self) -> list[tuple[str | None, str | None]]:
        """UUID and PCI address of each GPU that the faults name."""
        named = [
            (fault.entity.uuid, fault.entity.pci_address)
            for fault in self.faults
            if fault.entity.kind == "gpu"
        ]
        return list(dict.fromkeys(named))

    def names_only_gpus(self) -> bool:
        """Whether no fault is of the node as a whole."""
        return all(fault.entity.kind == "gpu" for fault in self.faults)

    def faulty_gpu(self) -> tuple[str | None, str | None]:
        """The one GPU that all faults name; nothing for several, or where one is of the node."""
        named = self.faulty_gpus()
        return named[0] if self.names_only_gpus() and len(named) == 1 else (None, None)

    def note(self, now: datetime, text: str) -> None:
        """Record a line for the auditor; the oldest are dropped, they stay in the history."""
        self.notes = [*self.notes, Note(at=now, text=text[:LONGEST_NOTE])][-KEPT_NOTES:]

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
            self.pods_stay = self.drained is not DrainScope.NODE
            self.drained = self.examined = None
            self.drains = 0
            self.refute_repair()
            if act.proven and not self.unexplained:
                self.repaired = act.ended
            self.unexplained = False

    def end(self, outcome: Outcome, reason: str) -> None:
        """Decide the end; the ladder closes the incident at its next step."""
        self.outcome, self.reason, self.question = outcome, reason, None

    def why(self) -> str:
        """The latest fault in a line, for markers and calls."""
        fault = self.faults[-1]
        if fault.source is FaultSource.MANUAL:
            return f"{fault.summary}, asked for by {fault.reporter}"
        return f"{fault.source} {fault.code}, reported by {fault.reporter}"

    def go_on_with(self, target: NodeIdentity) -> None:
        """Take over the machine as an act left it, or its successor."""
        self.target, self.agent_silent = target, False
        self.gone = self.terminating = False
        self.terminated = self.requested = self.node_claim = None

    def know(self, names: Iterable[str]) -> bool:
        """Add names of hardware; True where one is new."""
        known = indexed([*self.hardware, *names])
        new = known != self.hardware
        self.hardware = known
        return new

    def skip_to(self, rung: RungName) -> None:
        """Try nothing milder than this rung any more."""
        if self.floor is None or REPAIRS.index(rung) > REPAIRS.index(self.floor):
            self.floor = rung

    def measurements(self) -> int:
        """Number of the next measurement through the agent: no two share a NodeTask."""
        return self.attempts(RungName.VALIDATE) + self.attempts(RungName.RESTART_WORKLOAD) + 1

    def last(self, rung: RungName) -> datetime:
        """When the last act of this rung ended; the opening where there was none."""
        return max((act.ended for act in self.acts if act.rung is rung), default=self.opened)

    def attempts(self, rung: RungName) -> int:
        """Attempts at a rung so far."""
        return sum(act.rung is rung for act in self.acts)


def _short(fault: Fault) -> Fault:
    return fault.model_copy(update={"summary": fault.summary[:LONGEST_SUMMARY]})


def as_many_as_fit(faults: list[Fault]) -> list[Fault]:
    """As many faults as a payload holds, the first and the latest ones.

    The oldest goes of a place that another one names as well: no GPU is forgotten while there is such a one.
    """
    faults = list(faults)
    while len(faults) > KEPT_FAULTS:
        places = [fault.entity for fault in faults]
        again = (i for i in range(1, len(faults) - 1) if places.count(places[i]) > 1)
        del faults[next(again, 1)]
    return faults
