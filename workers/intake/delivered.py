"""What became of a fault that was handed to Temporal, and what says that nobody knows."""

from dataclasses import dataclass
from typing import Literal

from temporalio.client import RPCTimeoutOrCancelledError
from temporalio.service import RPCError

UNREACHABLE = (RPCError, RPCTimeoutOrCancelledError, TimeoutError, RuntimeError, ValueError)
"""RuntimeError is what a lazy client raises that cannot connect; ValueError, a description with a status that
the SDK has no name for, such as that of a workflow paused through the server."""


class TemporalUnavailableError(Exception):
    """The fault may not be in Temporal: it has to be sent again."""


@dataclass(frozen=True)
class Delivered:
    """What became of a fault."""

    status: Literal["started", "joined", "duplicate", "ignored"]
    workflow_id: str
    run_id: str
    reason: str = ""
