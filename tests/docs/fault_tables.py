"""The tables of docs/faults.md, made from the tables that are built in.

`python tests/docs/fault_tables.py` writes them anew, between the marks that the page has for each.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path

from gpu_runbooks.workflows.policy import catalogue
from gpu_runbooks.workflows.policy.built_in import LADDER_OF
from gpu_runbooks.workflows.policy.condition_reasons import known_reasons
from gpu_runbooks.workflows.policy.known_codes import (
    aws_events,
    dcgm_codes,
    kernel_log_codes,
    recovery_actions,
    sxids,
)
from gpu_runbooks.workflows.policy.node_conditions import UNKNOWN, built_in_statuses, conditions
from gpu_runbooks.workflows.policy.repeats import repeat_rules
from gpu_runbooks.workflows.policy.rows import Entry, FirstRung

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"

CONTESTED = (13, 31, 38, 44, 48, 63, 64, 69, 74, 79, 94, 95, 109, 119, 120, 121, 140, 142)
"""Xids about which the sources differ most."""


def tables() -> dict[str, str]:
    """Every table by the name of its mark."""
    return {
        "xids": _xids(),
        "contested": _contested(),
        "sxids": _by_ladder(sxids(), "SXids", numbers=True, groups=True),
        "recovery": _each(recovery_actions(), "action"),
        "dcgm": _each(dcgm_codes(), "code"),
        "conditions": _conditions(),
        "reasons": _by_ladder(known_reasons(), "reasons"),
        "kernel-log": _by_ladder(kernel_log_codes(), "codes"),
        "aws": _by_ladder(aws_events(), "events"),
        "repeats": _repeats(),
    }


def written_page(page: str) -> str:
    """The page with its tables as they are to be."""
    for name, table in tables().items():
        mark = re.compile(rf"(<!-- table: {name} -->\n\n).*?(<!-- end -->)", re.DOTALL)
        page, found = mark.subn(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", page)
        if found != 1:
            raise ValueError(f"{PAGE.name} has {found} marks for the table {name}")
    return page


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *map(list, rows)]
    return "".join(
        f"| {' | '.join(line)} |\n".replace("| --- ", "|---").replace("--- |", "---|") for line in lines
    )


def _spans(codes: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for code in sorted(codes):
        if spans and code == spans[-1][1] + 1:
            spans[-1][1] = code
        else:
            spans.append([code, code])
    parts = []
    for first, last in spans:
        parts += [f"{first}-{last}"] if last > first + 1 else [str(code) for code in range(first, last + 1)]
    return ", ".join(parts)


def _xids() -> str:
    groups: dict[str, list[int]] = {}
    for first in reversed(FirstRung):
        for code, xid in catalogue.xids().items():
            if xid.first_rung is first:
                name = (
                    "`notify`" if first is FirstRung.NONE and xid.origin == "app" else f"`{LADDER_OF[first]}`"
                )
                groups.setdefault(name, []).append(code)
    return _table(("ladder", "Xids"), ((name, _spans(codes)) for name, codes in groups.items()))


def _contested() -> str:
    rows = []
    for code in CONTESTED:
        xid = catalogue.xids()[code]
        others = (xid.nvidia, xid.eks_agent, xid.gpud, xid.nvsentinel)
        ours = "`notify`" if xid.origin == "app" else f"`{LADDER_OF[xid.first_rung]}`"
        rows.append((str(code), *others, ours, xid.source.partition("; ")[2]))
    return _table(("Xid", "NVIDIA", "EKS agent", "gpud", "NVSentinel", "here", "and"), rows)


def _by_ladder(
    entries: Mapping[str, Entry], head: str, *, numbers: bool = False, groups: bool = False
) -> str:
    found: dict[tuple[str, str], list[str]] = {}
    for first in reversed(FirstRung):
        for code, entry in entries.items():
            if entry.first_rung is first:
                found.setdefault((LADDER_OF[first], entry.group), []).append(code)
    rows = []
    for (ladder, group), codes in found.items():
        shown = _spans(map(int, codes)) if numbers else ", ".join(f"`{code}`" for code in codes)
        rows.append((f"`{ladder}`", group, shown))
    return _table(("ladder", "group" if groups else "of", head), rows)


def _each(entries: Mapping[str, Entry], head: str) -> str:
    return _table(
        (head, "meaning", "ladder", "sources"),
        (
            (code, entry.meaning, f"`{LADDER_OF[entry.first_rung]}`", entry.source)
            for code, entry in entries.items()
        ),
    )


def _conditions() -> str:
    rows = []
    for (kind, status), row in conditions().items():
        if row.first_rung is FirstRung.NONE:
            continue
        ignored = UNKNOWN not in built_in_statuses(kind)
        unknown = "bad" if status == UNKNOWN else "ignored" if ignored else "a row of its own"
        rows.append((f"`{kind}`", status, unknown, _words(row.toleration), f"`{LADDER_OF[row.first_rung]}`"))
    return _table(("type", "bad", "Unknown is", "toleration", "ladder"), rows)


def _words(duration: timedelta) -> str:
    minutes, seconds = divmod(int(duration.total_seconds()), 60)
    return (
        f"{minutes}m"
        if minutes and not seconds
        else f"{seconds}s"
        if not minutes
        else f"{minutes}m{seconds}s"
    )


def _repeats() -> str:
    return _table(
        ("rule", "Xid", "times", "within", "on one", "ladder"),
        (
            (
                f"`{rule.rule}`",
                rule.code,
                str(rule.times),
                f"{rule.hours}h",
                rule.by,
                f"`{LADDER_OF[rule.first_rung]}`",
            )
            for rule in repeat_rules().values()
        ),
    )


if __name__ == "__main__":
    PAGE.write_text(written_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
