"""Running cells of the matrix: a column at once, one incident in each of its steps, disturbed together."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, KubernetesError
from testbed.background import beside
from testbed.chaos.disturbances import DISTURBANCES, Disturbance
from testbed.chaos.gates import Gate, LateGate, PodGate
from testbed.chaos.policy import POOL_LABEL, WIDE, write_policy
from testbed.chaos.steps import STEPS, Step
from testbed.chaos.subject import StuckError, Subject, eventually
from testbed.chaos.table import Expected, expected
from testbed.chaos.verdict import over, problems, slot_problems
from testbed.fleet import POOL_SELECTOR, is_ready
from testbed.progress import Progress
from testbed.testbed import Testbed

CATCH_SECONDS = 120.0
"""For all incidents of a column to be in their steps."""


@dataclass
class Cell:
    """One step under one disturbance, and what came of it."""

    step: Step
    disturbance: Disturbance
    outcome: str = ""
    seconds: float = 0.0
    """From the disturbance to the end."""
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.step.name}/{self.disturbance.name}"

    @property
    def expected(self) -> Expected:
        return expected(self.step, self.disturbance.name)


@dataclass
class Caught:
    """An incident that stands in its step."""

    cell: Cell
    subject: Subject
    gate: Gate
    first_in_line: Gate | None = None
    """The gate of the incident that has the slot which this one waits for."""


class UnknownCellError(Exception):
    """There is no such cell."""


def pick(names: Iterable[str]) -> list[Cell]:
    """Cells by their names `step/disturbance`; a part may be `*`, and no names are all cells.

    Raises `UnknownCellError` for a name that fits none, with those that there are.
    """
    everything = [Cell(step, disturbance) for disturbance in DISTURBANCES for step in STEPS]
    wanted = [name.strip() for name in names if name.strip()]
    for name in wanted:
        if not any(_fits(cell, name) for cell in everything):
            steps = ", ".join(step.name for step in STEPS)
            others = ", ".join(disturbance.name for disturbance in DISTURBANCES)
            raise UnknownCellError(
                f"no cell is named {name}: write STEP/DISTURBANCE or * for either. Steps: {steps}. "
                f"Disturbances: {others}"
            )
    return [cell for cell in everything if not wanted or any(_fits(cell, name) for name in wanted)]


def _fits(cell: Cell, name: str) -> bool:
    step, _, disturbance = name.partition("/")
    return step in {"*", cell.step.name} and disturbance in {"*", "", cell.disturbance.name}


@asynccontextmanager
async def chaos_testbed(directory: Path, progress: Progress | None = None) -> AsyncIterator[Testbed]:
    """A testbed for the matrix: no node at first, the policy of the matrix, the API server behind a proxy."""
    directory.mkdir(exist_ok=True)
    narrow = [disturbance.name for disturbance in DISTURBANCES]
    policy = write_policy(directory / "chaos-policy.yaml", narrow)
    async with Testbed.start(
        directory, nodes=1, workloads=False, policy=policy, proxied=True, progress=progress
    ) as testbed:
        (spare,) = await testbed.fleet.nodes()
        await testbed.agents.start(spare["metadata"]["name"])  # from now on nodes that join have one
        async with beside(_fill_wide_pool(testbed.kubernetes)):
            yield testbed


async def _fill_wide_pool(kubernetes: Kubernetes) -> None:
    """Put each machine that joins into the wide pool: a replacement is looked for in its predecessor's."""
    async for nodes in kubernetes.follow("/api/v1/nodes", label_selector=f"{POOL_SELECTOR},!{POOL_LABEL}"):
        for node in list(nodes.values()):
            name, version = node["metadata"]["name"], node["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version, "labels": {POOL_LABEL: WIDE}}}
            try:
                await kubernetes.request(
                    "PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH
                )
            except KubernetesError as error:
                if error.status not in {404, 409}:  # it went, or somebody gave it its pool: seen again
                    raise


def columns(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells by their disturbance."""
    names = dict.fromkeys(cell.disturbance.name for cell in cells)
    return [[cell for cell in cells if cell.disturbance.name == name] for name in names]


Machine = tuple[str, str]
"""Node and instance of a machine that no incident has used."""


async def run_column(
    testbed: Testbed,
    cells: Sequence[Cell],
    machines: Iterable[Machine],
    done: Callable[[Cell], None] = lambda _: None,
) -> None:
    """Run cells of one disturbance: catch an incident in each step, disturb them all, and judge each.

    `machines` are as many as `join` gives for the cells; `done` is told of each cell as it is over.
    """
    (disturbance,) = {cell.disturbance.name: cell.disturbance for cell in cells}.values()
    nodes = list(machines)
    caught = [await _place(testbed, cell, nodes) for cell in cells]
    by_hand = [one for one in caught if one.cell.step.ladder]
    await asyncio.gather(*(one.subject.start(one.cell.step.ladder) for one in by_hand))
    held = await _all_reached(by_hand, first=True)
    # Last come those that do not wait for long: for the end of a toleration, or for AWS.
    by_alert = [one for one in caught if one not in by_hand]
    await asyncio.gather(*(one.subject.alert() for one in by_alert))
    late = [one for one in held if isinstance(one.gate, LateGate)]
    await asyncio.gather(*(one.gate.approach() for one in late if isinstance(one.gate, LateGate)))
    there = await _all_reached([*by_alert, *late])
    there += [one for one in held if one not in late]
    there = [one for one in there if await _is_still_there(one)]

    began = time.monotonic()
    async with disturbance.happen(testbed, [one.subject for one in there]):
        if not disturbance.ends_incident:
            await asyncio.gather(*(one.gate.open() for one in there if one.gate.brief))

    async def judge(one: Caught) -> None:
        await _judge(one, began)
        done(one.cell)

    await asyncio.gather(*map(judge, there))
    for one in caught:
        if one not in there:
            await _let_go(one)
            done(one.cell)


async def retire(testbed: Testbed) -> None:
    """Take the machines of a column away, but for one: their agents would slow the next column down."""
    retired = (await testbed.fleet.nodes())[1:]
    await testbed.cloud.shrink([node["spec"]["providerID"].rpartition("/")[2] for node in retired])
    await testbed.fleet.wait_until(
        "/api/v1/nodes",
        lambda nodes: len(nodes) <= 1,
        "end of the machines of a column",
        label_selector=POOL_SELECTOR,
    )


async def _all_reached(caught: Sequence[Caught], *, first: bool = False) -> list[Caught]:
    """Wait until incidents are in their steps, or before their first gate; returns those that came there."""

    async def reached(one: Caught) -> bool:
        gate = one.gate.first if first and isinstance(one.gate, LateGate) else one.gate
        try:
            await eventually(gate.reached, f"node {one.subject.node} to be in its step", CATCH_SECONDS)
        except StuckError as stuck:
            one.cell.outcome = "missed"
            one.cell.problems.append(f"not disturbed: {stuck}")
            return False
        return True

    came = await asyncio.gather(*map(reached, caught))
    return [one for one, there in zip(caught, came, strict=True) if there]


async def _is_still_there(one: Caught) -> bool:
    """Whether the others did not take so long that this one has gone on."""
    if await one.gate.reached():
        return True
    one.cell.outcome = "missed"
    one.cell.problems.append("not disturbed: it had gone on before the others were in their steps")
    return False


async def _let_go(one: Caught) -> None:
    await one.gate.open()  # of a brief one, which is open by now, nothing comes
    if one.first_in_line is not None:
        await one.first_in_line.open()


async def join(testbed: Testbed, cells: Sequence[Cell]) -> list[Machine]:
    """Launch the machines that cells need, and wait until they work."""
    count = sum(1 + cell.step.waits_behind for cell in cells)
    before = {node["metadata"]["name"] for node in await testbed.fleet.nodes()}
    await testbed.cloud.grow(count)

    async def joined() -> bool:
        new = [node for node in await testbed.fleet.nodes() if node["metadata"]["name"] not in before]
        return sum(is_ready(n) and testbed.agents.runs(n["metadata"]["name"]) for n in new) >= count

    await eventually(joined, f"{count} more nodes with agents")
    return [
        (node["metadata"]["name"], node["spec"]["providerID"].rpartition("/")[2])
        for node in await testbed.fleet.nodes()
        if node["metadata"]["name"] not in before
    ]


async def _place(testbed: Testbed, cell: Cell, nodes: list[Machine]) -> Caught:
    """Prepare the node of a cell and close its gate. Where it waits for a slot, another incident has that."""
    pool = cell.disturbance.name if cell.step.waits_behind else cell.step.pool
    subject = Subject(testbed, *nodes.pop(), pool=pool)
    await subject.put_to_work()
    first: Gate | None = None
    if cell.step.waits_behind:
        holder = Subject(testbed, *nodes.pop(), pool=pool)
        await holder.put_to_work()
        first = await PodGate.close(holder)
        await holder.start(cell.step.ladder)
        await eventually(first.reached, f"node {holder.node} with the only slot", CATCH_SECONDS)
    return Caught(cell, subject, await cell.step.close(subject), first)


async def _judge(one: Caught, began: float) -> None:
    """Let the incident go on, wait for its end, and compare."""
    cell = one.cell
    try:
        if cell.disturbance.ends_incident:  # by the disturbance alone, with what it waits for still held
            cell.outcome = await over(one.subject)
        await _let_go(one)
        cell.outcome = cell.outcome or await over(one.subject)
        cell.seconds = time.monotonic() - began
        cell.problems += await problems(one.subject, cell.expected, cell.outcome)
        if cell.outcome != "needs-operator":
            cell.problems += await slot_problems(one.subject)
    except StuckError as stuck:
        seen = await one.subject.status()
        cell.outcome, cell.seconds = cell.outcome or "stuck", time.monotonic() - began
        cell.problems.append(f"{stuck}; it shows {seen.phase if seen else 'no answer'}")
