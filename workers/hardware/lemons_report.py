"""`gpu-runbooks lemons`: which machines and GPUs were repaired how often, from Temporal's list."""

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text
from temporalio.service import RPCError

from gpu_runbooks.activities.history.ledger import RecordedRun, recorded_runs, retention
from gpu_runbooks.workers.hardware.lemons import Lemon, lemons
from gpu_runbooks.workers.temporal_connection import connect, unanswered
from gpu_runbooks.workers.terminal import progress
from gpu_runbooks.workflows.ledger import window_in_words

LONGEST_NAME = 40
"""Characters of a GPU's UUID: a name that can be copied is on one line."""

NARROWEST = 110
"""Columns of a terminal that shows the table whole; a narrower one gets lines, as a file does."""


async def report(since: timedelta, *, as_json: bool, out: Console, err: Console) -> None:
    """Print the report. Raises `RuntimeError` and `ValueError` where Temporal cannot be asked."""
    start = datetime.now(UTC) - since
    runs: list[RecordedRun] = []
    async with progress(err, lambda: f"reading incidents from Temporal, {len(runs)} runs so far"):
        client = await connect(lazy=True)
        try:
            kept = await retention(client)
            async for run in recorded_runs(client, start):
                runs.append(run)  # noqa: PERF401 - the progress counts them
        except (RPCError, RuntimeError) as error:
            raise RuntimeError(unanswered(client, error)) from error
    found = lemons(runs, start)
    known_since = max(start, datetime.now(UTC) - kept)
    if as_json:
        content = {
            "since": start.isoformat(),
            "complete_since": known_since.isoformat(),
            "hardware": [{**asdict(each), "last": each.last.isoformat()} for each in found],
        }
        out.file.write(json.dumps(content, indent=2) + "\n")
    elif out.is_terminal and not found:
        out.print(f"Nothing was repaired in {window_in_words(since)}.", highlight=False)
    elif out.is_terminal and out.width >= NARROWEST:
        out.print(_table(found, since), highlight=False)
    else:
        out.file.writelines(f"{_line(each)}\n" for each in found)
    if kept < since:
        err.print(
            f"The namespace {client.namespace} keeps closed incidents for {window_in_words(kept)}: what was "
            "repaired before is not in this list.",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
    unread = sum(run.repairs is None for run in runs)
    if unread:
        err.print(
            f"The memos of {unread} runs cannot be read: their repairs are not in this list.", highlight=False
        )


def _table(found: list[Lemon], since: timedelta) -> Table:
    table = Table(
        title=f"Hardware repaired in {window_in_words(since)}, most incidents first",
        title_justify="left",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.add_column("hardware", overflow="fold", min_width=LONGEST_NAME)
    for name in ("incidents", "resets", "reboots", "replaced", "unproven"):
        table.add_column(name, justify="right")
    table.add_column("last repair")
    table.add_column("outcome", overflow="fold")
    for each in found:
        counts = (each.incidents, each.resets, each.reboots, each.replacements)
        table.add_row(
            _hardware(each),
            *map(str, counts),
            Text(str(each.unproven), style="yellow" if each.unproven else ""),
            f"{each.last_rung}\n{each.last:%Y-%m-%d %H:%M}Z",
            Text(each.outcome),
        )
    return table


def _hardware(lemon: Lemon) -> Text:
    offends = "bold red" if lemon.came_back else "bold" if lemon.incidents > 1 else ""
    lines = Text("\n").join(Text(name, style=offends) for name in lemon.instances or lemon.gpus)
    lines.append(f"\n{lemon.nodes[0]}", style="dim")
    if lemon.came_back:
        lines.append("\ncame back under another instance id", style="red")
    for gpu, count in lemon.resets_of_gpus.items():
        if lemon.instances:
            lines.append(f"\n{gpu}", style="yellow" if count > 1 else "dim")
        lines.append(f"\nreset {count}x", style="yellow" if count > 1 else "dim")
    return lines


def _line(lemon: Lemon) -> str:
    resets = ",".join(f"{gpu}:{count}" for gpu, count in lemon.resets_of_gpus.items())
    return (
        f"{','.join(lemon.instances or lemon.gpus or lemon.serials)} incidents={lemon.incidents} "
        f"resets={lemon.resets} reboots={lemon.reboots} replacements={lemon.replacements} "
        f"unproven={lemon.unproven} last={lemon.last_rung}@{lemon.last:%Y-%m-%dT%H:%M:%SZ} "
        f"outcome={lemon.outcome.replace(' ', '')} incident={lemon.last_incident} "
        f"gpus={','.join(lemon.gpus)} serials={','.join(lemon.serials)} boards={','.join(lemon.boards)} "
        f"gpu_resets={resets}"
    )
