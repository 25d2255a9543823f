"""A node: which machine it is, what it shows, and our block on it."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from gpu_runbooks.activities.model.wire import Wire


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


class BlockMarker(Wire):
    """Content of the annotation `gpu-runbooks.dev/block`."""

    incident: str = Field(min_length=1)
    """Workflow id."""
    run_id: str
    """First run id of the incident, stable over continue-as-new."""
    reasons: tuple[str, ...] = Field(min_length=1)
    """Why, oldest first: each fault that wants the block adds its own, and none is taken away."""
    since: datetime
    was_unschedulable: bool
    """Somebody had cordoned the node before us: their cordon stays when we leave."""
    set_do_not_repair: bool = False
    """The annotation that holds off Karpenter's node repair is ours: it goes when we leave."""
    set_do_not_disrupt: bool = False
    """So is the one that holds off its consolidation, which takes a drained node for a useless one."""
    held: bool = False
    """A person drained the node by hand: only a runbook of a person gives it back."""


class BlockNode(Wire):
    identity: NodeIdentity
    incident: str
    run_id: str
    rule: str
    reason: str
    since: datetime
    hold: bool = False
    """Mark the block as a person's: no incident takes it over."""
    take_held: bool = False
    """A person asks, so a block that is held may be taken over."""
    only_adopt: bool = False
    """Take over a block of ours that stands; never block a node that has none."""
    take_opted_out: bool = False
    """Also where its owners want nothing done to it: it is to be validated, or is ours already."""


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
    run_id: str = ""
    """Only the marker of this run counts as the incident's block; empty: that of any run of it."""
    conditions: tuple[str, ...] = ()
    """Types of the conditions whose status is wanted."""


class NodeObservation(Wire):
    """A Node as it is now. A missing node has `identity=None`."""

    identity: NodeIdentity | None
    ready: Literal["True", "False", "Unknown"] = "Unknown"
    blocked: bool = False
    """Taint, unschedulable and marker are all there, and the marker names this incident (and this run)."""
    marker: BlockMarker | None = None
    """Whoever's marker is on the node."""
    gpus: int | None = None
    """Allocatable `nvidia.com/gpu`; None where the key is missing."""
    efa_interfaces: int | None = None
    karpenter: bool = False
    """Karpenter launched it, so Karpenter replaces it."""
    opted_out: bool = False
    """Its owners want nothing done to it: the label `opt-out` is `true`."""
    given_back_by: str = ""
    """Who took the cordon of our block away and when, as far as the Node tells; empty where it does not."""
    conditions: dict[str, str] = Field(default={})
    """Status by type, of the conditions that were asked for and are there."""
