"""The report on hardware: how repairs become machines, and what it prints from a real server."""

import asyncio
import io
import json
import logging
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from ledger.factories import NOW, repair
from policy.factories import SMALLEST
from rich.console import Console
from temporalio.client import Client

from gpu_runbooks.activities.history.ledger import RecordedRun
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workers.hardware.lemons import lemons
from gpu_runbooks.workers.hardware.lemons_report import report
from gpu_runbooks.workers.hardware.retention import warn_of_short_retention
from gpu_runbooks.workflows.policy.file import load_policy

RESET, REBOOT, REPLACE = RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def run(*repairs, status="completed", outcome="returned", phase="closed", started=NOW):
    closed = None if status == "running" else started + HOUR
    return RecordedRun("node/prod/gpu-a1", "run", status, started, closed, outcome, phase, repairs)


def test_machine_that_came_back_is_one():
    found = lemons(
        [
            run(repair(RESET, ("GPU-a", "serial:1"), 9 * DAY, run_id="1", proven=False)),
            run(
                repair(REBOOT, ("i-1", "GPU-a", "serial:1", "GPU-b", "board:7"), 8 * DAY, run_id="2"),
                repair(REPLACE, ("i-1", "GPU-a", "serial:1", "GPU-b", "board:7"), 7 * DAY, run_id="2"),
            ),
            run(
                repair(REBOOT, ("i-2", "GPU-c", "board:7"), DAY, run_id="3"), outcome="", status="terminated"
            ),
            run(repair(REBOOT, ("i-8", "GPU-x", "board:9"), HOUR, run_id="4")),
        ],
        NOW - 30 * DAY,
    )
    first, second = found
    assert first.instances == ("i-2", "i-1")
    assert first.came_back
    assert (first.incidents, first.resets, first.reboots, first.replacements, first.unproven) == (
        3,
        1,
        2,
        1,
        1,
    )
    assert (first.gpus, first.serials, first.boards) == (("GPU-c", "GPU-a", "GPU-b"), ("1",), ("7",))
    assert first.resets_of_gpus == {"GPU-a": 1}
    assert (first.last, first.last_rung, first.outcome) == (NOW - DAY, REBOOT, "terminated")
    assert (second.instances, second.incidents, second.came_back) == (("i-8",), 1, False)


def test_groups_join_when_their_link_comes_last():
    found = lemons(
        [
            run(repair(RESET, ("GPU-a",), 3 * HOUR, run_id="1")),
            run(repair(RESET, ("GPU-b",), 2 * HOUR, run_id="2")),
            run(repair(REBOOT, ("i-1", "GPU-a", "GPU-b"), HOUR, run_id="3")),
        ],
        NOW - DAY,
    )
    assert [each.incidents for each in found] == [3]


def test_order_is_by_incidents_then_repairs_then_time():
    found = lemons(
        [
            run(repair(REBOOT, ("i-late",), HOUR, run_id="1")),
            run(repair(REBOOT, ("i-early",), 3 * HOUR, run_id="2")),
            run(
                repair(REBOOT, ("i-two",), 4 * HOUR, run_id="3"), repair(REPLACE, ("i-two",), DAY, run_id="3")
            ),
            run(
                repair(REBOOT, ("i-often",), DAY, run_id="4"),
                repair(REBOOT, ("i-often",), 2 * DAY, run_id="5"),
            ),
        ],
        NOW - 3 * DAY,
    )
    assert [each.instances[0] for each in found] == ["i-often", "i-two", "i-late", "i-early"]


def test_repair_of_an_incident_that_continued_counts_once_with_its_end():
    done = repair(REBOOT, ("i-1",), HOUR)
    (lemon,) = lemons(
        [
            run(done, status="running", outcome="", phase="needs-operator", started=NOW),
            run(done, status="continued_as_new", outcome="", started=NOW - DAY),
        ],
        NOW - DAY,
    )
    assert (lemon.reboots, lemon.outcome) == (1, "open, needs-operator")


def test_what_is_older_or_unreadable_is_left_out():
    unread = RecordedRun("x", "run", "completed", NOW, NOW, "returned", "closed", None)
    assert lemons([unread, run(repair(REBOOT, ("i-1",), 2 * DAY)), run()], NOW - DAY) == []


def test_nothing_in_the_report_steers_a_terminal():
    (lemon,) = lemons([run(repair(REBOOT, ("i-1", "\x1b[2J"), HOUR, incident="node/\x1b]0;x/n"))], NOW - DAY)
    assert (lemon.instances, lemon.last_incident) == (("i-1",), "node/?]0;x/n")


@pytest.fixture
async def reporting(server, monkeypatch):
    """The report as the command prints it: standard output and error."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.service_client.config.target_host)

    async def said(*, terminal=False, width=120, as_json=False, since=12 * HOUR):
        out, err = (
            Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system="standard")
            for _ in range(2)
        )
        await report(since, as_json=as_json, out=out, err=err)
        return out.file.getvalue(), err.file.getvalue()

    return said


@pytest.fixture(scope="module")
async def past(server, leave):
    """One machine that came back, and one GPU."""
    done = partial(repair, now=datetime.now(UTC))
    machine = ("GPU-r1", "serial:51", "board:5")
    await leave([done(RESET, ("GPU-r1", "serial:51"), 3 * HOUR, run_id="r1")])
    await leave([done(REPLACE, ("i-r1", *machine), 2 * HOUR, run_id="r2")], outcome="replaced")
    await leave([done(REBOOT, ("i-r2", *machine), HOUR, run_id="r3", proven=False)], outcome="aborted")
    await leave([done(RESET, ("GPU-r9",), HOUR, run_id="r4")])
    async with asyncio.timeout(60):
        while await server.count_workflows("RunbookHardware IN ('GPU-r1', 'GPU-r9')") and (
            (await server.count_workflows("RunbookOutcome IS NOT NULL")).count < 4
        ):
            await asyncio.sleep(0.05)


async def test_plain_lines_where_nobody_looks(reporting, past):
    out, err = await reporting()
    first, second = out.splitlines()
    assert first.startswith("i-r2,i-r1 incidents=3 resets=1 reboots=1 replacements=1 unproven=1 last=reboot@")
    assert "outcome=aborted" in first
    assert "serials=51 boards=5 gpu_resets=GPU-r1:1" in first
    assert second.startswith("GPU-r9 incidents=1 resets=1 ")
    assert err == ""


async def test_table_in_a_terminal(reporting, past):
    out, _ = await reporting(terminal=True)
    assert "\x1b[1;31mi-r2" in out
    assert "came back under another instance id" in out
    assert "Hardware repaired in 12 hours, most incidents first" in out


async def test_a_narrow_terminal_loses_no_column(reporting, past):
    out, _ = await reporting(terminal=True, width=80)
    assert out == (await reporting())[0]


async def test_json_has_all(reporting, past):
    out, _ = await reporting(as_json=True)
    content = json.loads(out)
    assert content["since"] == content["complete_since"]
    assert [each["instances"] for each in content["hardware"]] == [["i-r2", "i-r1"], []]
    assert content["hardware"][0]["resets_of_gpus"] == {"GPU-r1": 1}


async def test_retention_that_is_too_short_is_said(reporting, past):
    out, err = await reporting(since=30 * DAY)
    assert len(out.splitlines()) == 2
    assert err.startswith(
        "The namespace default keeps closed incidents for 24 hours: what was repaired before"
    )


async def test_nothing_was_repaired(reporting, past):
    out, _ = await reporting(terminal=True, since=timedelta(minutes=5))
    assert out == "Nothing was repaired in 5 minutes.\n"


async def test_temporal_is_away(monkeypatch, unused_tcp_port):
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{unused_tcp_port}")
    with pytest.raises(
        RuntimeError, match=rf"Temporal at 127.0.0.1:{unused_tcp_port}, namespace default, cannot"
    ):
        await report(DAY, as_json=False, out=Console(file=io.StringIO()), err=Console(file=io.StringIO()))


async def test_namespace_that_is_not_there(server, monkeypatch):
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.service_client.config.target_host)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "other")
    with pytest.raises(RuntimeError, match=r"namespace other, refused \(NOT_FOUND\)"):
        await report(DAY, as_json=False, out=Console(file=io.StringIO()), err=Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("window", "warning"),
    [
        ("24h", ""),
        (
            "7d",
            (
                "pool p5 looks back 7 days for repairs of the same hardware, and the Temporal namespace "
                "default keeps closed incidents for 24 hours only"
            ),
        ),
    ],
)
async def test_window_beyond_the_retention_is_warned_of(server, caplog, window, warning):
    with caplog.at_level(logging.WARNING):
        await warn_of_short_retention(
            server, load_policy(f"{SMALLEST}repair: {{repeats: {{window: {window}}}}}")
        )
    assert (warning in caplog.text) if warning else (caplog.text == "")


async def test_retention_that_cannot_be_read_stops_nothing(server, caplog):
    other = Client(server.service_client, namespace="other")
    await warn_of_short_retention(other, load_policy(SMALLEST))
    assert "retention of the Temporal namespace other cannot be read" in caplog.text
