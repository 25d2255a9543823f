"""The section `pools`: nodes that share a budget, and how they may be disrupted."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from gpu_runbooks.activities.model.slot import PoolBudget
from gpu_runbooks.workflows.policy.fields import Duration, Flag, Key, LabelValue, Line, Name, Written
from gpu_runbooks.workflows.policy.freezes import Freezes
from gpu_runbooks.workflows.policy.repair import Repair
from gpu_runbooks.workflows.policy.windows import Window

MOST_POOLS = 200
"""Of a file: each is compared with every other."""

MOST_WINDOWS = 14
"""Of a pool: all of them travel with every fault."""

Mode = Literal["observe", "enforce"]


class Budget(Written):
    """How much of a pool may be unavailable at once."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["max_unavailable"]}, {"required": ["percent"]}]}
    )

    max_unavailable: Annotated[int, Field(ge=1, le=10_000, strict=True)] | None = None
    """How many nodes of the pool may be unavailable at once, whoever took them out."""
    percent: Annotated[int, Field(ge=1, le=100, strict=True)] | None = None
    """The same as a share of the pool's own nodes, rounded down: 10 % of 9 nodes permits none."""
    block_waiting: Flag = False
    """An incident that waits for a slot blocks its node at once, so that no new work lands on it."""

    @model_validator(mode="after")
    def _is_one_limit(self) -> "Budget":
        if self.max_unavailable is None and self.percent is None:
            raise ValueError("write max_unavailable, such as {max_unavailable: 1}, or percent")
        if self.max_unavailable is not None and self.percent is not None:
            raise ValueError("write one of max_unavailable and percent, not both")
        return self

    def wire(self) -> PoolBudget:
        """As incidents and the budget know it."""
        return PoolBudget(
            max_unavailable=self.max_unavailable, percent=self.percent, block_waiting=self.block_waiting
        )


class Pool(Written):
    """Nodes that share a budget."""

    name: Name
    """Name of the pool, a part of its budget's workflow id."""
    selector: Annotated[dict[Key, LabelValue], Field(min_length=1, max_length=20)]
    """Node labels, all of which a node of the pool carries, such as {karpenter.sh/nodepool: p5}."""
    budget: Budget
    """Budget of the pool, such as {max_unavailable: 1} or {percent: 10}."""
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
