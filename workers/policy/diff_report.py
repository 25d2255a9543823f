"""What `policy diff` prints: a table on a terminal, plain lines elsewhere, or JSON."""

import json
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpu_runbooks.workers.policy.fault_notation import in_notation
from gpu_runbooks.workers.policy.replayed import Example, Group, Report
from gpu_runbooks.workers.printable import printable
from gpu_runbooks.workers.terminal import say

SHOWN_CODES = 3


def print_report(report: Report, *, as_json: bool, out: Console) -> None:
    """Print what a replay came to."""
    if as_json:
        out.file.write(json.dumps(_content(report), indent=2) + "\n")
        return
    say(out, f"policy {report.old} -> {report.new}: {_headline(report)}")
    groups = sorted(report.groups.values(), key=lambda group: -group.faults)
    if groups and out.is_terminal:
        out.print(_table(groups))
    else:
        for group in groups:
            say(out, _line(group))
    if report.ungrouped:
        say(out, f"{report.ungrouped} more faults, of kinds beyond the {len(groups)} that are told apart")
    for text, faults in report.around.most_common():
        say(out, f"around them: {text} (its faults: {faults})")
    if report.examples:
        say(out, "first examples:")
    for example in report.examples:
        say(out, f"  {_example(example)}")


def _headline(report: Report) -> str:
    if not report.faults:
        return "there are no recorded faults"
    about = f"{_many(report.faults, 'recorded fault')} on {_many(len(report.nodes), 'node')}"
    if not report.different:
        return f"{about}, all treated the same"
    return f"{about}, {report.same} treated the same, {report.different} differently"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _table(groups: list[Group]) -> Table:
    table = Table(title="What would have been done differently", title_justify="left", box=SIMPLE)
    table.add_column("faults", justify="right")
    table.add_column("nodes", justify="right")
    for name in ("which", "before", "after", "changes"):
        table.add_column(name, overflow="fold")
    for group in groups:
        found = group.difference
        table.add_row(
            str(group.faults),
            str(len(group.nodes)),
            Text(printable(_codes(group))),
            Text(printable(found.before)),
            Text(printable(found.after), style="red" if found.after.startswith("refused") else ""),
            Text("\n".join(map(printable, found.changes))),
        )
    return table


def _line(group: Group) -> str:
    found = group.difference
    return (
        f"faults={group.faults} nodes={len(group.nodes)} which={_codes(group)} before=[{found.before}] "
        f"after=[{found.after}] changes=[{'; '.join(found.changes)}]"
    )


def _codes(group: Group) -> str:
    named = ", ".join(printable(code, 60) for code, _ in group.codes.most_common(SHOWN_CODES))
    return named + (", ..." if len(group.codes) > SHOWN_CODES else "")


def _example(example: Example) -> str:
    event = example.line
    return (
        f"{event.fault.first_seen:%Y-%m-%d %H:%M:%S} {printable(event.node)} {in_notation(event.fault)}: "
        f"{example.difference.before} -> {example.difference.after}"
    )


def _content(report: Report) -> dict[str, Any]:
    return {
        "old": report.old,
        "new": report.new,
        "faults": report.faults,
        "same": report.same,
        "different": report.different,
        "nodes": len(report.nodes),
        "differences": [
            {
                "faults": group.faults,
                "nodes": sorted(group.nodes),
                "which": dict(group.codes.most_common()),
                "before": group.difference.before,
                "after": group.difference.after,
                "changes": list(group.difference.changes),
            }
            for group in sorted(report.groups.values(), key=lambda group: -group.faults)
        ],
        "around": dict(report.around.most_common()),
        "examples": [
            {
                "recorded": each.line.model_dump(mode="json", exclude_defaults=True),
                "changes": each.difference.changes,
            }
            for each in report.examples
        ],
        "broken_lines": report.broken,
    }
