"""A drain: which pods leave a node, how, and what keeps them."""

from datetime import datetime
from typing import Literal

from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.wire import Wire


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
