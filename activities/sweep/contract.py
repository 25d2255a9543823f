"""The activities of the sweep by queue: what each does, for its workflow to call and workers to implement.

Each reads the state first and is safe to run twice; none keeps anything that the history does not have.
"""

from abc import ABC, abstractmethod

from temporalio import activity

from gpu_runbooks.activities.model.sweep import (
    Budgets,
    BudgetSwept,
    FindBudgets,
    FindRuns,
    IncidentsNextPage,
    IncidentsPage,
    LookAgain,
    LookAtNodes,
    LookedAgain,
    Mended,
    NextPage,
    NodeMachines,
    NodesPage,
    NodeWork,
    Standings,
    SweepBudget,
    SweptNode,
    TakenUp,
    TakeUp,
    WorksPage,
)


class SweepOfCluster(ABC):
    """Queue `cluster`: what the API server shows."""

    @activity.defn
    @abstractmethod
    async def list_marked_nodes(self, request: NextPage) -> NodesPage:
        """Nodes with anything of ours, or with a condition that is bad for too long, some at a time."""

    @activity.defn
    @abstractmethod
    async def read_again(self, request: LookAtNodes) -> NodesPage:
        """What these Nodes carry now; those that are gone or cannot be read are missing."""

    @activity.defn
    @abstractmethod
    async def list_node_tasks(self, request: NextPage) -> WorksPage:
        """NodeTasks, some at a time."""

    @activity.defn
    @abstractmethod
    async def list_test_pods(self, request: NextPage) -> WorksPage:
        """Test pods, some at a time."""

    @activity.defn
    @abstractmethod
    async def look_at_nodes(self, request: LookAtNodes) -> NodeMachines:
        """Which machine stands behind each of these names now."""

    @activity.defn
    @abstractmethod
    async def clear_leftovers(self, seen: SweptNode) -> Mended:
        """Take our taint and our claim off a Node without our marker, if it is as it was seen."""

    @activity.defn
    @abstractmethod
    async def resume_left_services(self, seen: SweptNode) -> Mended:
        """Put back what a pause of GPU services changed, if it is the pause that was seen."""

    @activity.defn
    @abstractmethod
    async def delete_work(self, work: NodeWork) -> Mended:
        """Delete a NodeTask or a test pod exactly as it was seen."""

    @activity.defn
    @abstractmethod
    async def take_up_condition(self, request: TakeUp) -> TakenUp:
        """Read the Node again, and have its bad condition taken up as the intake does it."""


class SweepOfTemporal(ABC):
    """Queue `temporal`: what Temporal itself shows. Workflows that are paused through it are open too."""

    @activity.defn
    @abstractmethod
    async def list_open_incidents(self, request: IncidentsNextPage) -> IncidentsPage:
        """Open incidents, some at a time. The list lags by moments: `find_runs` does not."""

    @activity.defn
    @abstractmethod
    async def find_runs(self, request: FindRuns) -> Standings:
        """Which of these runs are over, and how they ended. Who cannot be asked is unknown, not over."""

    @activity.defn
    @abstractmethod
    async def find_budgets(self, request: FindBudgets) -> Budgets:
        """Pools whose disruption budget runs."""

    @activity.defn
    @abstractmethod
    async def sweep_budget(self, request: SweepBudget) -> BudgetSwept:
        """Return the slots of holders and waiters whose incident is over."""

    @activity.defn
    @abstractmethod
    async def look_again(self, request: LookAgain) -> LookedAgain:
        """Have an incident look at its node, unless it is about another one by now."""
