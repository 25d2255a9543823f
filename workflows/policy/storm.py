"""The section `storm`: when many faults are no faults of nodes, and how their nodes are taken up after it."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from gpu_runbooks.activities.model.fleet import StormRule
from gpu_runbooks.workflows.policy.fields import Duration, Written, limits

LONGEST_GROUP_WAIT = timedelta(minutes=10)
LONGEST_WINDOW = timedelta(hours=24)
LONGEST_COOL_DOWN = timedelta(hours=24)
LONGEST_PACE = timedelta(hours=1)


class StormSection(Written):
    """The section `storm`."""

    nodes: Annotated[int, Field(ge=2, le=200, strict=True)] = 5
    """So many nodes with one signature within the window are a storm: no pool disrupts a node then."""
    within: Annotated[Duration, limits(timedelta(minutes=1), LONGEST_WINDOW)] = timedelta(minutes=10)
    """The window, from 1m to 24h."""
    unhealthy_percent: Annotated[int, Field(ge=1, le=100, strict=True)] = 30
    """More than this share of a pool unhealthy is a storm of that pool; 100 never is."""
    unhealthy_nodes: Annotated[int, Field(ge=2, le=10_000, strict=True)] = 3
    """So many unhealthy nodes there have to be at least, so that a small pool is not braked by one or two."""
    group_wait: Annotated[Duration, limits(timedelta(0), LONGEST_GROUP_WAIT)] = timedelta(seconds=15)
    """From the start of an incident until it may disrupt its node, up to 10m. Only the block comes before:
    others with the same cause report meanwhile, and a storm that comes within this time disrupts nobody."""
    cool_down: Annotated[Duration, limits(timedelta(minutes=1), LONGEST_COOL_DOWN)] = timedelta(minutes=15)
    """How long it has to be quiet before the first node is taken up again, from 1m to 24h."""
    pace: Annotated[Duration, limits(timedelta(seconds=10), LONGEST_PACE)] = timedelta(minutes=2)
    """Between one node and the next once the first one came back, from 10s to 1h."""

    def wire(self) -> StormRule:
        """The rule as it travels with each fault."""
        return StormRule(**dict(self))
