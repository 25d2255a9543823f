"""Record the histories that later versions must still replay: `make histories`.

A history that is committed stays: it stands for incidents that were open when a new version was deployed.
Record anew only together with `workflow.patched`, or under new names.
"""

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path

from incident.conftest import dev_server, running_workers
from incident.jobs import job_report, start_job
from incident.test_server import start, world

from gpu_runbooks.activities.names import REMEDIATION_QUEUE

HISTORIES = Path(__file__).with_name("histories")

RECORDED = {
    "reset": ("reset", {}),
    "application": ("none", {}),
    "dead-agent": ("reset", {"resets": ["not_started"]}),
    "whole-ladder": ("reset", {"resets": ["failed"], "reboots": ["unproven"]}),
    "unknown-reboot": ("reboot", {"reboots": ["unknown"]}),
    "needs-operator": ("replace", {"replacements": ["refused"]}),
    "restart": ("restart", {}),
}
"""Name of each history, the ladder, and what the world does."""

BY_HAND = ("DrainNode", "ValidateNode", "ReturnNode", "ResetGpu", "RebootNode", "ReplaceNode")
"""Recorded one after the other on one node."""


async def record() -> None:
    HISTORIES.mkdir(exist_ok=True)
    async with dev_server() as client:
        for name, (ladder, script) in RECORDED.items():
            node = world(name, **script)
            async with running_workers(client, node):
                handle = await start(client, name, ladder)
                if name == "needs-operator":
                    await _abort_when_asked(handle)
                await handle.result()
            history = await handle.fetch_history()
            save(f"incident-{name}", history.to_json())
            sys.stdout.write(f"{name}: {len(history.events)} events\n")
        node = world("by-hand")
        async with running_workers(client, node):
            for runbook in BY_HAND:
                handle = await client.start_workflow(
                    runbook,
                    {"node": "by-hand", "reason": "recorded", "operator": "ana"},
                    id="node/test/by-hand",
                    task_queue=REMEDIATION_QUEUE,
                )
                await handle.result()
                save(f"by-hand-{runbook}", (await handle.fetch_history()).to_json())
        world_of_job = world("job")
        async with running_workers(client, world_of_job):
            handle = await start_job(client, job_report(["a", "b"], quiet=timedelta(seconds=1)))
            await handle.result()
        save("job", (await handle.fetch_history()).to_json())
        budget = client.get_workflow_handle("budget/test/pool-reset")
        save("budget", (await budget.fetch_history()).to_json())


def save(name: str, recorded: str) -> None:
    """Write a history without what names the machine that recorded it; replaying needs none of it."""
    (HISTORIES / f"{name}.json").write_text(json.dumps(_anonymous(json.loads(recorded)), indent=1) + "\n")


def _anonymous(value):
    if isinstance(value, list):
        return [_anonymous(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: "recorder" if key == "identity" else _anonymous(item)
        for key, item in value.items()
        if key != "stackTrace"
    }


async def _abort_when_asked(handle) -> None:
    async with asyncio.timeout(60):
        while (await handle.query("status"))["phase"] != "needs-operator":
            await asyncio.sleep(0.05)
    await handle.execute_update("abort", {"operator": "ana", "reason": "recorded"})


if __name__ == "__main__":
    asyncio.run(record())
