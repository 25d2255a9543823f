"""What a sweep leaves behind: its result, the table in its details, and the calls for a person. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from gpu_runbooks.activities.model.page import Page
from gpu_runbooks.activities.model.wire import Wire
from gpu_runbooks.activities.names import digest
from gpu_runbooks.workflows.sweep_findings import CALLS_A_PERSON, MAY_PASS, Found, Kind

ALERT = "GpuRunbookSweepFinding"

MOST_LISTED = 25
LONGEST_TEXT = 200
MOST_UNREAD = 5

LARGEST = 15 * 1024
"""Characters of a result: a payload has 16 KiB."""

MOST_CALLS = 20
"""Findings with an alert of their own. One more alert stands for all others."""

ALERT_LASTS = timedelta(hours=1)
"""At least: an alert ends by itself where no sweep repeats it."""

SWEEPS_AHEAD = 6
"""Intervals that an alert lasts at least, of which half may pass before it is repeated."""


class Did(StrEnum):
    """What the sweep did about a finding."""

    MENDED = "mended"
    LEFT = "left"
    """It is right as it is, or for somebody else to decide."""
    REPORTED = "reported"
    """A person has to look."""
    FAILED = "failed"
    """The mend did not succeed: a person has to look, and the next sweep tries again."""
    CHANGED = "changed"
    """It was another one when it was to be mended: the next sweep looks again."""
    LATER = "later"
    """There was too much to mend: the next sweep goes on."""


class Finding(Wire):
    """A finding, and what became of it."""

    kind: Kind
    subject: str
    text: str
    did: Did
    on_node: bool = False
    """The subject is a node."""

    @property
    def key(self) -> str:
        """The same for the same thing in every sweep."""
        return digest(self.kind, self.subject)

    @property
    def calls(self) -> bool:
        """Whether a person is to be called."""
        return self.did is Did.FAILED or (self.kind in CALLS_A_PERSON and self.did is Did.REPORTED)


class Stood(Wire):
    """A finding that stood in this sweep, for the next one to know it again."""

    key: str
    kind: Kind
    subject: str
    on_node: bool = False
    since: datetime
    until: datetime | None = None
    """End of its alert; None before a person was called."""


class SweepResult(Wire):
    """Result of the workflow `FleetSweep`. The next sweep reads `stood` and `taken_up_to` in it."""

    nodes: int = 0
    """Nodes looked at."""
    incidents: int = 0
    """Open ones."""
    held: int = 0
    """Nodes that a person holds by `DrainNode`."""
    counts: dict[str, int] = Field(default={})
    """Findings by `kind: did`."""
    findings: tuple[Finding, ...] = ()
    """The first ones; those that a person has to look at before all others."""
    unlisted: int = 0
    unread: tuple[str, ...] = ()
    """What could not be read: nothing of the kind was mended."""
    stood: tuple[Stood, ...] = ()
    taken_up_to: str = ""
    """Last node whose condition was handed on: the next sweep goes on behind it."""


def finding(found: Found, did: Did, more: str = "") -> Finding:
    """What became of what was found."""
    text = f"{found.text}; {more}" if more else found.text
    return Finding(
        kind=found.kind,
        subject=found.subject,
        text=text[:LONGEST_TEXT],
        did=did,
        on_node=found.on_node,
    )


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Findings by what is wrong and what was done."""
    return dict(sorted(Counter(f"{each.kind}: {each.did}" for each in findings).items()))


def first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings that are listed one by one."""
    return tuple(sorted(findings, key=lambda each: (not each.calls, each.kind, each.subject))[:MOST_LISTED])


def stood(
    findings: Iterable[Finding],
    before: Sequence[Stood],
    now: datetime,
    interval: timedelta,
    *,
    complete: bool = True,
) -> tuple[Stood, ...]:
    """What calls a person, and until when. What may pass, or succeed yet, calls from its second sweep on.

    Where not all could be read, what stood before stands: nobody saw it end.
    """
    known = {each.key: each for each in before}
    calling = sorted(
        {each.key: each for each in findings if each.calls}.values(),
        key=lambda each: (each.kind, each.subject),
    )
    stands = tuple(_stands(each, known.get(each.key), now, interval) for each in _combined(calling))
    keys = {each.key for each in stands}
    unseen = () if complete else (each for each in before if each.key not in keys)
    return (*stands, *(_prolonged(each, now, interval) for each in unseen))[: MOST_CALLS + 5]


def _prolonged(before: Stood, now: datetime, interval: timedelta) -> Stood:
    if before.until is None:
        return before
    return before.model_copy(update={"until": _until(before.until, now, interval)})


def _until(until: datetime | None, now: datetime, interval: timedelta) -> datetime:
    """End of an alert, which is put off when half of its time is over."""
    lasts = max(ALERT_LASTS, SWEEPS_AHEAD * interval)
    return now + lasts if until is None or until - now < lasts / 2 else until


def _combined(calling: Sequence[Finding]) -> list[Finding]:
    """As many as have an alert of their own, and one that stands for the others."""
    if len(calling) <= MOST_CALLS:
        return list(calling)
    rest = Finding(
        kind=calling[MOST_CALLS].kind,
        subject="further findings",
        text=f"{len(calling) - MOST_CALLS} more",
        did=Did.REPORTED,
    )
    return [*calling[:MOST_CALLS], rest]


def _stands(found: Finding, before: Stood | None, now: datetime, interval: timedelta) -> Stood:
    may_pass = found.kind in MAY_PASS or found.did is Did.FAILED
    return Stood(
        key=found.key,
        kind=found.kind,
        subject=found.subject,
        on_node=found.on_node,
        since=before.since if before else now,
        until=None
        if before is None and may_pass
        else _until(before.until if before else None, now, interval),
    )


def pages(
    cluster: str, stands: Sequence[Stood], before: Sequence[Stood], texts: dict[str, str], now: datetime
) -> list[Page]:
    """The alerts to raise or to repeat, and those that are over. `texts` by key."""
    known = {each.key: each for each in before}
    due = [
        each
        for each in stands
        if each.until is not None and (each.key not in known or known[each.key].until != each.until)
    ]
    keys = {each.key for each in stands}
    over = [each for each in before if each.until is not None and each.until > now and each.key not in keys]
    return [
        *(_page(cluster, each, texts.get(each.key, ""), each.until or now) for each in due),
        *(_page(cluster, each, "", now, over=True) for each in over),
    ]


def _page(cluster: str, stands: Stood, text: str, until: datetime, *, over: bool = False) -> Page:
    return Page(
        alert=ALERT,
        labels={"cluster": cluster, "finding": stands.kind, "subject": stands.subject}
        | ({"node": stands.subject} if stands.on_node else {}),
        node=stands.subject if stands.on_node else "",
        summary=f"{stands.kind} {stands.subject}: {text or 'it is over'}",
        advice="" if over else advice(cluster, stands),
        since=stands.since,
        until=until,
        over=over,
    )


def advice(cluster: str, stands: Stood) -> str:
    """What to do, with the command to copy."""
    node = stands.subject
    start = f"temporal workflow start --task-queue remediation --workflow-id node/{cluster}/{node}"
    who = f'{{"node": "{node}", "reason": "WHY", "operator": "YOU"}}'
    match stands.kind if stands.on_node else None:
        case Kind.ORPHAN_BLOCK:
            return (
                f"Test it and give it back: {start} --type ReturnNode --input '{who}'\n"
                f"Or repair it: {start} --type NodeRemediation --input '{who}'\n"
                "docs/sweep.md has more"
            )
        case Kind.UNREADABLE:
            return f"Find out who wrote it: kubectl get node {node} -o yaml --show-managed-fields"
        case _:
            sweeps = f"WorkflowType = 'FleetSweep' AND WorkflowId STARTS_WITH 'sweep/{cluster}'"
            return f'The last sweep has more: temporal workflow list --query "{sweeps}", and docs/sweep.md'


def fitting(result: SweepResult) -> SweepResult:
    """The result with as many findings as a payload has room for."""
    while len(result.model_dump_json()) > LARGEST and result.findings:
        shorter = result.findings[:-1]
        result = result.model_copy(update={"findings": shorter, "unlisted": result.unlisted + 1})
    return result


def table(result: SweepResult) -> str:
    """The details of a sweep, in Markdown."""
    seen = f"**{result.nodes} nodes** looked at, {result.incidents} open incidents"
    lines = [f"{seen}, {result.held} nodes held by a person."]
    if result.unread:
        lines += ["", "Not read, so nothing of the kind was mended:"]
        lines += [f"- {each}" for each in result.unread]
    if not result.findings:
        return "\n".join([*lines, "", "Nothing was found." if not result.unread else ""])
    lines += ["", "| finding | what | | done |", "|---|---|---|---|"]
    lines += [
        f"| {each.kind} | {_cell(each.subject)} | {_cell(each.text)} | {each.did} |"
        for each in result.findings
    ]
    if result.unlisted:
        lines += [
            "",
            f"And {result.unlisted} more: {', '.join(f'{n} {k}' for k, n in result.counts.items())}.",
        ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
