"""The record of one job's application faults: what it counts, and what it does next. Pure.

Nodes and fingerprints are counted whole and kept in part, since a job may have a thousand nodes.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpu_runbooks.activities import names
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.job import JobFault, JobReport
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.notify import MOST_NODES, KubernetesObject, OwnerNotified
from gpu_runbooks.activities.model.plan import Rung, RungName
from gpu_runbooks.activities.model.wire import Wire
from gpu_runbooks.workflows.phases import Outcome

LONGEST = timedelta(hours=1)
"""After it the record closes although faults still come: the next ones open another, and its owner hears."""

KEPT_FINGERPRINTS = 1000
"""By which a repeat is known after the end. What is forgotten opens another record, and tells once more."""

FOR_THE_OWNER = frozenset({RungName.NOTIFY_OWNER, RungName.RESTART_WORKLOAD})

FINGERPRINT_DIGITS = 12
KEPT_CODES = 20


@dataclass(frozen=True)
class Tell:
    """Tell the job's owner."""

    rung: Rung


@dataclass(frozen=True)
class Wait:
    """Take further faults of the burst."""

    until: datetime


@dataclass(frozen=True)
class Close:
    outcome: Outcome
    reason: str


class JobResult(Wire):
    """Result of the workflow."""

    outcome: Outcome
    reason: str
    job: str
    faults: int
    codes: dict[str, int]
    nodes: int
    first_nodes: tuple[str, ...]
    nodes_digest: str
    """SHA-256 over the names of all nodes, sorted, one a line."""
    policy_digest: str
    fingerprints: tuple[str, ...]
    """Short forms of the last ones."""


@dataclass
class JobRecord:
    """Faults of one job from the first until it has been quiet for a while."""

    job: KubernetesObject
    first: JobReport
    opened: datetime
    last: datetime
    """When the last fault came."""
    faults: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    nodes: dict[str, NodeIdentity | None] = field(default_factory=dict)
    """By name, in the order in which they came; identities of the first ones only."""
    known: dict[str, None] = field(default_factory=dict)
    enforce: bool = True
    told: OwnerNotified | None = None
    problem: str = ""
    """Why the owner could not be told."""

    @classmethod
    def open(cls, report: JobReport, now: datetime) -> "JobRecord":
        """Begin with the first faults."""
        record = cls(job=report.job, first=report, opened=now, last=now)
        record.add(report, now)
        return record

    def add(self, report: JobReport, now: datetime) -> None:
        """Take in the faults that are news."""
        self.enforce = self.enforce and report.enforce
        for each in self.news(report.faults):
            self.known[short(each.fault)] = None
            self.faults += 1
            self.codes[_code(each.fault, self.codes)] += 1
            identity = each.node if len(self.nodes) < MOST_NODES else None
            self.nodes.setdefault(each.node.name, identity)
            self.last = now

    def news(self, faults: Iterable[JobFault]) -> list[JobFault]:
        """Those that are not known yet."""
        return [each for each in faults if short(each.fault) not in self.known]

    def has_more_than(self, faults: int) -> bool:
        """Whether more faults came than these."""
        return self.faults > faults

    @property
    def first_nodes(self) -> tuple[NodeIdentity, ...]:
        """The first nodes that had a fault."""
        return tuple(identity for identity in self.nodes.values() if identity is not None)

    @property
    def first_fault(self) -> Fault:
        return self.first.faults[0].fault

    def next_step(self, now: datetime, *, history_is_long: bool = False) -> Tell | Wait | Close:
        """Tell the owner once, wait until the burst is over, close.

        Where policy restarts the pods of one node, the owner is told too: a job is restarted as a whole, by
        its controller.
        """
        rung = next((each for each in self.first.treatment.rungs if each.name in FOR_THE_OWNER), None)
        silent = rung is None or rung.observe or not self.enforce
        if rung is not None and not silent and self.told is None and not self.problem:
            return Tell(rung)
        until = min(self.last + self.first.quiet, self.opened + LONGEST)
        if now < until and not history_is_long:
            return Wait(until)
        if rung is not None and silent:
            return Close(Outcome.OBSERVED, f"mode observe: {self.job} would have been told")
        if self.told is not None and self.told.total:
            return Close(Outcome.NOTIFIED, f"{self.job} was told, and no node was touched")
        why = self.problem or (self.told.left_out if self.told else "policy tells nobody")
        return Close(Outcome.LEFT_ALONE, f"no node was touched, and nobody was told: {why}")

    def result(self, end: Close) -> JobResult:
        """What the closed record leaves behind."""
        return JobResult(
            outcome=end.outcome,
            reason=end.reason,
            job=str(self.job),
            faults=self.faults,
            codes=dict(self.codes),
            nodes=len(self.nodes),
            first_nodes=tuple(identity.name for identity in self.first_nodes),
            nodes_digest=self.nodes_digest(),
            policy_digest=self.first.policy_digest,
            fingerprints=tuple(self.known)[-KEPT_FINGERPRINTS:],
        )

    def nodes_digest(self) -> str:
        """Which nodes, however many they are."""
        return hashlib.sha256("\n".join(sorted(self.nodes)).encode()).hexdigest()


def short(fault: Fault) -> str:
    """Digits that stand for a fault's fingerprint: a thousand of them are one payload."""
    return names.digest(fault.fingerprint)[:FINGERPRINT_DIGITS]


def _code(fault: Fault, counted: Counter[str]) -> str:
    code = f"{fault.source}:{fault.code}"
    return code if code in counted or len(counted) < KEPT_CODES else "others"
