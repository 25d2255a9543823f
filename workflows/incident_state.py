"""The state of one incident: everything that a run hands to the next when it continues as new."""

from datetime import datetime

from pydantic import BaseModel

from gpu_runbooks.activities.model.drain import PodBlocker, PodOverride
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import Plan, RungName
from gpu_runbooks.activities.model.repair import NodeClaimDeleted, ReplaceRequested
from gpu_runbooks.workflows.acts import Act, DrainScope, Examined, Note
from gpu_runbooks.workflows.ledger import Done
from gpu_runbooks.workflows.phases import Outcome, Phase, Runbook
from gpu_runbooks.workflows.standing import (
    Pending,
)

LONGEST_NOTE, KEPT_NOTES = 250, 20


class Paused(BaseModel):
    """A person's word to do nothing for now."""

    operator: str
    until: datetime


class Spoken(BaseModel):
    """A word of a person, to be found in the history with the identity that the server saw."""

    run_id: str
    update: str = ""
    """Id of the update; empty for the start of the run."""
    operator: str
    what: str
    approves: RungName | None = None


class Requester(BaseModel):
    """Who asked for what an approval is to be given for."""

    operator: str
    identity: str = ""
    """As the server saw it; empty where nobody could say."""


class IncidentState(BaseModel):
    """What is known, what was done, and what is asked."""

    cluster: str
    runbook: Runbook = Runbook.REMEDIATE
    take_held: bool = False
    """A person asked for the node although another one holds it."""
    workflow_id: str
    run_id: str
    """First run id: it stays when the run continues as new."""
    opened: datetime
    resumed: datetime | None = None
    """When a fault last took the node out of its probation."""
    plan: Plan
    """Of the most severe fault so far."""
    faults: list[Fault]
    fingerprints: list[str]

    target: NodeIdentity
    """The machine that acts are for: changes with a reboot's new boot id and with a replacement."""
    not_before: datetime
    """End of the toleration, or of a wait for another incident's block."""
    decisive: str = ""
    """Fingerprint of the fault that the plan is for; empty while policy is to be asked about others."""
    pending: list[Pending] = []
    """Faults that are tolerated for now."""
    cleared: list[str] = []
    """Fingerprints of faults that are over, or need nothing done to the node."""
    bad_conditions: list[str] = []
    """Conditions among those that were reported that the last look still saw bad."""
    looked: bool = False
    """The node was looked at since the last fault, and since the slot was granted."""
    hardware_due: bool = False
    """The UI's list is to show hardware that it does not show yet."""
    look_due: bool = False
    """The sweep saw that the node is gone, or another machine."""
    approved: dict[RungName, int] = {}
    """Attempts at a rung up to which a person approved."""
    approved_until: dict[RungName, datetime] = {}
    """When an approval that was not used ends."""
    asking: RungName | None = None
    """The rung that a person is asked to approve."""
    slot_wanted: bool = False
    """A request is with the budget: a grant counts only then."""
    slot_asked: bool = False
    """The intake that opened the incident asks for its slot: the incident need not for a while."""
    slot_turn: int = 0
    """How often the slot, or the request, was given up: a grant of an earlier turn counts for nothing."""
    slot_held: bool = False
    stopped: str = ""
    """Why no further act follows although the slot is held: a halt, or a storm. A new grant ends it."""
    paused: Paused | None = None
    """A person holds the incident where it is."""
    skipped: list[RungName] = []
    """Repairs that a person had left out."""
    unattributed: list[Spoken] = []
    """Words of people whose identity, as the server saw it, is still to be recorded."""
    requesters: list[Requester] = []
    """Who started the incident by hand, or ordered a repair: an approval by another one is none of theirs."""
    vouched: str = ""
    """A person's word for the node, in place of a validation."""
    removes_block: bool = False
    """The block goes with the end of the incident, validated or not."""
    opted_out: bool = False
    """By the last look, the node's owners want nothing done to it."""
    asked_since: datetime | None = None
    """Since when the question stands."""
    asked: str = ""
    """The question of which that is; empty for what asks itself again, in whatever words."""
    overdue: bool = False
    """Nobody answered in time, and what policy says of that was done."""
    left_unanswered: bool = False
    """Nobody answered, and policy ends it."""
    remind_at: datetime | None = None
    """When the audit says again that a person is needed."""
    paged: bool = False
    """An alert stands for the question."""
    page_again: datetime | None = None
    """When the alert is repeated."""
    page_problem: str = ""
    """Who was not reached by it, and why."""
    page_reached: tuple[str, ...] = ()
    """Who was: `alertmanager`, `event`."""
    returned_before: Done | None = None
    """Returns of this hardware that the same fault followed, by the ledger; None before it was asked."""
    returns_undone: int = 0
    """Returns of this incident that the same fault followed."""
    returns_answered: int = 0
    """Of all these, those that stood when a person answered last."""
    watched_until: datetime | None = None
    """End of the probation after the return."""
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
    ordered: dict[RungName, int] = {}
    """Attempts up to which a person asked for a rung by name: no question of policy stands before them."""
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
    escalates: bool = False
    """Something stronger may follow where nobody answers it."""
    answered: int = 0
    """Questions that were answered or withdrawn: the next one is told from them."""
    unanswered: bool = False
    """The question is that something had no answer: it is asked again, person or not."""
    blockers: list[PodBlocker] = []
    blockers_seen: datetime | None = None
    """When the drain said so."""

    phase: Phase = Phase.OPEN
    outcome: Outcome | None = None
    reason: str = ""
    notes: list[Note] = []

    def note(self, now: datetime, text: str) -> None:
        """Record a line for the auditor; the oldest are dropped, they stay in the history."""
        self.notes = [*self.notes, Note(at=now, text=text[:LONGEST_NOTE])][-KEPT_NOTES:]

    def refute_repair(self) -> None:
        """Whatever was repaired is not: nothing may return on its account."""
        self.repaired = None
        self.validated = False
        self.validations = 0
        self.returned = False
        self.vouched = ""

    def end(self, outcome: Outcome, reason: str) -> None:
        """Decide the end; the ladder closes the incident at its next step."""
        self.outcome, self.reason = outcome, reason
        self.ask_nothing()

    @property
    def looks_again(self) -> bool:
        """The sweep wants the node looked at. Who misses its machine looks for it without being asked."""
        return self.look_due and not self.gone

    @property
    def is_going(self) -> bool:
        """Whether the target's owner confirmed that it terminates it: there is nothing to give back."""
        return self.requested is not None or self.node_claim is not None

    @property
    def begun(self) -> bool:
        """Whether anything was done yet to the node or the pods on it."""
        return self.blocked or any(act.rung is not RungName.NOTIFY_OWNER for act in self.acts)

    @property
    def taken_out(self) -> bool:
        """Whether the node was blocked for this incident, and not given back since."""
        rungs = [act.rung for act in self.acts if act.rung in {RungName.BLOCK, RungName.RETURN}]
        return rungs[-1:] == [RungName.BLOCK]

    def returns_known(self) -> int:
        """Returns that the same fault followed, of this incident and those before."""
        return (self.returned_before.times if self.returned_before else 0) + self.returns_undone

    def attempts(self, rung: RungName) -> int:
        """Attempts at a rung so far."""
        return sum(act.rung is rung for act in self.acts)

    def last(self, rung: RungName) -> datetime:
        """When the last act of this rung ended; the opening where there was none."""
        return max((act.ended for act in self.acts if act.rung is rung), default=self.opened)

    def ask_nothing(self) -> None:
        """Withdraw what a person is asked."""
        self.answered += self.question is not None
        self.question, self.asking, self.unanswered, self.escalates = None, None, False, False
        self.asked_since = None
