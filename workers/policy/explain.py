"""`gpu-runbooks policy explain`: which rule and ladder a fault on a node gets, and what would happen now."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from gpu_runbooks.activities.model.plan import Rung
from gpu_runbooks.workers.policy.explanation import Explanation, Seen, explain
from gpu_runbooks.workers.policy.fault_notation import read_fault, read_node_name
from gpu_runbooks.workers.policy.look import from_outside, look_at_node, look_at_temporal
from gpu_runbooks.workers.policy.policy_file import read_policy_file
from gpu_runbooks.workers.terminal import progress, say
from gpu_runbooks.workflows.policy.fields import in_units
from gpu_runbooks.workflows.policy.file import load_policy


@dataclass(frozen=True)
class Question:
    """What a person wants explained."""

    node: str
    fault: str
    policy: Path
    cluster: str
    """Empty where nobody named one."""
    said: Mapping[str, str | int]
    """Fields of the fault that were given beside it."""
    labels: Mapping[str, str] | None = None
    instance_type: str = ""
    offline: bool = False


async def answer(question: Question, *, as_json: bool, out: Console, err: Console) -> None:
    """Print the explanation.

    Raises `NotationError` for what names no fault or no node, `PolicyError` and `OSError` for the file.
    """
    now = datetime.now(UTC)
    node, fault = read_node_name(question.node), read_fault(question.fault, now, question.said)
    policy = load_policy(read_policy_file(question.policy))
    seen = from_outside(node, question.labels, question.instance_type)
    if not question.offline:
        async with progress(err, lambda: f"asking Kubernetes and Temporal about {node}"):
            seen = await look_at_node(seen, question.cluster)
            pool = explain(policy, fault, seen, now).pool
            seen = await look_at_temporal(seen, question.cluster, pool)
    _print(explain(policy, fault, seen, now), seen, as_json=as_json, out=out)


def _print(explanation: Explanation, seen: Seen, *, as_json: bool, out: Console) -> None:
    if as_json:
        out.file.write(json.dumps(_content(explanation, seen), indent=2) + "\n")
        return
    for line in _policy(explanation):
        say(out, line)
    if explanation.rungs and out.is_terminal:
        out.print(_table(explanation.rungs))
    else:
        for number, rung in enumerate(explanation.rungs, start=1):
            say(out, f"  {number}. {rung.name}: {', '.join(_rung(rung))}")
    say(out, f"now: {explanation.verdict}")
    for sentence in explanation.now:
        say(out, f"  {sentence}")
    for unseen in explanation.unseen:
        say(out, f"not seen: {unseen}")


def _policy(explanation: Explanation) -> Iterator[str]:
    yield f"fault {explanation.fault} on node {explanation.node}"
    pool = f"pool {explanation.pool}, " if explanation.pool else ""
    owners = f", owners {explanation.owners}" if explanation.owners else ""
    yield f"policy {explanation.policy_digest}: {pool}mode {explanation.mode}{owners}"
    application = ", the application's fault" if explanation.application else ""
    why = f": {explanation.why}" if explanation.why else ""
    yield f"rule {explanation.rule} ({explanation.rule_of}){application}{why}"
    tolerated = f", after {in_units(explanation.toleration)}" if explanation.toleration else ""
    touches = "" if explanation.rungs else ": nothing is touched"
    yield f"ladder {explanation.ladder}{tolerated}{touches}"


def _rung(rung: Rung) -> Iterator[str]:
    yield f"timeout {in_units(rung.timeout)}"
    if rung.attempts > 1:
        yield f"{rung.attempts} attempts"
    if rung.wait:
        yield f"after {in_units(rung.wait)}"
    if rung.approval:
        yield "asks for approval"
    if rung.observe:
        yield "observed only"


def _table(rungs: tuple[Rung, ...]) -> Table:
    table = Table(box=SIMPLE)
    for name in ("", "rung", "wait", "attempts", "timeout", "approval", "mode"):
        table.add_column(name)
    for number, rung in enumerate(rungs, start=1):
        table.add_row(
            str(number),
            rung.name,
            in_units(rung.wait) if rung.wait else "",
            str(rung.attempts),
            in_units(rung.timeout),
            "asked for" if rung.approval else "",
            "observe" if rung.observe else "",
        )
    return table


def _content(explanation: Explanation, seen: Seen) -> dict[str, Any]:
    """All of it for programs; durations in seconds."""
    content = asdict(explanation) | {
        "rungs": [_seconds(rung.model_dump()) for rung in explanation.rungs],
        "identity": seen.identity.model_dump(mode="json"),
        "incident": asdict(seen.incident) if seen.incident else None,
        "slots": seen.slots.model_dump(mode="json") if seen.slots else None,
    }
    return _seconds(content)


def _seconds(content: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.total_seconds() if isinstance(value, timedelta) else value
        for name, value in content.items()
    }
