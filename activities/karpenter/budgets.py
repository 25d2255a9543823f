"""Whether a NodePool's own disruption budgets permit that one more of its nodes goes. No I/O.

Karpenter's rules, kubernetes-sigs/karpenter v1.15.0: pkg/apis/v1/nodepool.go (`GetAllowedDisruptions`,
`IsActive`) and pkg/controllers/disruption/helpers.go (`NodePoolStatsFromNodes`). A replacement of ours counts
as Karpenter's own repair does, reason `Unhealthy`: a node that is merely not Ready takes nothing of the
budget. Karpenter's look and ours can fall together, so for a moment one node more than permitted may go.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from croniter import croniter

from gpu_runbooks.activities.karpenter.objects import (
    DISRUPTED_TAINT,
    INITIALIZED_LABEL,
    condition_of,
    is_going,
    labels_of,
)
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.nodes.node import taints_of

REASON = "Unhealthy"

DEFAULT = [{"nodes": "10%"}]
"""What a NodePool without budgets has. An empty list limits nothing."""

SHOWN = 3
"""Nodes that an obstacle names."""

DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
FIELD = re.compile(r"[A-Za-z0-9*?/,-]+")
DAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
DESCRIPTORS = frozenset({"@annually", "@yearly", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})


@dataclass(frozen=True)
class Usage:
    """Nodes of a NodePool as its budgets count them."""

    nodes: int
    """Those that have been initialized and whose machine is not gone yet."""
    disrupted: tuple[str, ...]
    """Names of those that go or reboot now, without the node in question."""


def obstacle(pool: Object, usage: Usage, now: datetime) -> str:
    """The budget that does not permit one more node now, in words; empty where all permit it."""
    budgets = objects_in(((pool.get("spec") or {}).get("disruption") or {}).get("budgets", DEFAULT))
    limits = [(allowed(budget, usage.nodes, now), number) for number, budget in enumerate(budgets)]
    for limit, number in limits:
        if limit is None:
            return (
                f"{_named(pool, number, budgets[number])} has a schedule that Karpenter cannot read, and so "
                "Karpenter disrupts no node of this NodePool: correct the schedule"
            )
    applied = [(limit, number) for limit, number in limits if limit is not None and _applies(budgets[number])]
    tightest, number = min(applied, default=(usage.nodes + 1, 0))
    if tightest > len(usage.disrupted):
        return ""
    going = ", ".join(usage.disrupted[:SHOWN]) + (", ..." if len(usage.disrupted) > SHOWN else "")
    return (
        f"{_named(pool, number, budgets[number])} permits {tightest} of {usage.nodes} nodes at once, and "
        + (f"{len(usage.disrupted)} are disrupted now: {going}" if usage.disrupted else "so none now")
    )


def usage_of(claims: Iterable[Object], nodes: Iterable[Object], uid: str) -> Usage:
    """Count the NodeClaims of one NodePool, by their Nodes; `uid` is the NodeClaim in question."""
    by_provider_id = {(node.get("spec") or {}).get("providerID"): node for node in nodes}
    counted = 0
    disrupted = []
    for claim in claims:
        status = claim.get("status") or {}
        node = by_provider_id.get(status.get("providerID")) if status.get("providerID") else None
        rebooting = condition_of(claim, "Rebooting").get("status") == "True"
        if node is None or not (is_initialized(node) or rebooting):
            continue
        if condition_of(claim, "InstanceTerminating").get("status") == "True":
            continue
        counted += 1
        chosen = any(taint.get("key") == DISRUPTED_TAINT for taint in taints_of(node))
        if claim["metadata"]["uid"] != uid and (is_going(claim) or rebooting or chosen):
            disrupted.append(node["metadata"]["name"])
    return Usage(counted, tuple(sorted(disrupted)))


def is_initialized(node: Object) -> bool:
    return labels_of(node).get(INITIALIZED_LABEL) == "true"


def allowed(budget: Object, nodes: int, now: datetime) -> int | None:
    """Nodes that a budget lets go at once; more than there are while it is not active.

    A percentage is rounded up. None for a schedule that cannot be read: Karpenter fails closed then, for all
    reasons, also where the budget is for other ones.
    """
    active = is_active(budget, now)
    if active is None:
        return None
    if not active:
        return nodes + 1
    count = str(budget.get("nodes", ""))
    if count.isdecimal():
        return int(count)
    if count.endswith("%") and count[:-1].isdecimal():
        return -(-nodes * int(count[:-1]) // 100)
    return None


def is_active(budget: Object, now: datetime) -> bool | None:
    """Whether the schedule (cron, in UTC) has hit within the duration before now; None where unreadable."""
    schedule, duration = budget.get("schedule"), budget.get("duration")
    if schedule is None and duration is None:
        return True
    if not isinstance(schedule, str) or not is_readable(schedule):
        return None
    since = now.astimezone(UTC) - duration_of(duration)
    hit: datetime = croniter(schedule.strip(), since).get_next(datetime)
    return hit <= now


def is_readable(schedule: str) -> bool:
    """Whether the cron library of Karpenter takes it: five fields of the plain syntax, or a descriptor."""
    text = schedule.strip()
    if text.startswith("@"):
        return text in DESCRIPTORS
    fields = text.split()
    if len(fields) != 5 or not all(FIELD.fullmatch(field) for field in fields):
        return False
    named: tuple[dict[str, int], ...] = ({}, {}, {}, MONTHS, DAYS)
    if any(
        _has_other_words(field, names) or _runs_backwards(field, names)
        for field, names in zip(fields, named, strict=True)
    ):
        return False
    if re.search(r"(?<![/\d])7", fields[4]):  # Sunday is 0 and nothing else
        return False
    return bool(croniter.is_valid(text))


def duration_of(text: Any) -> timedelta:
    """A duration as a NodePool writes it, such as `8h`, `1h30m` or `10m0s`. None known is none."""
    found = DURATION.fullmatch(text) if isinstance(text, str) else None
    hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)


def _has_other_words(field: str, names: dict[str, int]) -> bool:
    """`L` or `W`, which other crons know."""
    return any(word.lower() not in names for word in re.findall(r"[A-Za-z]+", field))


def _runs_backwards(field: str, names: dict[str, int]) -> bool:
    """`22-6` and `FRI-MON`: other crons read them round the clock, this one not at all."""
    for first, last in re.findall(r"([A-Za-z0-9]+)-([A-Za-z0-9]+)", field):
        low, high = (names.get(each.lower(), each) for each in (first, last))
        if str(low).isdecimal() and str(high).isdecimal() and int(low) > int(high):
            return True
    return False


def _applies(budget: Object) -> bool:
    reasons = budget.get("reasons")
    return reasons is None or REASON in reasons


def _named(pool: Object, number: int, budget: Object) -> str:
    parts = [f"nodes {budget.get('nodes')}"]
    if budget.get("reasons"):
        parts.append(f"for {', '.join(map(str, budget['reasons']))}")
    if budget.get("schedule"):
        parts.append(f"at {budget['schedule']!r} UTC for {budget.get('duration')}")
    name = pool["metadata"]["name"]
    return f"budget {number + 1} of NodePool {name} (spec.disruption.budgets[{number}]: {', '.join(parts)})"
