"""The parts of a sweep: read a list, compare it with what Temporal knows, and mend what it shows.

Each part stands for itself: one that cannot be read leaves the others as they are, and mends nothing.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.activities.model.sweep import (
    Budgets,
    BudgetSwept,
    FindBudgets,
    FindRuns,
    IncidentsNextPage,
    IncidentsPage,
    LookAtNodes,
    NextPage,
    NodeMachines,
    NodesPage,
    NodeWork,
    OpenIncident,
    Run,
    Standing,
    Standings,
    SweepBudget,
    SweptNode,
    TakeUp,
    WorksPage,
)
from gpu_runbooks.activities.names import digest, fleet_id
from gpu_runbooks.activities.sweep.contract import SweepOfCluster, SweepOfTemporal
from gpu_runbooks.workflows.failures import in_words
from gpu_runbooks.workflows.options import SWEEP_CLUSTER, SWEEP_TEMPORAL
from gpu_runbooks.workflows.sweep_findings import (
    OF_BLOCKS,
    Found,
    Kind,
    is_same_block,
    of_incident,
    of_node,
    of_paused,
    of_running,
    of_work,
    run_of_work,
    runs_of,
    waits_for_node,
)
from gpu_runbooks.workflows.sweep_mending import mend
from gpu_runbooks.workflows.sweep_report import Did, Finding, finding

RUNS_AT_ONCE = 40
NAMES_AT_ONCE = 50
"""In one question: a payload stays under 16 KiB."""

MOST_MENDS = 300
"""Mends of one sweep. The history stays short, and what is left is found again."""

MOST_TAKEN_UP = 100
"""Conditions that one sweep hands on. The next one goes on with other nodes."""

LONGEST_UNREAD = 300
"""Characters."""

Item = TypeVar("Item")


class Sweep:
    """One sweep of a cluster, as far as it has come."""

    def __init__(self, cluster: str, taken_up_to: str) -> None:
        self.cluster = cluster
        self.nodes = self.held = 0
        self.incidents: list[OpenIncident] | None = None
        """The open ones; None where they could not be listed."""
        self.findings: list[Finding] = []
        self.unread: list[str] = []
        self.taken_up_to = taken_up_to
        self._unhandled: list[Found] = []
        self._mends = 0

    async def run(self) -> None:
        """Go through all parts, one after the other."""
        await self._part("nodes", self._sweep_nodes)
        await self._part("open incidents", self._list_incidents)
        await self._part("NodeTasks", self._sweep_node_tasks)
        await self._part("test pods", self._sweep_test_pods)
        await self._part("machines of open incidents", self._sweep_machines)
        await self._part("budgets and guard", self._sweep_budgets)
        await self._take_up()

    async def _part(self, name: str, part: Callable[[], Awaitable[None]]) -> None:
        try:
            await part()
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._note_unread(name, in_words(error))
        except Exception as error:  # noqa: BLE001 - see `_note_failed`
            self._note_failed(name, error)

    async def _sweep_nodes(self) -> None:
        more: str | None = ""
        while more is not None:
            page: NodesPage = await _of_cluster(
                SweepOfCluster.list_marked_nodes, NextPage(token=more), "nodes"
            )
            self.nodes += page.seen
            self.held += sum(node.marker == "held" for node in page.nodes)
            self._count_unreadable("nodes", page.unreadable)
            known = await self._find(run for node in page.nodes for run in runs_of(node, self.cluster))
            await self._judge({node.name: self._of_node(node, known) for node in page.nodes}, page.nodes)
            more = page.more or None

    async def _judge(self, found: dict[str, list[Found]], nodes: Sequence[SweptNode]) -> None:
        """Mend what was found on nodes.

        A list shows its nodes as they were when its first page was read, and Temporal was asked after that: a
        block may be gone since, with the incident that it was of. It is read again.
        """
        before = {
            node.name: node for node in nodes if any(each.kind in OF_BLOCKS for each in found[node.name])
        }
        now: dict[str, SweptNode] = {}
        if before:
            again: NodesPage = await _of_cluster(
                SweepOfCluster.read_again, LookAtNodes(names=tuple(before)), "do these blocks still stand?"
            )
            now = {node.name: node for node in again.nodes}
        for node in nodes:
            stands = node.name not in before or is_same_block(node, now.get(node.name))
            for each in found[node.name]:
                if each.kind in OF_BLOCKS and not stands:
                    self.findings.append(finding(each, Did.CHANGED))
                else:
                    await self._mend([each])

    def _of_node(self, node: SweptNode, known: dict[Run, Standing]) -> list[Found]:
        try:
            return of_node(node, self.cluster, known)
        except Exception as error:  # noqa: BLE001 - see `_note_failed`
            self._note_failed(f"node {node.name}", error)
            return []

    async def _list_incidents(self) -> None:
        incidents: list[OpenIncident] = []
        more: str | None = ""
        while more is not None:
            page: IncidentsPage = await _of_temporal(
                SweepOfTemporal.list_open_incidents,
                IncidentsNextPage(cluster=self.cluster, token=more),
                "open incidents",
            )
            incidents += page.incidents
            more = page.more or None
        self.incidents = incidents
        await self._mend(of_paused(incidents))

    async def _sweep_node_tasks(self) -> None:
        await self._sweep_works(SweepOfCluster.list_node_tasks, "NodeTasks")

    async def _sweep_test_pods(self) -> None:
        await self._sweep_works(SweepOfCluster.list_test_pods, "test pods")

    async def _sweep_works(self, activity: Any, name: str) -> None:
        digests = None
        if self.incidents is not None:
            digests = {digest(incident.id) for incident in self.incidents}
        works: list[NodeWork] = []
        more: str | None = ""
        while more is not None:
            page: WorksPage = await _of_cluster(activity, NextPage(token=more), name)
            self._count_unreadable(name, page.unreadable)
            works += page.works
            more = page.more or None
        of_works = {work.uid: run_of_work(work, self.cluster) for work in works}
        known = await self._find(run for run in of_works.values() if run is not None)
        for work in works:
            run = of_works[work.uid]
            standing = known[run] if run is not None else None
            await self._mend(of_work(work, standing, digests, workflow.now()))

    async def _sweep_machines(self) -> None:
        waiting = [each for each in self.incidents or () if waits_for_node(each, workflow.now())]
        for some in _parts(waiting, NAMES_AT_ONCE):
            names = tuple(each.id.rpartition("/")[2] for each in some)
            seen: NodeMachines = await _of_cluster(
                SweepOfCluster.look_at_nodes, LookAtNodes(names=names), "machines of open incidents"
            )
            machines = {machine.name: machine for machine in seen.machines}
            for incident, name in zip(some, names, strict=True):
                await self._mend(of_incident(incident, machines.get(name)))

    async def _sweep_budgets(self) -> None:
        budgets: Budgets = await _of_temporal(
            SweepOfTemporal.find_budgets, FindBudgets(cluster=self.cluster), "budgets"
        )
        guard = Run(id=fleet_id(self.cluster))
        known = await self._find([guard])
        await self._mend(of_running(self.incidents or (), budgets.pools, known[guard], workflow.now()))
        for pool in budgets.pools:
            swept: BudgetSwept = await _of_temporal(
                SweepOfTemporal.sweep_budget,
                SweepBudget(cluster=self.cluster, pool=pool),
                f"holders of pool {pool}",
            )
            if swept.problem:
                found = Found(Kind.UNKNOWN, f"budget of {pool}", swept.problem)
                self.findings.append(finding(found, Did.REPORTED))
            for node in swept.returned:
                found = Found(Kind.LOST_SLOT, node, f"a slot of pool {pool} whose incident is over")
                self.findings.append(finding(found, Did.MENDED, "returned"))

    async def _take_up(self) -> None:
        """Hand on conditions that nobody took up, beginning where the sweep before ended."""
        ordered = sorted(self._unhandled, key=lambda each: (each.subject <= self.taken_up_to, each.subject))
        for found in ordered[:MOST_TAKEN_UP]:
            self.findings.append(await mend(found))
            self.taken_up_to = found.subject
        self.findings += [finding(found, Did.LATER) for found in ordered[MOST_TAKEN_UP:]]

    async def _mend(self, found: Iterable[Found]) -> None:
        for each in found:
            if isinstance(each.mend, TakeUp):
                self._unhandled.append(each)
            elif each.mend is not None and self._mends >= MOST_MENDS:
                self.findings.append(finding(each, Did.LATER))
            else:
                self._mends += each.mend is not None
                self.findings.append(await mend(each))

    async def _find(self, runs: Iterable[Run]) -> dict[Run, Standing]:
        asked = tuple(dict.fromkeys(runs))
        known: dict[Run, Standing] = {}
        for some in _parts(asked, RUNS_AT_ONCE):
            found: Standings = await _of_temporal(
                SweepOfTemporal.find_runs, FindRuns(runs=tuple(some)), "are these runs over?"
            )
            known |= {each.run: each for each in found.standings}
        return known

    def _count_unreadable(self, name: str, count: int) -> None:
        if count:
            self._note_unread(name, f"{count} objects cannot be read")

    def _note_failed(self, name: str, error: Exception) -> None:
        """Note a mistake of ours: it ends no other part, and is not tried again and again for an hour."""
        workflow.logger.error("the sweep failed at %s", name, exc_info=error)
        self._note_unread(name, f"the sweep failed at it: {error!r}")

    def _note_unread(self, name: str, why: str) -> None:
        self.unread.append(f"{name}: {why}"[:LONGEST_UNREAD])
        self.findings.append(finding(Found(Kind.UNKNOWN, f"list of {name}", why), Did.REPORTED))


async def _of_cluster(activity: Any, request: Any, what: str) -> Any:
    return await workflow.execute_activity_method(activity, request, summary=what, **SWEEP_CLUSTER)


async def _of_temporal(activity: Any, request: Any, what: str) -> Any:
    return await workflow.execute_activity_method(activity, request, summary=what, **SWEEP_TEMPORAL)


def _parts(items: Sequence[Item], size: int) -> Iterable[Sequence[Item]]:
    return (items[first : first + size] for first in range(0, len(items), size))
