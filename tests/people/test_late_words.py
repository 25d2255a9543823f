"""Words that come while the incident looks, before the act that they are to stop."""

import asyncio

import pytest
from incident.conftest import running_workers, until
from incident.test_repairs import policy
from incident.test_server import start, world
from people.test_updates import WORD, seen_when

from gpu_runbooks.activities.model.slot import Stop

REPAIRED = ("reset", "reboot", "replace")
GATES = {
    "look": ("reboot", "observe", {}),
    "state of the instance": ("reboot", "inspect", {}),
    "GPU services": ("reset", "pause paused", {"pauses": ["paused", "paused"]}),
    "launch of the successor": ("replace", "launch", {}),
}


async def pause(handle) -> str:
    await handle.execute_update("pause", WORD)
    return "paused"


async def stop(handle) -> str:
    seen = await handle.query("status")
    await handle.signal("disruption_stopped", Stop(run_id=seen["run_id"], why="halted by ana"))
    return "stopped"


async def abort(handle) -> str:
    await handle.execute_update("abort", WORD)
    return "closed"


@pytest.mark.parametrize(
    ("gate", "word"),
    [
        ("look", pause),
        ("look", stop),
        ("state of the instance", stop),
        ("state of the instance", abort),
        ("GPU services", pause),
        ("launch of the successor", pause),
    ],
)
async def test_a_word_before_the_act_stops_it(server, gate, word):
    (ladder, call, script), opened = GATES[gate], asyncio.Event()
    name = f"late-{word.__name__}-{call.split()[0]}"
    node = world(name, **script)

    def close_gate(called: str) -> None:
        if called == "drain":
            node.pause[call] = opened

    node.on_call = close_gate
    changes = {"repair": policy(launch_first=call == "launch")}
    async with running_workers(server, node):
        handle = await start(server, name, ladder, **changes)
        await until(lambda: "drain" in node.calls and node.calls[-1] == call)
        phase = await word(handle)
        opened.set()
        await seen_when(handle, phase)
        assert not {*REPAIRED} & {*node.acts}
        assert not node.paused, "GPU services run again"
        await (handle.result() if phase == "closed" else handle.terminate())


async def test_a_pause_before_the_return_holds_the_node_back(server):
    node, opened = world("late-return"), asyncio.Event()

    def close_gate(called: str) -> None:
        if called == "test_pod":
            node.pause["observe"] = opened

    node.on_call = close_gate
    async with running_workers(server, node):
        handle = await start(server, "late-return")
        await until(lambda: "observe" in node.pause and node.calls[-1] == "observe")
        await pause(handle)
        opened.set()
        await seen_when(handle, "paused")
        assert node.node_has_block()
        assert "unblock" not in node.acts
        await handle.execute_update("resume", WORD)
        assert (await handle.result()).outcome == "returned"
