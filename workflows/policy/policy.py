"""The site's policy: what a person writes into the policy file, as types.

Unknown fields are refused here, unlike in wire types: a misspelt `tolerations` must not mean "none".
`policy_file` reads the file and names lines; `planning` turns the policy into a plan for one fault.
"""

import hashlib
import json
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gpu_runbooks.activities.model.drain import TEMPORAL
from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.model.repair import RepairPolicy
from gpu_runbooks.workflows.policy.catalogue import parse_code
from gpu_runbooks.workflows.policy.drain import Drain
from gpu_runbooks.workflows.policy.fields import Code, Duration, Key, Name, Written
from gpu_runbooks.workflows.policy.repair import Repair

OF_WORKLOADS = frozenset({RungName.NOTIFY_OWNER, RungName.RESTART_WORKLOAD})
"""Rungs that leave the node alone."""

REPAIRS = frozenset({RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE})
"""Rungs that change the machine."""


class Intake(Written):
    node_labels: Annotated[tuple[str, ...], Field(min_length=1)] = ("node", "kubernetes_node", "Hostname")
    """Labels of an alert that may hold the node's name; the first that it carries must be a Node's name."""


class Budget(Written):
    max_unavailable: Annotated[int, Field(ge=1, strict=True)]
    """How many nodes of the pool may be disrupted at once."""


class Pool(Written):
    """Nodes that share a budget."""

    name: Name
    """Name of the pool, a part of its budget's workflow id."""
    selector: Annotated[dict[str, str], Field(min_length=1)]
    """Node labels, all of which a node of the pool carries, such as {karpenter.sh/nodepool: p5}."""
    budget: Budget
    """Budget of the pool, such as {max_unavailable: 1}."""
    repair: Repair = Repair()
    """How machines of this pool are repaired, where it differs from the section of the file."""


DEFAULT_TIMEOUTS = {
    RungName.BLOCK: timedelta(minutes=2),
    RungName.NOTIFY_OWNER: timedelta(minutes=2),
    RungName.RESTART_WORKLOAD: timedelta(minutes=15),
    RungName.DRAIN: timedelta(minutes=30),
    RungName.RESET_GPU: timedelta(minutes=10),
    RungName.REBOOT: timedelta(minutes=20),
    # A termination of a GPU instance can take 45 minutes, and its successor boots after it.
    RungName.REPLACE: timedelta(minutes=90),
    RungName.VALIDATE: timedelta(minutes=15),
    RungName.RETURN: timedelta(minutes=2),
}


class LadderRung(Written):
    rung: RungName
    """Name of the rung: block, drain, reset_gpu, reboot, replace, validate, return; or restart_workload."""
    wait: Duration = timedelta(0)
    """Time to wait before the rung."""
    attempts: Annotated[int, Field(ge=1, le=10, strict=True)] = 1
    """How often the rung is tried."""
    timeout: Annotated[Duration, Field(gt=timedelta(0))] = Field(
        default_factory=lambda written: DEFAULT_TIMEOUTS[written["rung"]]
    )
    """Time for one attempt, its wait for proof included."""


Ladder = tuple[LadderRung, ...]


def _ladder(*rungs: RungName) -> Ladder:
    return tuple(LadderRung(rung=rung) for rung in rungs)


def _repair_ladder(*repairs: RungName) -> Ladder:
    return _ladder(RungName.BLOCK, RungName.DRAIN, *repairs, RungName.VALIDATE, RungName.RETURN)


NO_TOUCH = "none"
BLOCK_ONLY = "block"
NOTIFY = "notify"
RESTART = "restart"
BUILT_IN_LADDERS: dict[str, Ladder] = {
    NO_TOUCH: (),
    BLOCK_ONLY: _ladder(RungName.BLOCK, RungName.VALIDATE, RungName.RETURN),
    NOTIFY: _ladder(RungName.NOTIFY_OWNER),
    RESTART: _ladder(RungName.RESTART_WORKLOAD),
    "drain": _repair_ladder(),
    "reset": _repair_ladder(RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE),
    "reboot": _repair_ladder(RungName.REBOOT, RungName.REPLACE),
    "replace": _repair_ladder(RungName.REPLACE),
}
"""A site that names one of these in its `ladders` replaces it."""


def leaves_node(ladder: Ladder) -> bool:
    """Whether a ladder does nothing to the node: at most, a workload on it is restarted."""
    return all(step.rung in OF_WORKLOADS for step in ladder)


class Match(Written):
    """Which faults a rule is for: one source, and one code or several."""

    source: FaultSource
    """Where the fault was seen: xid, sxid, nvml, dcgm, efa, condition, alert or manual."""
    code: Code | None = None
    codes: tuple[Code, ...] = ()

    @model_validator(mode="after")
    def _readable(self) -> "Match":
        if (self.code is None) == (not self.codes):
            raise ValueError("write either `code: 79` or `codes: [79, 95]`, not both and not neither")
        self.written_codes()
        return self

    def written_codes(self) -> tuple[str, ...]:
        """Codes in their one spelling."""
        codes = self.codes if self.code is None else (self.code,)
        return tuple(canonical_code(self.source, code) for code in codes)


def canonical_code(source: FaultSource, code: str) -> str:
    """Code of a fault in its one spelling, so that " 79" and "79.0" meet the rule for 79.

    Raises `UnreadableXidError` for an Xid that is none.
    """
    return str(parse_code(code)) if source is FaultSource.XID else code.strip()


class FaultRule(Written):
    """What to do about some faults, in place of the built-in answer."""

    name: Name
    """Name of the rule: value of the block's taint, and what the audit shows."""
    match: Match
    """Faults that the rule is for, such as {source: xid, codes: [79]}."""
    application: bool = False
    """The workload is at fault: the node is not touched."""
    toleration: Duration = timedelta(0)
    """How long the fault may stand before anything is done."""
    ladder: str | None = None
    """Name of the ladder; none where `application` is true and no workload is restarted."""

    @model_validator(mode="after")
    def _one_answer(self) -> "FaultRule":
        if not self.application and self.ladder is None:
            raise ValueError("write the ladder to climb, such as `ladder: reset`, or `application: true`")
        return self


class TestPod(Written):
    __test__ = False  # not a test case of pytest

    image: Annotated[str, Field(min_length=1)]
    """Image of the pod that loads all GPUs of a node before it returns."""
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """Command of that pod; it ends with 0 only if every GPU did its work."""
    tolerations: Annotated[tuple[Key, ...], Field(max_length=20)] = ()
    """Keys of taints that the pool's nodes carry by design, such as [example.com/training]."""


class Validation(Written):
    test_pod: TestPod
    """The pod that loads all GPUs, such as {image: ..., command: [...]}."""


class Policy(Written):
    """A policy file."""

    mode: Literal["observe", "enforce"]
    """`observe` decides and records, `enforce` acts too."""
    intake: Intake = Intake()
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
    """Pools of nodes, each with selector and budget; a node outside all of them is never touched."""
    ladders: dict[Name, Ladder] = Field(default={})
    """Ladders by name, in addition to the built-in ones or in their place."""
    faults: tuple[FaultRule, ...] = ()
    """Rules that stand in place of the built-in catalogue, entry by entry."""
    drain: Drain = Drain()
    """How pods leave a node."""
    repair: Repair = Repair()
    """How machines are repaired, in all pools that say nothing else."""
    validation: Validation
    """How a node is tested before it returns, such as {test_pod: {image: ..., command: [...]}}."""
    operator_reminder: Annotated[Duration, Field(ge=timedelta(minutes=1))] = timedelta(hours=4)
    """How often an incident that waits for a person reminds."""

    def ladder(self, name: str) -> Ladder | None:
        """Ladder by name, the site's before the built-in one; None for an unknown name."""
        return self.ladders.get(name, BUILT_IN_LADDERS.get(name))

    def ladder_names(self) -> tuple[str, ...]:
        """Names of all ladders, sorted."""
        return tuple(sorted({*BUILT_IN_LADDERS, *self.ladders}))

    def repair_of(self, pool: Pool) -> RepairPolicy:
        """What counts for the repairs of a pool."""
        return pool.repair.over(self.repair.over(RepairPolicy()))

    @property
    def digest(self) -> str:
        """Which policy it was: 16 digits of SHA-256 over the content, comments and layout aside.

        What is built in counts, since a release that changes it changes what the same file does.
        """
        ladders = {name: self.ladder(name) for name in self.ladder_names()}
        content = self.model_copy(update={"ladders": ladders}).model_dump(mode="json")
        content["drain"]["built_in_essential"] = [pods.model_dump(mode="json") for pods in TEMPORAL]
        content["repair"] = self.repair.over(RepairPolicy()).model_dump(mode="json")
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]
