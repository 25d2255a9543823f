"""What a person reads of a budget in the Temporal UI, in Markdown. Pure."""

from datetime import datetime

from gpu_runbooks.activities.names import budget_id, fleet_id
from gpu_runbooks.workflows.commands import command
from gpu_runbooks.workflows.slots import Slots

MOST_LINES = 50
"""Incidents of a list that are shown; the query `state` has all."""


def details(slots: Slots, now: datetime) -> str:
    """Who has a slot, who waits, what stands in the way, and who ordered it."""
    most = slots.limit(slots.nodes) if slots.nodes is not None else None
    holders = len(slots.holders)
    held = f"**{holders} incident{' has' if holders == 1 else 's have'} a slot** of pool `{slots.pool}`"
    seen = (
        f"; {slots.used} of at most {most} nodes were unavailable at the last look"
        if most is not None
        else ""
    )
    parts = [f"{held}{seen}."]
    if stopped := slots.stopped(now):
        parts.append(f"**No disruption**: {stopped}")
    if slots.halts:
        halts = "its halt" if len(slots.halts) == 1 else f"all {len(slots.halts)} halts of this pool"
        parts.append(f"To end {halts}: {command(budget_id(slots.cluster, slots.pool), 'resume')}")
    if slots.brake.mode != "off":
        parts.append(f"See the details of workflow `{fleet_id(slots.cluster)}` for what stands everywhere.")
    if slots.brake.mode == "pace":
        parts.append(f"**One at a time** after storm {slots.brake.storm}: {slots.pace.in_words()}")
    if slots.override is not None:
        limit = slots.override
        count = limit.budget.max_unavailable or f"{limit.budget.percent} %"
        until = f"{limit.until:%Y-%m-%d %H:%M} UTC"
        parts.append(f"**Limit {count}** until {until}, by {limit.who()}: {limit.reason}")
    if slots.why and slots.waiters and slots.why != stopped:
        parts.append(f"**Nobody else gets a slot now**: {slots.why}")
    parts.append(_listed("Holders", [f"{each.node} ([incident]({each.incident}))" for each in slots.holders]))
    parts.append(_listed("Waiting", [each.node for each in slots.waiters]))
    if slots.missing:
        parts.append(_listed("Back, or to be replaced", [each.node for each in slots.missing]))
    if slots.notes:
        parts.append(_listed("Orders", slots.notes))
    return "\n\n".join(parts)


def _listed(title: str, lines: list[str]) -> str:
    shown = lines[:MOST_LINES] or ["none"]
    more = [f"and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    return "\n".join([title, *(f"- {line}" for line in [*shown, *more])])
