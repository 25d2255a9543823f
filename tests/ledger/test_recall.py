"""The ledger on a real Temporal server: what earlier incidents did to the same hardware."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from ledger.factories import repair
from temporalio.client import Client

from gpu_runbooks.activities.history.ledger import (
    LARGEST_HISTORY,
    recall_hardware,
    recorded_runs,
    retention,
)
from gpu_runbooks.activities.model.ledger import RecallHardware
from gpu_runbooks.activities.model.plan import RungName

RESET, REBOOT, REPLACE = RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE
NOW = datetime.now(UTC)
done = partial(repair, now=NOW)


def asking(*names, since=timedelta(hours=12), run_id="asking"):
    return RecallHardware(hardware=names, since=NOW - since, run_id=run_id)


async def recalled(server, request, count):
    """Visibility shows what was written a moment later."""
    async with asyncio.timeout(60):
        while len((history := await recall_hardware(server, request)).repairs) < count:
            await asyncio.sleep(0.05)
    return history


async def shown(server, names, runs):
    async with asyncio.timeout(60):
        while len([run async for run in recorded_runs(server, NOW - timedelta(hours=1), names)]) < runs:
            await asyncio.sleep(0.05)


async def test_repairs_of_the_same_hardware_are_found_by_any_of_its_names(server, leave):
    reset = done(RESET, ("GPU-11", "serial:11"), timedelta(hours=2), proven=False)
    replaced = done(REPLACE, ("i-1", "GPU-11", "serial:11", "board:1"), run_id="run-2")
    await leave([reset])
    await leave([replaced], outcome="replaced")
    await leave([done(REBOOT, ("i-9", "GPU-99", "serial:99"))])
    history = await recalled(server, asking("i-2", "serial:11", "GPU-other"), 2)
    # Named by what was asked for: the rest of the machine is not carried along.
    assert [(each.rung, each.proven, each.hardware, each.run_id) for each in history.repairs] == [
        (REPLACE, True, ("serial:11",), "run-2"),
        (RESET, False, ("serial:11",), "run-1"),
    ]
    assert history.repairs[0].ended == replaced.ended
    assert history.complete_since is None


async def test_repairs_of_open_terminated_and_continued_runs_count_once(server, leave):
    first, second = (
        done(RESET, ("GPU-21",), timedelta(hours=3)),
        done(REBOOT, ("GPU-21",), timedelta(hours=2)),
    )
    await leave([first, second], end="continue")
    await leave([done(REPLACE, ("GPU-21",), run_id="run-t")], end="terminate")
    await leave([done(REBOOT, ("GPU-21",), timedelta(minutes=3), run_id="run-o")], end="stay")
    history = await recalled(server, asking("GPU-21"), 4)
    assert [each.run_id for each in history.repairs] == ["run-o", "run-t", "run-1", "run-1"]


async def test_own_repairs_and_those_before_do_not_count(server, leave):
    await leave([done(RESET, ("GPU-31",), run_id="asking"), done(RESET, ("GPU-31",), timedelta(hours=13))])
    await leave([done(REBOOT, ("GPU-31",))])
    history = await recalled(server, asking("GPU-31"), 1)
    assert [each.rung for each in history.repairs] == [REBOOT]


async def test_same_incident_touched_it_but_repaired_something_else(server, leave):
    await leave([done(RESET, ("GPU-41",))], hardware=["GPU-41", "GPU-42"])
    await shown(server, ["GPU-42"], 1)
    assert (await recall_hardware(server, asking("GPU-42"))).repairs == ()


async def test_odd_memos_hide_nothing(server, leave):
    for raw in ("reset", {"rung": "reboot"}, [None, 7, {"rung": "explode"}]):
        await leave(hardware=["GPU-51"], raw=raw)
    await leave([done(REBOOT, ("GPU-51",))])
    await shown(server, ["GPU-51"], 4)
    assert [each.rung for each in (await recall_hardware(server, asking("GPU-51"))).repairs] == [REBOOT]


async def test_names_that_would_change_the_query_are_not_asked_for(server, leave):
    await leave([done(REBOOT, ("GPU-61",))])
    await shown(server, ["GPU-61"], 1)
    odd = ("x') OR RunbookHardware IN ('GPU-61", 'serial:"1', "a b", "it's")
    assert (await recall_hardware(server, asking(*odd))).repairs == ()
    assert len((await recall_hardware(server, asking(*odd, "GPU-61"))).repairs) == 1


async def test_a_hundred_names_are_one_question(server, leave):
    await leave([done(REBOOT, ("GPU-71",))])
    names = [f"GPU-{n:08d}-aaaa-bbbb-cccc-{n:012d}" for n in range(99)]
    assert len((await recalled(server, asking(*names, "GPU-71"), 1)).repairs) == 1


async def test_answer_fits_into_a_payload_and_says_how_far_it_reaches(server, leave):
    long = "node/prod/" + "n" * 200
    minutes = range(1, 61)
    repairs = [done(RESET, ("GPU-81",), timedelta(minutes=m), incident=long) for m in minutes]
    for part in (repairs[:20], repairs[20:40], repairs[40:]):
        await leave(part)
    await shown(server, ["GPU-81"], 3)
    history = await recall_hardware(server, asking("GPU-81"))
    assert history.repairs == tuple(repairs[: len(history.repairs)])
    assert 10 < len(history.repairs) < 60
    assert len(history.model_dump_json()) < LARGEST_HISTORY + 200
    assert history.complete_since == repairs[len(history.repairs)].ended


async def test_window_beyond_the_retention_is_said(server):
    kept = await retention(server)
    assert kept == timedelta(days=1)
    history = await recall_hardware(server, asking("GPU-91", since=timedelta(days=7)))
    assert history.complete_since is not None
    assert abs(history.complete_since - (datetime.now(UTC) - kept)) < timedelta(minutes=1)


async def test_a_server_that_is_away_is_no_empty_past(unused_tcp_port):
    gone = await Client.connect(f"127.0.0.1:{unused_tcp_port}", lazy=True)
    with pytest.raises(RuntimeError, match="connect"):
        await recall_hardware(gone, asking("GPU-1"))
