"""What the guard of a fleet shows of itself in the UI, for an auditor who knows no code. Pure."""

from datetime import datetime

from gpu_runbooks.activities.names import fleet_id
from gpu_runbooks.workflows.commands import command
from gpu_runbooks.workflows.storm import Storm
from gpu_runbooks.workflows.storms import Fleet

SHOWN_POOLS = 50


def details(fleet: Fleet, now: datetime) -> str:
    """Halts, storms and brakes, in Markdown."""
    parts = [f"As of {_moment(now)}: **{_standing(fleet)}**"]
    if fleet.halts:
        halts = [
            f"- by **{halt.who()}** from {_moment(halt.since)} until {_moment(halt.until)}: {halt.reason}"
            for halt in fleet.halts
        ]
        parts.append("\n".join(["### Halts everywhere", *halts]))
    parts += [_storm(storm) for storm in fleet.storms]
    if words := _words(fleet):
        parts.append("\n".join(["### What you can say", *words]))
    if fleet.budgets:
        rows = [
            f"| {pool} | {brake.mode} | {brake.why} |"
            for pool in sorted(fleet.budgets)[:SHOWN_POOLS]
            for brake in [fleet.brake(pool)]
        ]
        parts.append("\n".join(["### Brakes", "| pool | brake | why |", "|---|---|---|", *rows]))
    if fleet.past:
        over = [
            f"- {storm.in_words()}, over at {_moment(storm.ended)}: {storm.how}"
            for storm in reversed(fleet.past)
            if storm.ended
        ]
        parts.append("\n".join(["### Storms that are over", *over]))
    if fleet.notes:
        parts.append("\n".join(["### What people ordered", *(f"- {note}" for note in reversed(fleet.notes))]))
    return "\n\n".join(parts)


def _words(fleet: Fleet) -> list[str]:
    guard = fleet_id(fleet.cluster)
    halts = ["- end all halts everywhere: " + command(guard, "resume")] if fleet.halts else []
    return halts + [
        f"- storm {storm.id} is none, or over: " + command(guard, "end_storm", f', "storm": "{storm.id}"')
        for storm in fleet.storms
    ]


def _standing(fleet: Fleet) -> str:
    said = []
    if fleet.halts:
        said.append("nothing is disrupted anywhere: a person ordered a halt")
    if stopping := [storm for storm in fleet.storms if storm.mode == "stop"]:
        said.append(f"{len(stopping)} storm(s) stand")
    if len(stopping) < len(fleet.storms):
        said.append("nodes are taken up again one by one after a storm")
    return "; ".join(said) or "no halt and no storm"


def _storm(storm: Storm) -> str:
    names = ", ".join(storm.names)
    more = f" and {storm.nodes - len(storm.names)} more" if storm.nodes > len(storm.names) else ""
    where = f"pool {storm.pool}" if storm.pool else f"all pools; seen in {', '.join(storm.pools) or 'none'}"
    if storm.mode == "stop":
        then = f"nothing is disrupted; quiet since {_moment(storm.latest)}, paced from "
        then += f"{_moment(storm.quiet_at())} on if nothing more comes"
    else:
        then = (
            f"paced, one node per {storm.rule.pace}, until nobody waits or {_moment(storm.patience_ends())}"
        )
        if storm.caught_up:
            then += f"; nobody waits any more in {', '.join(storm.caught_up[:SHOWN_POOLS])}"
    lines = [
        f"### Storm {storm.id}",
        storm.in_words(),
        "",
        "| | |",
        "|---|---|",
        f"| since | {_moment(storm.began)} |",
        f"| brakes | {where} |",
        f"| now | {then} |",
    ]
    if storm.again:
        lines.append(f"| came back | {storm.again} times while it was paced |")
    if storm.cause:
        lines.append(f"| suspected common cause | {storm.cause} |")
    if names:
        lines.append(f"| nodes | {names}{more} |")
    return "\n".join(lines)


def _moment(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else ""
