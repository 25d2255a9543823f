"""Words for what an incident is: the runbook it runs, the phase it is in, and how it ended."""

from enum import StrEnum


class Runbook(StrEnum):
    """Workflow types of an incident: all the same machine, each with a ladder of its own."""

    REMEDIATE = "NodeRemediation"
    DRAIN = "DrainNode"
    """A person takes the node out: block, drain, and hold the block."""
    RESET = "ResetGpu"
    REBOOT = "RebootNode"
    REPLACE = "ReplaceNode"
    """A person orders one repair: block, drain, that repair alone, validate, return."""
    VALIDATE = "ValidateNode"
    """A person has the hardware tested: a block that stood before stays."""
    RETURN = "ReturnNode"
    """A person gives the node back: take the block over, validate, return."""


class Phase(StrEnum):
    """What an incident is doing, as the UI's list shows it."""

    OPEN = "open"
    TOLERATING = "tolerating"
    """Before anything is touched."""
    WAITING = "waiting"
    """Before a rung, blocked and with a slot."""
    WAITING_FOR_SLOT = "waiting-for-slot"
    BLOCKING = "blocking"
    EXAMINING = "examining"
    """Gathering the evidence before a repair."""
    DRAINING = "draining"
    RESTARTING_WORKLOAD = "restarting-workload"
    RESETTING_GPU = "resetting-gpu"
    REBOOTING = "rebooting"
    REPLACING = "replacing"
    VALIDATING = "validating"
    RETURNING = "returning"
    NEEDS_OPERATOR = "needs-operator"
    CLOSED = "closed"


class Outcome(StrEnum):
    """How an incident ended."""

    RETURNED = "returned"
    """Repaired, validated and back in service."""
    REPLACED = "replaced"
    """Its successor is validated and in service."""
    DRAINED = "drained"
    """Empty, and blocked until a person gives it back: the end of a runbook `DrainNode`."""
    VALIDATED = "validated"
    """The hardware passed, and a block that stood before stands: the end of a runbook `ValidateNode`."""
    RESTARTED = "restarted"
    """The pods that held the GPU ended, to be made anew by their owners; the node was not touched."""
    HELD = "held"
    """A person has the node: the fault is recorded, and the validation before its return decides."""
    LEFT_ALONE = "left-alone"
    """An application's fault: the node was not touched."""
    OBSERVED = "observed"
    """Mode `observe`: what would have been done is recorded."""
    EXPIRED = "expired"
    """The machine, or its boot, is no longer the one that had the fault."""
    RELEASED = "released"
    """Somebody removed our block: the node is theirs."""
    ABORTED = "aborted"
    """An operator ended it; the block stays."""
    CANCELLED = "cancelled"
    """Cancelled through Temporal; the block stays."""
    FAILED = "failed"
    """An error of ours; the block stays."""
