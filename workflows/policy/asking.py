"""The section `operator`: how long a question to a person may stand, and what follows without an answer."""

from datetime import timedelta
from typing import Annotated, Literal

from gpu_runbooks.workflows.policy.fields import Duration, Written, limits

SHORTEST = timedelta(minutes=1)


class Operator(Written):
    """What an incident does that waits for a person."""

    reminder: Annotated[Duration, limits(SHORTEST)] = timedelta(hours=4)
    """How often an incident that waits for a person reminds."""
    deadline: Annotated[Duration, limits(SHORTEST)] = timedelta(hours=24)
    """How long a question may stand without an answer."""
    then: Literal["page", "abort", "escalate"] = "page"
    """What follows: page as critical and go on asking, abort with the block kept, or escalate to the next
    stronger repair."""


MOVED = {"operator_reminder": "write it as `operator: {reminder: 4h}`"}
"""Fields of earlier versions, with what stands in their place."""
