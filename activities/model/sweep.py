"""What the sweep of a cluster sees, and what it asks to have mended. Each page stays under 16 KiB."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from gpu_runbooks.activities.model.wire import Wire


class NextPage(Wire):
    """Ask for a page of a list of the API server."""

    token: str = ""
    """Where the page before said that the list goes on; empty for the first one."""


class BadCondition(Wire):
    """A condition of a Node that is bad for longer than policy tolerates, and no other one knows why."""

    type: str
    status: str
    since: datetime


class SweptNode(Wire):
    """A Node that carries anything of ours, or a condition that somebody should have taken up."""

    name: str
    uid: str
    marker: Literal["", "ours", "held", "unreadable"] = ""
    """Our block; `held`: a person's, by `DrainNode`."""
    incident: str = ""
    run_id: str = ""
    """Of the marker."""
    taint: bool = False
    replaces: str = ""
    """Incident that claimed it as the successor of its node."""
    pause: Literal["", "ours", "bare", "unreadable"] = ""
    """Pause of the GPU services; `bare`: our value on a label, and no annotation that says whose it is."""
    pause_incident: str = ""
    pause_run_id: str = ""
    bad: tuple[BadCondition, ...] = ()


class NodesPage(Wire):
    nodes: tuple[SweptNode, ...] = ()
    seen: int
    """Nodes looked at."""
    unreadable: int = 0
    """Objects that are no Node that can be read: what they carry is unknown."""
    more: str = ""


class NodeWork(Wire):
    """A NodeTask, or a test pod: work that an incident gave to a node."""

    kind: Literal["NodeTask", "test pod"]
    name: str
    uid: str
    version: str
    """Resource version: it is deleted as it was seen, or not at all."""
    incident: str = ""
    """Workflow id, where the object names it."""
    digest: str = ""
    """What stands for the incident in its label."""
    node: str = ""
    made: datetime
    runs: bool = False
    """An agent has it in hand, and its deadline has not passed."""


class WorksPage(Wire):
    works: tuple[NodeWork, ...] = ()
    unreadable: int = 0
    more: str = ""


class LookAtNodes(Wire):
    """Ask which machine stands behind these names now."""

    names: tuple[str, ...] = Field(max_length=50)


class NodeMachine(Wire):
    name: str
    instance_id: str
    made: datetime


class NodeMachines(Wire):
    machines: tuple[NodeMachine, ...] = ()
    """Names that no Node has are missing."""


class IncidentsNextPage(Wire):
    """Ask Temporal for a page of the open incidents of a cluster."""

    cluster: str
    token: str = ""


class OpenIncident(Wire):
    """An incident as the list of workflows shows it."""

    id: str
    run_id: str
    started: datetime
    paused: bool = False
    """Through Temporal: it answers nobody."""
    phase: str = ""
    pool: str = ""
    instances: tuple[str, ...] = ()
    """EC2 instances that it touched."""


class IncidentsPage(Wire):
    incidents: tuple[OpenIncident, ...] = ()
    more: str = ""


class Run(Wire):
    """A workflow by its id and, where somebody noted it, the first run id."""

    id: str
    run_id: str = ""


class FindRuns(Wire):
    runs: tuple[Run, ...] = Field(max_length=40)


class Standing(Wire):
    """What Temporal knows of a workflow, and of the run of it that was asked for."""

    run: Run
    state: Literal["open", "open-later", "closed", "forgotten", "unknown"]
    """`open-later`: that run is over, and a later one has the id. `forgotten`: none within the retention."""
    how: str = ""
    """How that run ended: the outcome that it left, else Temporal's own word. Or why it is unknown."""


class Standings(Wire):
    standings: tuple[Standing, ...] = ()


class FindBudgets(Wire):
    cluster: str


class Budgets(Wire):
    pools: tuple[str, ...] = ()
    """Those with an open budget."""


class SweepBudget(Wire):
    """Have a budget take back the slots of incidents that are over."""

    cluster: str
    pool: str


class BudgetSwept(Wire):
    pool: str
    holders: int = 0
    waiters: int = 0
    returned: tuple[str, ...] = ()
    """Nodes whose slot was returned; the first ones."""
    problem: str = ""
    """Why nobody knows its holders, or whether one is over."""


class LookAgain(Wire):
    """Have an incident look at its node."""

    incident: str
    run_id: str
    node: str


class LookedAgain(Wire):
    told: bool
    why: str = ""
    """Why it was not told."""


class TakeUp(Wire):
    """Have a condition of a Node taken up as the intake does it."""

    node: str
    uid: str
    type: str


class TakenUp(Wire):
    status: str
    """As the intake says: started, joined, duplicate, ignored, refused, unavailable; or `over`."""
    reason: str = ""


class Mended(Wire):
    """What became of something that was left behind."""

    done: tuple[str, ...] = ()
    changed: bool = False
    """It was not as the sweep had seen it, so nothing was done."""
