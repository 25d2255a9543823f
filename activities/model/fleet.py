"""What the guard of a fleet is told and tells: faults of all nodes, storms, brakes and halts."""

from datetime import datetime, timedelta
from typing import Annotated, Literal, Self

from pydantic import Field

from gpu_runbooks.activities.model.wire import Moment, Span, Wire


class StormRule(Wire):
    """When to stop believing the alarms, by policy."""

    nodes: Annotated[int, Field(ge=2)] = 5
    """So many nodes with one signature within `within` are a storm."""
    within: Span = timedelta(minutes=10)
    unhealthy_percent: Annotated[int, Field(ge=1, le=100)] = 30
    """More than this share of a pool unhealthy is a storm of that pool, from `unhealthy_nodes` on."""
    unhealthy_nodes: Annotated[int, Field(ge=2)] = 3
    """So few unhealthy nodes never brake a small pool."""
    group_wait: Span = timedelta(0)
    """From the start of an incident until its node may be disrupted: others of its kind report meanwhile."""
    cool_down: Span = timedelta(minutes=15)
    """Quiet time after the last fault of a storm, before the first node is taken up again."""
    pace: Span = timedelta(minutes=2)
    """Between one node and the next, once the first one came back."""


class FaultSeen(Wire):
    """A node with something wrong."""

    node: str
    pool: str
    signature: str
    """Source, code and reason: the same for the same kind of fault on any node."""
    traits: dict[str, str] = Field(default={})
    """What nodes may have in common: driver, detector, zone, rack, job."""


class FaultsSeen(Wire):
    """Signal `faults_seen` of the guard: an intake tells what came together, before any incident has it."""

    faults: tuple[FaultSeen, ...]
    rule: StormRule = StormRule()


class AlertsTruncated(Wire):
    """Signal `alerts_truncated` of the guard: so many alerts were not delivered, of nodes nobody knows."""

    count: Annotated[int, Field(ge=1)]
    signature: str
    delivery: str
    """Digest of the delivery: the same one again counts once."""
    rule: StormRule = StormRule()


class PoolUnhealthy(Wire):
    """Signal `pool_unhealthy` of the guard: a budget saw more of its pool unhealthy than policy allows."""

    pool: str
    unhealthy: int
    nodes: int
    rule: StormRule = StormRule()


class BudgetOpened(Wire):
    """Signal `budget_opened` of the guard: this pool's budget wants to be told of brakes."""

    pool: str


class CaughtUp(Wire):
    """Signal `caught_up` of the guard: after a storm, nobody waits in this pool any more."""

    pool: str
    storm: str


class EnsureGuard(Wire):
    """Start the guard of a cluster where it does not run, and hand it this signal."""

    cluster: str
    signal: Literal["faults_seen", "alerts_truncated", "pool_unhealthy", "budget_opened", "caught_up"]
    argument: FaultsSeen | AlertsTruncated | PoolUnhealthy | CaughtUp | BudgetOpened
    """The most specific first: with a field less, a `CaughtUp` reads as a `BudgetOpened`."""


class Ordered(Wire):
    """What a person ordered, with who, why and an expiry."""

    operator: str
    identity: str = ""
    """That the server saw, where it is known."""
    reason: str
    since: Moment
    until: Moment

    def who(self) -> str:
        """The name that was given, with the identity."""
        return f"{self.operator} (identity {self.identity})" if self.identity else self.operator

    def signed(self, operator: str, at: datetime, identity: str) -> Self:
        """With the identity, if it is what this operator ordered at that time."""
        own = (self.operator, self.since) == (operator, at)
        return self.model_copy(update={"identity": identity}) if own else self


class Halt(Ordered):
    """Break-glass: no new disruption."""


class Brake(Wire):
    """Signal `brake` of a budget, from the guard: what all grants of the pool have to mind."""

    mode: Literal["off", "stop", "pace"] = "off"
    """`stop` grants nothing. `pace` grants one, and after it came back one in `every`."""
    why: str = ""
    storm: str = ""
    """Id of the storm that it is for; empty for a halt everywhere."""
    every: Span = timedelta(0)
    trusted_until: Moment | None = None
    """Until then a person answers for the pool, however much of it is unhealthy."""
