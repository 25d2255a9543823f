"""Names of the errors that cross Temporal, and how they are made."""

from temporalio.exceptions import ApplicationError

NODE_NOT_FOUND = "NodeNotFound"
NODE_CHANGED = "NodeChanged"
"""Another machine, or another boot, than the one that the incident pinned."""
BLOCKED_BY_OTHER = "BlockedByOther"
"""The marker of another incident is on the node."""
HELD = "Held"
"""A person drained the node by hand and has not given it back."""
OPTED_OUT = "OptedOut"
"""The owners of the node want nothing done to it: its label says so."""
NOT_BLOCKED = "NotBlocked"
"""There is no block of ours to take over."""
OWN_NODE = "OwnNode"
"""The worker that was asked runs on the node itself: one elsewhere has to do it."""
NOT_VERIFIED = "NotVerified"
"""A write was accepted and does not show when read back. Worth a retry."""
SERVICES_HELD = "ServicesHeld"
"""A driver upgrade holds our pause of a GPU service, and puts it back at its end. Worth a retry."""
FORBIDDEN = "Forbidden"
"""The API refused for lack of permission: a person must mend the role."""
POLICY_REFUSED = "PolicyRefused"
BAD_INPUT = "BadInput"
NO_OWNER = "NoOwner"
"""The instance belongs to no Auto Scaling group: we do not replace it."""
PROTECTED = "Protected"
"""Something that a person set forbids the termination, or its owner's state would make it do harm."""
NO_CAPACITY = "NoCapacity"
"""Nothing would come in its place: no instance is terminated while that is so."""
AWS = "Aws"
"""After it nobody knows the state: AWS was throttled, timed out, or at fault. Worth a retry."""
NOT_SENT = "NotSent"
"""The call that must not be repeated was never made: what comes before it failed."""
OUTCOME_UNKNOWN = "OutcomeUnknown"
"""A command that must not be repeated went out, and nobody knows what it did: proof decides."""
UNAVAILABLE = "Unavailable"
"""The API server gave no answer, or said that it is busy. Worth a retry."""
REJECTED = "Rejected"
"""The API server calls the request itself wrong: it will say so again."""
INSTANCE_UNKNOWN = "InstanceUnknown"
INSTANCE_NOT_RUNNING = "InstanceNotRunning"

FOR_A_PERSON = frozenset(
    {FORBIDDEN, BAD_INPUT, REJECTED, NOT_VERIFIED, OWN_NODE, PROTECTED, NO_CAPACITY, NO_OWNER}
)
"""What only a person can mend: no reason for a stronger act."""

LONGEST_MESSAGE = 2000


def refusal(error_type: str, message: str) -> ApplicationError:
    """Error that no retry will cure. The message is cut: it travels in a payload."""
    return ApplicationError(message[:LONGEST_MESSAGE], type=error_type, non_retryable=True)
