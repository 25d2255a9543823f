"""Wire types: what travels between processes through Temporal and NodeTasks.

All are frozen and ignore unknown fields (a newer worker may send more), and every time is aware
and in UTC. No default is computed: a default factory that reads a clock or draws an id would
escape the workflow sandbox. Payloads stay small: lists that could grow are cut by whoever makes them.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Wire(BaseModel):
    """Base of all wire types."""

    model_config = ConfigDict(frozen=True, extra="ignore")


# --- faults ---------------------------------------------------------------------------------------


class FaultSource(StrEnum):
    """Where a fault was seen."""

    CONDITION = "condition"
    XID = "xid"
    SXID = "sxid"
    NVML = "nvml"
    DCGM = "dcgm"
    EFA = "efa"
    ALERT = "alert"
    MANUAL = "manual"


class Entity(Wire):
    """The part of the node that a fault names. With neither UUID nor address it is the whole node."""

    kind: Literal["node", "gpu", "nic"] = "node"
    uuid: str | None = None
    """GPU UUID as NVML spells it, `GPU-...`."""
    pci_address: str | None = None
    """PCI address without function, lower case: `0000:4c:00`."""


class Fault(Wire):
    """One thing wrong, at one place."""

    source: FaultSource
    code: str
    """Xid number, condition type, alert name: what the policy matches."""
    entity: Entity = Entity()
    summary: str = ""
    first_seen: datetime
    last_seen: datetime
    count: int = 1
    fingerprint: str
    """Same fault, same onset: same fingerprint. Used to tell repeats from news."""
    reporter: str
    """Who or what said so: `alertmanager`, or the operator's name."""


# --- policy, resolved for one fault on one node -----------------------------------------------------


class RungName(StrEnum):
    """The rungs of a ladder, in the order in which they may stand."""

    BLOCK = "block"
    DRAIN = "drain"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPLACE = "replace"
    VALIDATE = "validate"
    RETURN = "return"


class Rung(Wire):
    """One step of a ladder."""

    name: RungName
    wait: timedelta = timedelta(0)
    """Time to wait before the rung, so that a transient fault can clear."""
    attempts: int = 1
    timeout: timedelta
    """For one attempt, its wait for proof included."""


class Treatment(Wire):
    """What policy prescribes for a fault: the rule that matched and its resolved ladder."""

    rule: str
    application: bool = False
    """The workload is at fault: the node is not touched."""
    toleration: timedelta = timedelta(0)
    """How long the fault may stand before anything is done."""
    ladder: str
    rungs: tuple[Rung, ...]


class ExpectedHardware(Wire):
    """What a healthy node of an instance type has (source: `activities/instance_types.csv`)."""

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


class NodeIdentity(Wire):
    """Which machine it is. An act on a node is for exactly this identity or not done at all."""

    name: str
    uid: str
    provider_id: str
    """`aws:///<zone>/<instance id>`."""
    instance_id: str
    zone: str
    instance_type: str
    boot_id: str


class Plan(Wire):
    """All that the incident needs to know of policy and node, fixed when it opens."""

    cluster: str = ""
    """Name of the cluster, as the worker that made the plan knows it."""
    identity: NodeIdentity
    pool: str
    pool_selector: dict[str, str]
    """Node labels that select the pool."""
    budget: int
    """Nodes of the pool that may be disrupted at once."""
    treatment: Treatment
    expected: ExpectedHardware
    test_pod: TestPodTemplate
    enforce: bool
    """False in mode `observe`: everything is decided and recorded, nothing is touched."""
    operator_reminder: timedelta
    """Interval at which an incident that waits for a person reminds."""
    policy_digest: str


class FaultReport(Wire):
    """A fault and the plan that policy makes of it. Argument of the update `report_fault`."""

    fault: Fault
    plan: Plan


# --- cluster queue: what is asked and what comes back --------------------------------------------------


class PlanIncident(Wire):
    """Ask policy about a fault on a node (a manual start has no plan yet)."""

    node: str
    fault: Fault
    ladder: str | None = None
    """Ladder by name instead of the one that the fault's rule gives."""


class BlockMarker(Wire):
    """Content of the annotation `gpu-runbooks.dev/block`."""

    incident: str
    """Workflow id."""
    run_id: str
    """First run id of the incident, stable over continue-as-new."""
    reason: str
    since: datetime
    was_unschedulable: bool
    """Somebody had cordoned the node before us: their cordon stays when we leave."""


class BlockNode(Wire):
    identity: NodeIdentity
    incident: str
    run_id: str
    rule: str
    reason: str
    since: datetime


class BlockResult(Wire):
    marker: BlockMarker
    adopted: bool
    """Our block stood already (a retry, or a continued run)."""


class UnblockNode(Wire):
    identity: NodeIdentity
    incident: str
    run_id: str
    """First run id: a later incident of the node has the same workflow id, and its block is not ours."""


class UnblockResult(Wire):
    removed: tuple[str, ...]
    """What was ours and went, in words."""
    kept: tuple[str, ...]
    """What was there before us, or was added by others, and stayed."""
    node_gone: bool = False


class ObserveNode(Wire):
    name: str
    incident: str


class NodeObservation(Wire):
    """A Node as it is now. A missing node has `identity=None`."""

    identity: NodeIdentity | None
    ready: Literal["True", "False", "Unknown"] = "Unknown"
    blocked: bool = False
    """Taint, unschedulable and marker are all there, and the marker names this incident."""
    marker: BlockMarker | None = None
    """Whoever's marker is on the node."""
    gpus: int | None = None
    """Allocatable `nvidia.com/gpu`; None where the key is missing."""
    efa_interfaces: int | None = None


class DrainNode(Wire):
    identity: NodeIdentity
    incident: str
    deadline: datetime


class PodBlocker(Wire):
    """A pod that keeps a drain from ending."""

    namespace: str
    name: str
    uid: str
    reason: str
    attempts: int
    since: datetime


class DrainResult(Wire):
    """Outcome of a drain. Only `drained` unlocks a reset, reboot or replacement."""

    outcome: Literal["drained", "blocked", "cancelled", "failed"]
    gone: int = 0
    """Pods that were on the node and are gone."""
    skipped: int = 0
    """DaemonSet, mirror and finished pods."""
    blockers: tuple[PodBlocker, ...] = ()
    """At most 20; `blocked_total` counts all."""
    blocked_total: int = 0
    message: str = ""


class NodeTaskKind(StrEnum):
    RESET_GPU = "ResetGPU"
    VALIDATE = "Validate"


class RunNodeTask(Wire):
    """Ask the agent of a node to act; the task's name follows from incident, rung and attempt."""

    identity: NodeIdentity
    incident: str
    run_id: str
    kind: NodeTaskKind
    attempt: int
    gpu_uuid: str | None = None
    """GPU to reset; None resets all."""
    gpu_pci_address: str | None = None
    start_deadline: datetime
    """Not started by then: the agent is gone."""
    deadline: datetime


class Facts(Wire):
    """Base of what a node agent writes into the status of a NodeTask, where names are camelCase."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class GpuFacts(Facts):
    """What NVML says of one GPU. None is unknown, and unknown is never healthy."""

    index: int
    uuid: str | None = None
    pci_address: str | None = None
    recovery_action: int | None = None
    """NVML field 230: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 and up: a person."""
    ecc_uncorrected: int | None = None
    """Volatile uncorrected errors, of the time since the last reset."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    nvlinks_active: int | None = None
    nvlinks: int | None = None
    processes: int | None = None
    """Processes that hold the device."""


class HardwareFacts(Facts):
    """What a node agent measured."""

    driver_version: str | None = None
    gpus: tuple[GpuFacts, ...] = Field(default=(), max_length=64)
    efa_interfaces: int | None = None
    boot_id: str | None = None


class NodeTaskResult(Wire):
    """How a NodeTask ended. `not_started` means that no agent took it in time."""

    task: str
    outcome: Literal["succeeded", "failed", "not_started", "timed_out"]
    message: str = ""
    facts: HardwareFacts | None = None


class DeleteNodeTask(Wire):
    task: str


class AwaitReboot(Wire):
    """Wait for the proof of a reboot of the identity's boot id."""

    identity: NodeIdentity
    deadline: datetime


class RebootProof(Wire):
    """`proven` only with a changed, non-empty boot id, Ready with a heartbeat after it, and GPUs back."""

    proven: bool
    boot_id: str = ""
    ready_since: datetime | None = None
    message: str = ""


class ClaimReplacement(Wire):
    """Wait for the Node of a newly launched instance, claim and block it for this incident."""

    replaced: NodeIdentity
    pool_selector: dict[str, str]
    incident: str
    run_id: str
    rule: str
    reason: str
    launched_after: datetime
    deadline: datetime


class ReplacementProof(Wire):
    proven: bool
    identity: NodeIdentity | None = None
    message: str = ""


class RunTestPod(Wire):
    """Run the test pod on all GPUs of a node, scheduled like any pod."""

    identity: NodeIdentity
    incident: str
    run_id: str
    attempt: int
    gpus: int
    template: TestPodTemplate
    deadline: datetime


class TestPodResult(Wire):
    __test__ = False  # not a test case of pytest

    outcome: Literal["succeeded", "failed", "timed_out"]
    pod: str
    message: str = ""


# --- cloud queue ------------------------------------------------------------------------------------


class RebootInstance(Wire):
    identity: NodeIdentity
    incident: str
    reason: str
    not_after: datetime
    """The look at the node holds until then. Later nothing is sent: the world may have changed."""


class RebootRequested(Wire):
    instance_id: str
    requested_at: datetime


class ReplaceInstance(Wire):
    identity: NodeIdentity
    incident: str
    reason: str
    not_after: datetime
    """As for a reboot."""


class ReplaceRequested(Wire):
    instance_id: str
    group: str
    """Auto Scaling group that terminates and launches."""
    desired_capacity: int
    state: str
    """EC2 state of the instance after the request."""
    requested_at: datetime


class ConfirmReplacement(Wire):
    replaced: str
    """Instance id that was terminated."""
    replacement: str
    """Instance id of the node that was claimed."""
    group: str
    desired_capacity: int
    deadline: datetime


class ReplacementConfirmed(Wire):
    confirmed: bool
    message: str = ""


# --- temporal queue -----------------------------------------------------------------------------------


class SlotRequest(Wire):
    """Signal `request_slot` of a budget, and `return_slot`. Idempotent: keyed by incident and run."""

    incident: str
    run_id: str
    """First run id, stable over continue-as-new."""
    node: str
    severity: int = 0
    limit: int = Field(default=1, ge=1)
    """Slots of the pool, by the policy that the incident was opened with."""


class EnsureBudget(Wire):
    """Start the budget of a pool where it does not run, and hand it this request."""

    cluster: str
    pool: str
    request: SlotRequest


class FindHolders(Wire):
    """Ask for the incidents of a pool that hold a slot, whatever budget gave it to them."""

    cluster: str
    pool: str


class Holders(Wire):
    holders: tuple[SlotRequest, ...] = ()


class FindClosedIncidents(Wire):
    incidents: tuple[SlotRequest, ...] = Field(max_length=200)


class ClosedIncidents(Wire):
    closed: tuple[SlotRequest, ...] = ()
