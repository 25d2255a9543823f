"""The section `pools`: nodes that share a budget, and how they may be disrupted."""

from typing import Annotated, Literal

from pydantic import Field

from gpu_runbooks.workflows.policy.fields import Duration, Key, LabelValue, Line, Name, Written
from gpu_runbooks.workflows.policy.freezes import Freezes
from gpu_runbooks.workflows.policy.repair import Repair
from gpu_runbooks.workflows.policy.windows import Window

MOST_POOLS = 200
"""Of a file: each is compared with every other."""

MOST_WINDOWS = 14
"""Of a pool: all of them travel with every fault."""

Mode = Literal["observe", "enforce"]


class Budget(Written):
    """How much of a pool may be disrupted."""

    max_unavailable: Annotated[int, Field(ge=1, le=10_000, strict=True)]
    """How many nodes of the pool may be disrupted at once."""


class Pool(Written):
    """Nodes that share a budget."""

    name: Name
    """Name of the pool, a part of its budget's workflow id."""
    selector: Annotated[dict[Key, LabelValue], Field(min_length=1, max_length=20)]
    """Node labels, all of which a node of the pool carries, such as {karpenter.sh/nodepool: p5}."""
    budget: Budget
    """Budget of the pool, such as {max_unavailable: 1}."""
    mode: Mode | None = None
    """`observe` or `enforce` for this pool, over that of the file."""
    owners: Line = ""
    """Who answers for the pool, such as "team search, #gpu-oncall": the audit shows it."""
    windows: Annotated[tuple[Window, ...], Field(max_length=MOST_WINDOWS)] = ()
    """When nodes of the pool may be disrupted; at any time where none is written."""
    probation: Duration | None = None
    """How long nodes of this pool are watched after their return, over that of the file."""
    freezes: Freezes = ()
    """Times in which nothing of this pool is disrupted, beside those of the file."""
    repair: Repair = Repair()
    """How machines of this pool are repaired, where it differs from the section of the file."""
