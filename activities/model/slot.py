"""Slots of a disruption budget, and what a pool shows of itself."""

from typing import Annotated

from pydantic import Field

from gpu_runbooks.activities.model.fleet import StormRule
from gpu_runbooks.activities.model.packing import Names
from gpu_runbooks.activities.model.wire import Moment, Wire


class PoolBudget(Wire):
    """How many nodes of a pool may be disrupted at once: a count, or a share of its own nodes."""

    max_unavailable: Annotated[int, Field(ge=1)] | None = None
    percent: Annotated[int, Field(ge=1, le=100)] | None = None
    """Of the pool's own nodes, rounded down; used where no count is given."""
    block_waiting: bool = False
    """An incident that waits for a slot blocks its node at once: no new work lands on it."""

    def limit(self, nodes: int) -> int:
        """Nodes that may be unavailable at once in a pool of so many."""
        if self.max_unavailable is not None:
            return self.max_unavailable
        return nodes * (self.percent or 0) // 100

    def in_words(self) -> str:
        """The limit for a person, such as `3` or `10 % of its nodes`."""
        return f"{self.percent} % of its nodes" if self.max_unavailable is None else str(self.max_unavailable)


class PoolRules(Wire):
    """What policy says of a pool. Travels with each request: the budget keeps the latest."""

    budget: PoolBudget
    selector: dict[str, str]
    """Node labels, all of which a node of the pool carries."""
    storm: StormRule = StormRule()


class SlotRequest(Wire):
    """Signal `request_slot` of a budget, and `return_slot`. Idempotent: keyed by incident and run."""

    incident: str
    run_id: str
    """First run id, stable over continue-as-new."""
    node: str
    severity: int = 0
    since: Moment | None = None
    """When the incident began: the older one is served first."""
    turn: int = 0
    """How often the incident gave up its slot or its request before: a grant counts for its own turn only."""
    rules: PoolRules | None = None
    """Sent with a request; what the budget keeps of its holders and waiters lacks it."""


class Stop(Wire):
    """Signal `disruption_stopped` to an incident that has a slot: no further act until it is granted anew."""

    run_id: str
    """First run id of the incident that it is for."""
    why: str


class TellHolders(Wire):
    """Tell incidents how it is with their slots: that they have one, or that nothing more may be done."""

    holders: tuple[SlotRequest, ...] = Field(max_length=200)
    stopped: str = ""
    """Why nothing more may be done; empty for the grant."""


class ClosedIncidents(Wire):
    closed: tuple[SlotRequest, ...] = ()


class EnsureBudget(Wire):
    """Start the budget of a pool where it does not run, and hand it this request."""

    cluster: str
    pool: str
    request: SlotRequest


class FindHolders(Wire):
    """Ask for the incidents of a pool that hold a slot, whatever budget gave it to them."""

    cluster: str
    pool: str


class Holders(Wire):
    holders: tuple[SlotRequest, ...] = ()


class FindClosedIncidents(Wire):
    incidents: tuple[SlotRequest, ...] = Field(max_length=200)


class ObservePool(Wire):
    """Ask what a pool shows of itself right now."""

    pool: str
    selector: dict[str, str]
    asked: Names = ()
    """Nodes that the asker counts by itself: they are in no list of unavailable ones, but of those that are
    not there."""


class UnavailableNode(Wire):
    """A node of the pool that does no work, whoever is the reason."""

    name: str
    ready: bool
    cordoned: bool
    """By anybody: a cordon, Karpenter's taint of a node that it takes away, or a deletion under way."""
    ours: bool
    """It carries our marker, or our taint."""
    incident: str = ""
    """Workflow id in our marker, where that is another one than the node's own."""
    run_id: str = ""
    """First run id in that marker."""


class PoolSeen(Wire):
    """A pool as the API server shows it at one moment."""

    nodes: int
    """All nodes of the pool, unavailable ones included."""
    unavailable: tuple[UnavailableNode, ...] = ()
    """Not Ready, cordoned, tainted by us, or on their way out, without those that were asked for; by name, as
    many as fit into a payload."""
    unlisted: int = 0
    """Further unavailable nodes, which had no room in the list."""
    unlisted_not_ready: int = 0
    """Those of them that are not Ready."""
    absent: Names = ()
    """Of the nodes that were asked for, those that are not in the pool."""
