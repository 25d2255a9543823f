"""`gpu-runbooks policy diff`: recorded faults through two policies, and what differs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from gpu_runbooks.workers.policy.diff_report import print_report
from gpu_runbooks.workers.policy.policy_file import read_policy_file
from gpu_runbooks.workers.policy.recorded_faults import BrokenLineError, RecordedFault, read_lines
from gpu_runbooks.workers.policy.replay import Comparison
from gpu_runbooks.workers.policy.replayed import Report
from gpu_runbooks.workers.terminal import QUIET, say
from gpu_runbooks.workflows.policy.file import PolicyError, load_policy
from gpu_runbooks.workflows.policy.policy import Policy

SAME, DIFFERENT = 0, 2
"""Exit statuses."""

LOOK = 256
"""Lines between two looks at the clock."""


def diff(
    old: Path, new: Path, events: Path, *, skip_broken: bool, as_json: bool, out: Console, err: Console
) -> int:
    """Print the report; 0 where the policies do the same, 2 where they do not.

    Raises `PolicyError`, `OSError`, and `BrokenLineError` for a line that is no recorded fault.
    """
    policies = [_load(file) for file in (old, new)]
    comparison = Comparison(*policies)
    report = Report(old=policies[0].digest, new=policies[1].digest)
    with events.open("rb") as file, _watched(err, file, events.stat().st_size) as lines:
        for event in lines:
            if isinstance(event, BrokenLineError):
                if not skip_broken:
                    raise BrokenLineError(f"{events}, {event}; --skip-broken passes such lines over")
                report.broken += 1
                continue
            report.take(event, comparison.of(event))
    print_report(report, as_json=as_json, out=out)
    if report.broken:
        say(err, f"{report.broken} lines are no recorded faults and were passed over.")
    return DIFFERENT if report.different or report.around else SAME


def _load(file: Path) -> Policy:
    try:
        return load_policy(read_policy_file(file))
    except PolicyError as error:
        raise ValueError(f"{file}: {error}") from None


@contextmanager
def _watched(err: Console, file: BinaryIO, size: int) -> Iterator[Iterator[RecordedFault | BrokenLineError]]:
    """The lines of a file, with a bar on a terminal, and elsewhere a line every few seconds."""
    columns = (TextColumn("replaying"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=size or None)

        def lines() -> Iterator[RecordedFault | BrokenLineError]:
            said = time.monotonic()
            for number, line in enumerate(read_lines(file), start=1):
                yield line
                if number % LOOK:
                    continue
                if err.is_terminal:
                    bar.update(task, completed=file.tell())
                elif time.monotonic() - said > QUIET:
                    said = time.monotonic()
                    say(err, f"replayed {number} faults so far, {file.tell()} of {size} bytes ...")

        yield lines()
