"""Policy resolved for one fault on one node."""

from datetime import time, timedelta
from enum import StrEnum
from typing import Literal

from pydantic import AwareDatetime, Field

from gpu_runbooks.activities.model.drain import DrainPolicy
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.fleet import StormRule
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import RepairPolicy
from gpu_runbooks.activities.model.slot import PoolBudget
from gpu_runbooks.activities.model.wire import Span, Wire


class RungName(StrEnum):
    """The rungs of a ladder, in the order in which they may stand."""

    BLOCK = "block"
    NOTIFY_OWNER = "notify_owner"
    RESTART_WORKLOAD = "restart_workload"
    DRAIN = "drain"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPLACE = "replace"
    VALIDATE = "validate"
    RETURN = "return"


class Rung(Wire):
    """One step of a ladder."""

    name: RungName
    wait: Span = timedelta(0)
    """Time to wait before the rung, so that a transient fault can clear."""
    attempts: int = 1
    timeout: Span
    """For one attempt, its wait for proof included."""
    approval: bool = False
    """A person is asked before each attempt."""
    approval_lasts: Span = timedelta(hours=1)
    """An approval that was not used by then is asked for again."""
    approval_by_other: bool = False
    """Whoever asked for the incident cannot approve it."""
    observe: bool = False
    """It is decided and recorded, and not done: a person is told what would have followed."""


class Treatment(Wire):
    """What policy prescribes for a fault: the rule that matched and its resolved ladder."""

    rule: str
    application: bool = False
    """The workload is at fault: the node is not touched."""
    toleration: Span = timedelta(0)
    """How long the fault may stand before anything is done."""
    ladder: str
    rungs: tuple[Rung, ...]


class MaintenanceWindow(Wire):
    """When a pool may be disrupted, every week."""

    days: tuple[int, ...]
    """Days on which it begins: 0 is Monday."""
    begins: time
    lasts: Span
    """At most a day."""
    timezone: str = "UTC"
    """IANA name."""


class ChangeFreeze(Wire):
    """A time in which a pool may not be disrupted."""

    begins: AwareDatetime
    ends: AwareDatetime
    why: str


class ExpectedHardware(Wire):
    """What a healthy node of an instance type has, by policy or else `activities/aws/instance_types.csv`."""

    instance_type: str
    gpus: int
    efa_interfaces: int
    nvlink: bool


class TestPodTemplate(Wire):
    """The pod that loads all GPUs of a node during validation."""

    __test__ = False  # not a test case of pytest

    namespace: str
    image: str
    command: tuple[str, ...]
    tolerations: tuple[str, ...] = ()
    """Keys of taints of the site's own, which it tolerates beside ours."""


class Plan(Wire):
    """All that the incident needs to know of policy and node, fixed when it opens."""

    cluster: str = ""
    """Name of the cluster, as the worker that made the plan knows it."""
    identity: NodeIdentity
    pool: str
    pool_selector: dict[str, str]
    """Node labels that select the pool."""
    budget: PoolBudget
    """How much of the pool may be disrupted at once."""
    storm: StormRule = StormRule()
    traits: dict[str, str] = Field(default={})
    """What the node may have in common with others: driver, zone, rack."""
    freezes: tuple[ChangeFreeze, ...] = ()
    """When nothing of the pool may be disrupted, windows or not."""
    probation: Span = timedelta(0)
    """How long a node is watched after its return: the same fault goes on where the ladder stood."""
    opted_out: bool = False
    """The owners of the node want nothing done to it, by its label."""
    owners: str = ""
    """Who answers for the pool, for the audit."""
    windows: tuple[MaintenanceWindow, ...] = ()
    """When nodes of the pool may be disrupted; empty: at any time."""
    treatment: Treatment
    drain: DrainPolicy = DrainPolicy()
    repair: RepairPolicy = RepairPolicy()
    expected: ExpectedHardware
    test_pod: TestPodTemplate
    enforce: bool
    """False in mode `observe`: everything is decided and recorded, nothing is touched."""
    operator_reminder: Span
    """Interval at which an incident that waits for a person reminds."""
    operator_deadline: Span = timedelta(hours=24)
    """How long a question may stand without an answer."""
    after_deadline: Literal["page", "abort", "escalate"] = "page"
    """Then: page as critical and go on asking; end, with the block kept; or do the next repair."""
    policy_digest: str


class FaultReport(Wire):
    """A fault and the plan that policy makes of it. Argument of the update `report_fault`."""

    fault: Fault
    plan: Plan


class PlanIncident(Wire):
    """Ask policy about a fault on a node (a manual start has no plan yet)."""

    node: str
    fault: Fault
    ladder: str | None = None
    """Ladder by name instead of the one that the fault's rule gives."""
