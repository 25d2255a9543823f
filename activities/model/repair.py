"""The acts on the machine itself, and their proofs."""

from datetime import datetime

from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.wire import Wire


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
