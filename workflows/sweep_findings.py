"""What a sweep finds: what nodes carry, compared with what Temporal knows. Pure.

Mended is what is surely ours and safe to take away: nobody's work depends on it, and no node comes back into
service by it that was not validated. All else is for a person, who is told once. What nobody could be asked
about is unknown, and nothing follows from it but the word that it is.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gpu_runbooks.activities.model.sweep import (
    LookAgain,
    NodeMachine,
    NodeWork,
    OpenIncident,
    Run,
    Standing,
    SweptNode,
    TakeUp,
)
from gpu_runbooks.activities.names import digest, incident_id
from gpu_runbooks.workflows.phases import Outcome, Phase

SETTLES = timedelta(minutes=5)
"""Age from which on something counts as left behind: lists of Temporal lag, and what is new is at work."""

LEFT_BY_A_PERSON = frozenset({Outcome.ABORTED, Outcome.VALIDATED, Outcome.DRAINED, Outcome.HELD})
"""Ends after which the block stands because a person wanted it."""

WAITS = frozenset(
    {
        *(Phase.OPEN, Phase.TOLERATING, Phase.WAITING, Phase.WAITING_FOR_SLOT, Phase.NEEDS_OPERATOR),
        *(Phase.PAUSED, Phase.STOPPED, Phase.PROBATION),
        Phase.BLOCKING,  # the group wait follows the block under its phase
    }
)
"""Phases in which an incident does nothing to its node that would end by itself."""

WITH_BUDGET = frozenset(Phase) - {Phase.OPEN, Phase.TOLERATING, Phase.NOTIFYING, Phase.CLOSED}
"""Phases in which an incident waits for a slot or may have one."""


class Kind(StrEnum):
    """What is wrong. The words are part of the alerts' labels."""

    ORPHAN_BLOCK = "orphan-block"
    KEPT_BLOCK = "kept-block"
    UNREADABLE = "unreadable"
    LEFTOVERS = "leftovers"
    PAUSED_SERVICES = "paused-services"
    LEFT_WORK = "left-work"
    UNHANDLED_CONDITION = "unhandled-condition"
    MACHINE_GONE = "machine-gone"
    LOST_SLOT = "lost-slot"
    NOT_RUNNING = "not-running"
    UNKNOWN = "unknown"


CALLS_A_PERSON = frozenset({Kind.ORPHAN_BLOCK, Kind.UNREADABLE, Kind.UNKNOWN, Kind.NOT_RUNNING})
"""Kinds that a person is called for. Others only where their mend failed."""

MAY_PASS = frozenset({Kind.UNKNOWN, Kind.NOT_RUNNING})
"""Of these, what the next sweep may not find any more: a person is called for it then."""


OF_BLOCKS = frozenset({Kind.ORPHAN_BLOCK, Kind.KEPT_BLOCK})
"""Kinds that say of a block that its incident is over."""


@dataclass(frozen=True)
class ClearLeftovers:
    """Take our taint and claim off a node that has no marker."""

    seen: SweptNode


@dataclass(frozen=True)
class ResumeServices:
    """Put back what a pause of GPU services changed."""

    seen: SweptNode


@dataclass(frozen=True)
class DeleteWork:
    """Delete a NodeTask or a test pod."""

    work: NodeWork


Mend = ClearLeftovers | ResumeServices | DeleteWork | TakeUp | LookAgain


@dataclass(frozen=True)
class Found:
    """One thing that is not as it should be."""

    kind: Kind
    subject: str
    """Name of the node, or of what else it is about."""
    text: str
    mend: Mend | None = None
    on_node: bool = False
    """The subject is a node: it gets the Event, where a person is called."""


Known = Mapping[Run, Standing]
"""What Temporal says of the runs that were asked about."""


def runs_of(node: SweptNode, cluster: str) -> tuple[Run, ...]:
    """The runs that decide what becomes of what a node carries."""
    runs = [Run(id=incident_id(cluster, node.name))]
    if node.incident:
        runs.append(Run(id=node.incident, run_id=node.run_id))
    if node.pause_incident:
        runs.append(Run(id=node.pause_incident, run_id=node.pause_run_id))
    if node.replaces:
        runs.append(Run(id=node.replaces))
    return tuple(dict.fromkeys(runs))


def of_node(node: SweptNode, cluster: str, known: Known) -> list[Found]:
    """What a node carries that it should not, and what nobody does about it."""
    runs = runs_of(node, cluster)
    if unknown := [known[run] for run in runs if known[run].state == "unknown"]:
        what = f"{unknown[0].run.id} cannot be asked ({unknown[0].how}): nothing of this node was touched"
        return [Found(Kind.UNKNOWN, node.name, what, on_node=True)]
    found = [*_block(node, known)]
    if node.pause == "unreadable":
        what = "its annotation gpu-runbooks.dev/paused-gpu-services cannot be read: set the labels by hand"
        found.append(Found(Kind.UNREADABLE, node.name, what, on_node=True))
    if any(known[run].state in {"open", "open-later"} for run in runs):
        return found  # what else there is belongs to whoever is at work
    if node.pause in {"ours", "bare"}:
        whose = f"of {node.pause_incident}, which is over" if node.pause_incident else "without an owner"
        text = f"GPU services are paused by a pause {whose}"
        found.append(Found(Kind.PAUSED_SERVICES, node.name, text, ResumeServices(node), on_node=True))
    if not node.marker and (node.taint or node.replaces):
        left = [*(["our taint"] if node.taint else []), *(["our claim"] if node.replaces else [])]
        text = f"{' and '.join(left)} stand without a marker, and no incident is open"
        found.append(Found(Kind.LEFTOVERS, node.name, text, ClearLeftovers(node), on_node=True))
    # A block that nobody works on is taken over by the incident that opens; one that a person wants stays.
    if not node.marker or any(each.kind is Kind.ORPHAN_BLOCK for each in found):
        found += _unhandled(node)
    return found


def _block(node: SweptNode, known: Known) -> Iterable[Found]:
    """The block of a node whose incident is over. One that a person holds is right."""
    if node.marker == "unreadable":
        what = "its annotation gpu-runbooks.dev/block cannot be read: nobody knows whose block it is"
        yield Found(Kind.UNREADABLE, node.name, what, on_node=True)
    if node.marker != "ours":
        return
    owner = known[Run(id=node.incident, run_id=node.run_id)]
    if owner.state in {"open", "open-later"}:
        return  # a later incident of the node takes the block over
    how = owner.how or "so long ago that Temporal has forgotten it"
    text = f"blocked by run {node.run_id} of {node.incident}, which ended {how}"
    if owner.how in LEFT_BY_A_PERSON:
        yield Found(Kind.KEPT_BLOCK, node.name, f"{text}: a person wanted the block to stay")
    else:
        yield Found(Kind.ORPHAN_BLOCK, node.name, f"{text}: nobody works on it", on_node=True)


def is_same_block(before: SweptNode, now: SweptNode | None) -> bool:
    """Whether a Node still carries the block that it carried; None where it is gone."""

    def block(node: SweptNode) -> tuple[str, ...]:
        return node.uid, node.marker, node.incident, node.run_id

    return now is not None and block(now) == block(before)


def _unhandled(node: SweptNode) -> Iterable[Found]:
    for bad in node.bad[:1]:  # the incident that it opens hears of the others by the intake
        text = f"condition {bad.type} is {bad.status} since {bad.since:%Y-%m-%d %H:%M} UTC, and no incident"
        mend = TakeUp(node=node.name, uid=node.uid, type=bad.type)
        yield Found(Kind.UNHANDLED_CONDITION, node.name, text, mend, on_node=True)


def of_work(
    work: NodeWork, standing: Standing | None, open_digests: Collection[str] | None, now: datetime
) -> list[Found]:
    """A NodeTask or a test pod whose incident is over.

    `standing` is of the incident that the object names, or of its node's where that is the same; without one
    `open_digests` decides, which stand for all open incidents: None where they could not be listed.
    """
    if work.runs or now - work.made < SETTLES:
        return []
    if standing is not None and standing.state == "unknown":
        what = f"{standing.run.id} cannot be asked ({standing.how}): {work.kind} was left"
        return [Found(Kind.UNKNOWN, work.name, what)]
    if standing is None and (open_digests is None or not work.digest):
        return [Found(Kind.UNKNOWN, work.name, f"nobody knows whose {work.kind} this is: it was left")]
    is_open = standing.state.startswith("open") if standing else work.digest in (open_digests or ())
    if is_open:
        return []
    text = f"{work.kind} {work.name} of an incident that is over"
    return [Found(Kind.LEFT_WORK, work.name, text, DeleteWork(work))]


def run_of_work(work: NodeWork, cluster: str) -> Run | None:
    """The incident of a NodeTask or a test pod; None where only its digest is known."""
    if work.incident:
        return Run(id=work.incident)
    own = incident_id(cluster, work.node)
    return Run(id=own) if work.node and digest(own) == work.digest else None


def waits_for_node(incident: OpenIncident, now: datetime) -> bool:
    """Whether an incident is to be compared with its node: one at work sees by itself what became of it."""
    return not incident.paused and incident.phase in WAITS and now - incident.started >= SETTLES


def of_incident(incident: OpenIncident, machine: NodeMachine | None) -> list[Found]:
    """An incident that waits, and whose node is gone or another machine."""
    node = incident.id.rpartition("/")[2]
    if machine is None:
        text = f"{incident.id} ({incident.phase}): its node does not exist any more"
    elif machine.instance_id and incident.instances and machine.instance_id not in incident.instances:
        text = f"{incident.id} ({incident.phase}): its node is another machine now, {machine.instance_id}"
    else:
        return []
    mend = LookAgain(incident=incident.id, run_id=incident.run_id, node=node)
    return [Found(Kind.MACHINE_GONE, node, text, mend)]


def of_paused(incidents: Iterable[OpenIncident]) -> list[Found]:
    """Incidents that somebody paused through Temporal: they take no step, and answer nobody."""
    return [
        Found(
            Kind.UNKNOWN,
            each.id.rpartition("/")[2],
            f"{each.id} is paused through Temporal and does nothing: `temporal workflow unpause` ends that",
        )
        for each in incidents
        if each.paused
    ]


def of_running(
    incidents: Iterable[OpenIncident], pools: Collection[str], guard: Standing, now: datetime
) -> list[Found]:
    """Budgets and the guard that should run and do not."""
    old = [each for each in incidents if not each.paused and now - each.started >= SETTLES]
    wanted = {each.pool for each in old if each.pool and each.phase in WITH_BUDGET}
    found = [
        Found(
            Kind.NOT_RUNNING,
            f"budget of {pool}",
            "no DisruptionBudget runs, and incidents of the pool wait: each starts it when it asks next",
        )
        for pool in sorted(wanted - set(pools))
    ]
    if old and guard.state in {"closed", "forgotten"}:
        how = f" ({guard.how})" if guard.how else ""
        text = f"no FleetGuard runs{how}: storms are not seen until the next fault starts it"
        found.append(Found(Kind.NOT_RUNNING, "guard", text))
    return found
