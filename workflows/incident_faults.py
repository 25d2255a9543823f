"""The faults of an incident: how each is taken in, when it counts, what explains it, and when it is over."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime

from gpu_runbooks.activities.model.fault import ConditionCleared, Fault, Repeated
from gpu_runbooks.activities.model.plan import FaultReport, RungName
from gpu_runbooks.workflows.acts import DrainScope
from gpu_runbooks.workflows.aftermath import is_reset
from gpu_runbooks.workflows.incident_state import IncidentState
from gpu_runbooks.workflows.ledger import NEXT, signs_of
from gpu_runbooks.workflows.phases import Outcome, Runbook
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
    over_by_look,
    over_by_word,
)

KEPT_FAULTS = 10
"""Faults kept in full, the first one always: a payload holds 16 KiB. The others stay in the history."""

LONGEST_SUMMARY = 200
"""Characters of a fault's summary: ten faults are kept."""

MOST_REPEATS = 10**9
"""Repeats of a fault that are counted."""

KEPT_FINGERPRINTS = 100
"""Fingerprints that are known as repeats. One that is forgotten joins again, and changes nothing."""


HARMLESS = frozenset({RungName.BLOCK, RungName.NOTIFY_OWNER})
"""Acts after which a fault that is over needs no repair."""


class IncidentFaults(IncidentState):
    """An incident as its faults see it."""

    def join(self, report: FaultReport, now: datetime) -> None:
        """Take in a fault that arrived while the incident is open."""
        fault = short(report.fault)
        if fault.fingerprint in self.fingerprints:
            return
        self.faults = as_many_as_fit([*self.faults, fault], self.cleared)
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
        if not self.returned:
            self.vouched = ""  # whoever vouched for the node did not know of it
        until = counts_from(report)
        if until > now and self.runbook is Runbook.REMEDIATE:
            if not self._awaits_its_like(fault):
                self.tolerate(fault, until)
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
        return None if self._is_newer(fault) else found

    def _is_newer(self, fault: Fault) -> bool:
        """Whether it began after what was repaired, or after a return for which a person vouched."""
        returns = (act.started for act in self.acts if act.rung is RungName.RETURN and self.returned)
        since = self.repaired or max(returns, default=None)
        return since is not None and fault.first_seen > since

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
        fault, rank = short(report.fault), severity(report.plan.treatment)
        self.pending = [each for each in self.pending if each.fault.fingerprint != fault.fingerprint]
        if not self.decisive:
            self._decide_by(report)
        if rank == 0:
            return
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
                self.ask_nothing()
                self.drains = 0
            self._decide_by(report)
        self._weigh_repair(report, now)

    def _weigh_repair(self, report: FaultReport, now: datetime) -> None:
        """Whether what was repaired, or vouched for, still holds in view of a fault that counts."""
        fault = short(report.fault)
        if not self.returned:
            self.vouched = ""  # whoever vouched for the node did not know that it would count
        if self._is_of_work_that_goes_on(report):
            self.note(now, "of pods that work on beside the repaired GPU: it takes nothing back")
        elif self.repairing is not None and not self._reaches(self.repairing, report):
            self.note(now, "not explained by the repair under way, which therefore will not count")
            self.unexplained = True
        elif self._is_newer(fault) or (self.repaired is not None and not self._covers(report)):
            self.note(now, "not explained by the last repair, or the return, which therefore does not count")
            if self.returned:
                self._go_on_after_return(fault, now)
            self.refute_repair()

    def leaves_alone(self, report: FaultReport) -> bool:
        """Whether a fault in the probation is the workload's: no reason to take the node out again."""
        watched = self.returned and self.watched_until is not None
        newer = self.repaired is None or report.fault.first_seen > self.repaired
        treatment = report.plan.treatment
        return watched and newer and (restarts_workload(treatment) or notifies_owner(treatment))

    def stop_watching(self, report: FaultReport, now: datetime) -> None:
        """End the probation, so that a workload's fault has an incident of its own, with its own ladder."""
        self.note(now, f"probation ended: {report.fault.source} {report.fault.code} is the workload's")
        self.watched_until = now

    def _go_on_after_return(self, fault: Fault, now: datetime) -> None:
        """Go on where the ladder stood: what was done for the same fault did not last."""
        self.watched_until, self.resumed = None, now
        before = signs_of(each for each in self.faults if each.fingerprint != fault.fingerprint)
        if not {*signs_of([fault])} & {*before}:
            self.note(now, "another fault in the probation: the ladder goes on where it stood")
            return
        self.returns_undone += 1
        last = next((act.rung for act in reversed(self.acts) if act.rung in REPAIRS and act.proven), None)
        if last is None:
            self.note(now, "the same fault again in its probation")
            return
        stronger = NEXT[last]
        if self.floor is None or REPAIRS.index(stronger) > REPAIRS.index(self.floor):
            self.floor = stronger
        self.note(now, f"the same fault again in its probation, {last} did not last: on with {stronger}")

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
            self.tolerate(fault, self.not_before)

    def standing(self) -> list[Fault]:
        """The faults that are not known to be over."""
        return [fault for fault in self.faults if fault.fingerprint not in self.cleared]

    def tolerate(self, fault: Fault, until: datetime) -> None:
        """Let a fault count from this moment on, unless it is over before."""
        rest = [each for each in self.pending if each.fault.fingerprint != fault.fingerprint]
        self.pending = [*rest, Pending(fault=fault, until=until)]

    def tolerates(self, fault: Fault) -> bool:
        """Whether a fault waits to count."""
        return any(each.fault.fingerprint == fault.fingerprint for each in self.pending)

    def due(self, now: datetime) -> list[Fault]:
        """Faults whose toleration is over, and that nobody has planned for yet."""
        return [each.fault for each in self.pending if each.until <= now]

    def clear(self, over: Iterable[Fault], now: datetime) -> None:
        """Take faults for over: the end before anything is done; a block stays until validated."""
        over = [fault for fault in over if fault.fingerprint not in self.cleared]
        if not over:
            return
        for fault in over:
            self.note(now, f"{fault.source} {fault.code} {fault.reason} is over".replace("  ", " "))
        fingerprints = dict.fromkeys(fault.fingerprint for fault in over)
        self.cleared = [*self.cleared, *fingerprints][-KEPT_FINGERPRINTS:]
        self.pending = [each for each in self.pending if each.fault.fingerprint not in fingerprints]
        if self.runbook is not Runbook.REMEDIATE or self.outcome is not None:
            return
        forgotten = len(self.fingerprints) > len(self.faults)
        stands = self.standing() or self.pending or self.unnotified or forgotten
        if not self.begun:
            if not stands:
                self.end(Outcome.CLEARED, "it was over before anything was done")
            elif self.decisive in fingerprints and (self.standing() or self.unnotified):
                self._decide_anew(now)
        elif not stands and self.repaired is None and {act.rung for act in self.acts} <= HARMLESS:
            self.note(now, "only the block was done: the hardware is validated, and no repair follows")
            self.repaired, self.pods_stay, self.validations = now, True, 0
            self.ask_nothing()

    def _decide_anew(self, now: datetime) -> None:
        """Have policy asked about the faults that stand, since the one that decided is over."""
        self.decisive, self.block_rules, self.workload_faults = "", [], []
        for fault in (*self.standing(), *self.unnotified):
            if not self.tolerates(fault):
                self.tolerate(fault, now)

    def is_full(self, report: FaultReport, now: datetime) -> bool:
        """Whether no further fault can be tolerated: it has to be sent again, lest another be forgotten."""
        full = len(self.pending) >= KEPT_FAULTS and not self._awaits_its_like(report.fault)
        return full and counts_from(report) > now

    def _awaits_its_like(self, fault: Fault) -> bool:
        """Whether the same thing, at the same place, is tolerated already: its clock is the older one."""
        return any(_what(each.fault) == _what(fault) for each in self.pending)

    def look_at(self, asked: Iterable[Fault], conditions: Mapping[str, str], now: datetime) -> None:
        """Take in what a look showed of the conditions of the faults that stood when it began."""
        asked = list(asked)
        self.bad_conditions = [
            f"{kind} {status}"
            for kind, status in conditions.items()
            if not any(fault.code == kind and fault.good_status == status for fault in asked)
        ]
        self.clear(over_by_look(asked, conditions), now)

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
        """Fingerprints that stay news: tolerated faults, and applications' that no drain has settled.

        All of them where the node's owners opted out: once the label is off, the next alert begins anew.
        """
        if self.opted_out and self.outcome is Outcome.LEFT_ALONE:
            return set(self.fingerprints)
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


def _what(fault: Fault) -> tuple[object, ...]:
    return fault.source, fault.code, fault.reason, fault.entity, fault.place


def short(fault: Fault) -> Fault:
    return fault.model_copy(update={"summary": fault.summary[:LONGEST_SUMMARY]})


def as_many_as_fit(faults: list[Fault], over: Collection[str] = ()) -> list[Fault]:
    """As many faults as a payload holds, the first and the latest ones.

    Those that are over go first, by their fingerprints. Else the oldest goes of a place that another one
    names as well: no GPU is forgotten while there is such a one.
    """
    faults = list(faults)
    while len(faults) > KEPT_FAULTS:
        places, between = [fault.entity for fault in faults], range(1, len(faults) - 1)
        ended = next((i for i in between if faults[i].fingerprint in over), None)
        again = (i for i in between if places.count(places[i]) > 1)
        del faults[next(again, 1) if ended is None else ended]
    return faults
