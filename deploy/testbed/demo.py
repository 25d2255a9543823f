"""`make demo`: five faults through the real Alertmanager, repaired while a worker is killed."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live

from testbed import demo_view, running
from testbed.detach import Starter
from testbed.incidents import Incident, Incidents
from testbed.progress import Progress
from testbed.run_directory import run_directory
from testbed.scenarios import SCENARIOS, Scenario, fire
from testbed.testbed import CLUSTER, Testbed

LIMIT_SECONDS = 180.0
"""The demo gives up then: an incident that is still open has failed."""

LOOK_SECONDS = 0.5

Rows = Sequence[tuple[Scenario, Incident]]


async def demo(starter: Starter, *, keep: bool) -> int:
    """Run the demo; returns 0 only if all five faults ended as they should."""
    console = Console()
    with run_directory(*([running.file_of(os.getpid())] if keep else [])) as directory:
        console.print("Starting the testbed: every part is real but the hardware.", highlight=False)
        async with Testbed.start(directory, progress=Progress(console)) as testbed:
            status, rows = await _show(testbed, console)
            _print_how_to_look(testbed, rows, console, stays=keep)
            if not keep:
                return status
            running.announce(directory, testbed.addresses())
            _print_how_to_go_on(testbed, console, await _free_node(testbed))
            starter.release(status, directory / "logs" / "testbed.log")
            await asyncio.Event().wait()
    return status


async def _show(testbed: Testbed, console: Console) -> tuple[int, Rows]:
    nodes = [node["metadata"]["name"] for node in await testbed.fleet.nodes()][: len(SCENARIOS)]
    console.print(f"Temporal UI: {testbed.temporal.ui}/namespaces/default/workflows", highlight=False)
    with Progress(console).step(f"{len(SCENARIOS)} faults in the hardware, and their alerts"):
        for scenario, node in zip(SCENARIOS, nodes, strict=True):
            await scenario.prepare(testbed, node)
        before = await _untouched(testbed, nodes)
        for scenario, node in zip(SCENARIOS, nodes, strict=True):
            await fire(testbed, scenario, node)
    incidents = Incidents(testbed.temporal.client, CLUSTER, nodes)
    rows = [(scenario, incidents.by_node[node]) for scenario, node in zip(SCENARIOS, nodes, strict=True)]
    await _follow(testbed, incidents, rows, console)
    console.print(demo_view.summary(rows))
    problems = await _problems(testbed, rows, before)
    for problem in problems:
        console.print(f"WRONG: {problem}", style="bold red", highlight=False)
    return (1 if problems else 0), rows


async def _follow(testbed: Testbed, incidents: Incidents, rows: Rows, console: Console) -> None:
    """Show the incidents until they are closed, and kill the controller in the middle."""
    note = ["a line through an act: it had no proof, so the next rung follows"]

    def tell(line: str) -> None:
        note.append(line)
        if not console.is_terminal:
            console.print(line, highlight=False, soft_wrap=True)

    killing = asyncio.create_task(_kill_controller(testbed, rows, tell))
    view = Live(console=console, refresh_per_second=4) if console.is_terminal else nullcontext()
    said: dict[str, str] = {}
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            with view as shown:
                while any(incident.open for _, incident in rows) or not killing.done():
                    await incidents.look()
                    if shown is not None:
                        shown.update(demo_view.live(rows, "\n".join(note)))
                    else:
                        _say_changes(rows, said, console)
                    await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        console.print(f"gave up after {LIMIT_SECONDS:.0f} s", style="bold red")
    finally:
        killing.cancel()


async def _kill_controller(testbed: Testbed, rows: Rows, note: Callable[[str], None]) -> None:
    """SIGKILL the worker that runs the workflows while incidents are in mid-ladder; start it again."""
    while sum("drain" in incident.acts for _, incident in rows) < 2:
        await asyncio.sleep(LOOK_SECONDS)
    await testbed.product.kill("controller")
    note("the controller was killed (SIGKILL) in mid-ladder; incidents wait in Temporal")
    await asyncio.sleep(3)
    await testbed.product.start("controller")
    note("the controller was started again; incidents go on where they were")


def _say_changes(rows: Rows, said: dict[str, str], console: Console) -> None:
    for scenario, incident in rows:
        state = f"{incident.status.phase if incident.status else ''} {incident.acts}"
        if said.get(incident.node) != state:
            said[incident.node] = state
            console.print(demo_view.plain(scenario, incident), highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Footprint:
    """All that a runbook could change on a node: spec, metadata of people, and the pods."""

    node: tuple[object, ...]
    pods: frozenset[str]

    def stands_in(self, later: "Footprint") -> bool:
        """Whether nothing was changed or evicted since. Pods that left other nodes may have come."""
        return self.node == later.node and self.pods <= later.pods


async def _untouched(testbed: Testbed, nodes: Sequence[str]) -> dict[str, Footprint]:
    return {node: await _footprint(testbed, node) for node in nodes}


async def _footprint(testbed: Testbed, node: str) -> Footprint:
    subject = await testbed.fleet.node(node)
    metadata = subject["metadata"]
    return Footprint(
        node=(subject["spec"], metadata.get("annotations"), metadata["labels"]),
        pods=frozenset(pod["metadata"]["uid"] for pod in await testbed.fleet.pods_on(node)),
    )


async def _problems(testbed: Testbed, rows: Rows, before: dict[str, Footprint]) -> list[str]:
    """What did not end as it should."""
    problems = [
        f"{incident.node}: {incident.outcome or 'still open'} by {incident.acts}, "
        f"not {scenario.outcome} by {list(scenario.acts)}"
        for scenario, incident in rows
        if not demo_view.ended_right(scenario, incident)
    ]
    for scenario, incident in rows:
        after = await _footprint(testbed, incident.node) if scenario.outcome == "notified" else None
        if after is not None and not before[incident.node].stands_in(after):
            problems.append(f"{incident.node} was touched, though the application was at fault")
    for action, expected in (("RebootInstances", 3), ("TerminateInstanceInAutoScalingGroup", 1)):
        calls = len(testbed.cloud.calls(action))
        if calls != expected:
            problems.append(f"{calls} calls of {action} instead of {expected}")
    return problems


def _print_how_to_look(testbed: Testbed, rows: Rows, console: Console, *, stays: bool) -> None:
    deepest = max((incident for _, incident in rows), key=lambda incident: len(incident.acts))
    address = f"--address {testbed.temporal.address}"
    when = "" if stays else " (with `make demo KEEP=1`, which leaves everything running)"
    console.print(f"\nOne incident, as an auditor sees it{when}:", highlight=False, soft_wrap=True)
    for command in (
        f"{testbed.temporal.ui}/namespaces/default/workflows/{deepest.workflow_id.replace('/', '%2F')}",
        f"temporal workflow metadata {address} --workflow-id {deepest.workflow_id}",
        f"temporal workflow query {address} --workflow-id {deepest.workflow_id} --type status",
        f"temporal workflow show {address} --workflow-id {deepest.workflow_id}",
    ):
        console.print(f"  {command}", highlight=False, soft_wrap=True)


async def _free_node(testbed: Testbed) -> str:
    """Give every node that has none an agent; returns the last node, which no scenario used."""
    nodes = [str(node["metadata"]["name"]) for node in await testbed.fleet.nodes()]
    await asyncio.gather(*(testbed.agents.start(node) for node in nodes if not testbed.agents.runs(node)))
    return nodes[-1]


def _print_how_to_go_on(testbed: Testbed, console: Console, node: str) -> None:
    console.print("\nEverything goes on running until `make testbed-down`.", highlight=False)
    for what, address in testbed.addresses().items():
        console.print(f"  {what}: {address}", highlight=False, soft_wrap=True)
    console.print("Start a runbook by hand on a healthy node:", highlight=False)
    given = f'{{"node": "{node}", "reason": "try it", "operator": "{os.environ.get("USER", "me")}"}}'
    console.print(
        f"  temporal workflow start --address {testbed.temporal.address} --type NodeRemediation "
        "--task-queue remediation --fail-existing "
        f"--workflow-id node/{CLUSTER}/{node} --input '{given}'",
        highlight=False,
        soft_wrap=True,
    )
