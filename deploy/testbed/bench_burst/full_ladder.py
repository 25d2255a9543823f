"""What one full ladder costs: block, drain, reset, reboot, replacement, validation and return of one node."""

import asyncio
from pathlib import Path

from gpu_runbooks.activities.names import incident_id
from gpu_runbooks.workflows.audit import Result, Status
from testbed.bench_burst.actions import Cost, cost_of
from testbed.processes import PartFailedError
from testbed.progress import Progress
from testbed.scenarios import SCENARIOS, fire
from testbed.testbed import CLUSTER, Testbed

FULL = next(
    scenario for scenario in SCENARIOS if {"reset_gpu", "reboot", "replace", "return"} <= set(scenario.acts)
)
"""A node that nothing but a replacement cures: each repair below it is done first, and proven useless."""

PATIENCE = 300.0
LOOK_SECONDS = 0.5


async def climb_full_ladder(directory: Path, progress: Progress) -> Cost:
    """Take one node of a testbed up the whole ladder and count.

    Raises `PartFailedError` where the incident came to another end.
    """
    async with Testbed.start(directory, nodes=2, workloads=False, progress=progress) as testbed:
        node = (await testbed.fleet.nodes())[0]["metadata"]["name"]
        with progress.step(f"Ladder of one node: {' → '.join(FULL.acts)}"):
            await FULL.prepare(testbed, node)
            await fire(testbed, FULL, node)
            handle = testbed.temporal.client.get_workflow_handle(
                incident_id(CLUSTER, node), result_type=Result
            )
            try:
                async with asyncio.timeout(PATIENCE):
                    while not [
                        run
                        async for run in testbed.temporal.client.list_workflows(f"WorkflowId = '{handle.id}'")
                    ]:
                        await asyncio.sleep(LOOK_SECONDS)
                    result = await handle.result()
            except TimeoutError:
                raise PartFailedError(f"{handle.id} has not ended after {PATIENCE:.0f} s") from None
            status = await handle.query("status", result_type=Status)
        acts = tuple(("" if act.proven else "!") + act.rung for act in status.acts)
        if (result.outcome, acts) != (FULL.outcome, FULL.acts):
            raise PartFailedError(f"{handle.id} ended as {result.outcome} by {', '.join(acts)}")
        return cost_of((await handle.fetch_history()).events)
