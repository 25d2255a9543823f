"""The acts on the machine itself, and their proofs."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from pydantic import Field

from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.wire import Span, Wire


class RebootMethod(StrEnum):
    """Who is asked to reboot a machine."""

    EC2 = "ec2"
    AGENT = "agent"
    """The node's own agent."""
    COMMAND = "command"
    """A command of the site's own, which the cloud worker runs."""


class RepeatPolicy(Wire):
    """When the same hardware counts as a repeat offender, and how often it is repaired before a person is."""

    window: Span = timedelta(days=7)
    """How far back closed incidents count. Not longer than the Temporal namespace keeps them."""
    resets: int = 3
    reboots: int = 3
    replacements: int = 2
    returns: int = 3
    """Returns to service that the same fault followed: with so many, a person is asked before anything."""


class RepairPolicy(Wire):
    """What the site says about the repairs of a pool."""

    reset_scope: Literal["gpu", "node"] = "gpu"
    """Whose pods are drained before one GPU is reset: its own where they are known, or all."""
    reboot: RebootMethod = RebootMethod.EC2
    replace: Literal["allowed", "ask"] = "allowed"
    """`ask`: a person says `escalate_to` before an instance is terminated."""
    launch_first: bool = False
    """The successor is launched before the old instance is terminated, where its owner can do that."""
    without_evidence: Literal["go-on", "stop"] = "stop"
    """What follows when the evidence sink did not take the bundle: repair all the same, or ask a person. The
    audit comes first (NVIDIA/NVSentinel#1688): a repair destroys what could have been known."""
    repeats: RepeatPolicy = RepeatPolicy()


class AwaitReboot(Wire):
    """Wait for the proof of a reboot of the identity's boot id."""

    identity: NodeIdentity
    gpus: int = 1
    """Allocatable GPUs before the reboot: so many have to be back."""
    deadline: datetime


class RebootProof(Wire):
    """`proven` only with a changed, non-empty boot id, Ready with a heartbeat after it, and GPUs back."""

    proven: bool
    boot_id: str = ""
    ready_since: datetime | None = None
    gone: bool = False
    """The Node went away meanwhile: there is nothing left that could come back."""
    message: str = ""


class InspectInstance(Wire):
    """Ask EC2 about the instance of a node."""

    identity: NodeIdentity


class InstanceReport(Wire):
    """What EC2 says of an instance."""

    state: str
    """pending, running, stopping, stopped, shutting-down or terminated."""
    retiring: str = ""
    """The scheduled event that takes the machine or the host away, in words; a reboot does not help then."""
    events: tuple[str, ...] = Field(default=(), max_length=10)
    """All scheduled events, in words."""


class ClaimReplacement(Wire):
    """Wait for the Node of a newly launched instance, claim and block it for this incident."""

    replaced: NodeIdentity
    pool_selector: dict[str, str]
    incident: str
    run_id: str
    rule: str
    reason: str
    instances: tuple[str, ...] = ()
    """Instance ids that the owner of the replaced one has; empty for any new machine of the pool."""
    launched_after: datetime
    deadline: datetime
    patience: timedelta = timedelta(0)
    """How long to wait on once another incident has taken a machine of the list."""


class ReplacementProof(Wire):
    proven: bool
    identity: NodeIdentity | None = None
    message: str = ""
    taken: bool = False
    """Others took machines of the list, and none was left in time: the owner may have launched more since."""


class RebootInstance(Wire):
    identity: NodeIdentity
    incident: str
    reason: str
    not_after: datetime
    """The look at the node holds until then. Later nothing is sent: the world may have changed."""


class RebootRequested(Wire):
    instance_id: str
    requested_at: datetime


class LaunchSuccessor(Wire):
    """Have the owner of an instance launch one more, before that instance is terminated."""

    identity: NodeIdentity
    incident: str
    deadline: datetime


class SuccessorLaunched(Wire):
    launched: bool
    """An instance more is in service than before. False: nothing was changed, it was taken back, or the
    message says what was left and why."""
    going: bool = False
    """The old instance is on its way out already, so that its group launches another without being asked."""
    group: str = ""
    desired_capacity: int = 0
    """Of the group before it was raised, and so also after the old instance is gone."""
    instance_id: str = ""
    """Of the successor; empty where an earlier attempt saw it come."""
    message: str = ""


class ReplaceInstance(Wire):
    identity: NodeIdentity
    incident: str
    reason: str
    not_after: datetime
    """As for a reboot."""
    launched: SuccessorLaunched | None = None
    """The successor that runs already: then the group shrinks back by the old instance."""


class ReplaceRequested(Wire):
    instance_id: str
    group: str
    """Auto Scaling group that terminates and launches."""
    desired_capacity: int
    state: str
    """EC2 state of the instance after the request."""
    requested_at: datetime
    reservation: str = ""
    """Capacity reservation or Capacity Block whose slot the instance had, which its successor needs."""


class AwaitSuccessor(Wire):
    """Wait until the group has launched another instance for one that it terminates."""

    replaced: str
    """Instance id that was terminated."""
    group: str
    desired_capacity: int
    requested_at: datetime
    """When the termination was asked for: later failures to launch count."""
    reservation: str = ""
    deadline: datetime


class SuccessorComing(Wire):
    coming: bool
    """The group is complete again, with an instance that EC2 has launched; its Node is still to join."""
    instances: tuple[str, ...] = ()
    """Ids of the group's other instances, of which one is the successor; empty where they are too many."""
    capacity_lost: bool = False
    """The group cannot launch another, and only a person or better times change that."""
    message: str = ""


class ConfirmReplacement(Wire):
    replaced: str
    """Instance id that was terminated."""
    replacement: str
    """Instance id of the node that was claimed."""
    group: str
    desired_capacity: int
    deadline: datetime
    seen_going: bool = False
    """The old one was on its way out when that was asked for: an id that EC2 forgets since is gone."""


class ReplacementConfirmed(Wire):
    confirmed: bool
    capacity_lost: bool = False
    """The new instance is gone as well, and the group cannot launch another."""
    message: str = ""


class DeleteNodeClaim(Wire):
    """Have Karpenter terminate the machine of a node, by deleting its NodeClaim."""

    identity: NodeIdentity
    incident: str
    run_id: str
    """First run id: a block of an earlier run permits nothing."""
    reason: str
    not_after: datetime
    """As for a reboot."""
    deadline: datetime
    """How long to wait until Karpenter's own disruption budgets permit it; `not_after` counts without it."""


class NodeClaimDeleted(Wire):
    node_claim: str
    """Empty where NodeClaim and Node were gone already."""
    uid: str
    node_pool: str
    """Empty for a NodeClaim that belongs to no NodePool."""
    static: bool
    """The NodePool keeps a number of nodes: a successor comes whether pods are pending or not."""
    requested_at: datetime


class AwaitNodeClaim(Wire):
    """Wait until a deleted NodeClaim and its Node are gone, which terminates the machine."""

    identity: NodeIdentity
    node_claim: str
    uid: str
    node_pool: str
    static: bool
    deadline: datetime
    requested_at: datetime | None = None
    """When it was deleted: a NodeClaim that came since is the successor, also one that is done already."""


class NodeClaimGone(Wire):
    gone: bool
    successor: bool = False
    """Karpenter launches another: the pool is static, or pods are pending that only it can serve."""
    message: str = ""


class RemoveNode(Wire):
    """Delete the Node object of a terminated machine, if that is still the one it stands for."""

    identity: NodeIdentity


class PauseGpuServices(Wire):
    """Have the GPU services of a node stopped that hold its GPUs open, until `resume_gpu_services`."""

    identity: NodeIdentity
    incident: str
    run_id: str
    deadline: datetime


class PausedGpuServices(Wire):
    outcome: Literal["paused", "nothing", "deferred", "impossible", "failed"]
    """`nothing`: no service here is managed by labels. `deferred`: somebody else is at work on them, such as
    a driver upgrade, and nothing was changed. `impossible`: they would not come back to a blocked node, and
    nothing was changed. `failed`: they did not stop in time, and are to be resumed."""
    services: tuple[str, ...] = ()
    message: str = ""


class ResumeGpuServices(Wire):
    identity: NodeIdentity
    incident: str
    run_id: str


class ResumedGpuServices(Wire):
    restored: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """What somebody else changed meanwhile, and stays as they want it."""
    node_gone: bool = False
