"""What policy says of one fault on one node, and what would happen now. Pure: what was seen comes in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.activities.model.node import NodeIdentity, NodeObservation
from gpu_runbooks.activities.model.plan import Plan, Rung, RungName, Treatment
from gpu_runbooks.workers.policy.fault_notation import in_notation
from gpu_runbooks.workers.policy.meaning import meaning
from gpu_runbooks.workflows.opting_out import OWNERS_WORD, how_to_opt_in
from gpu_runbooks.workflows.policy.answers import answer_to
from gpu_runbooks.workflows.policy.fields import in_units
from gpu_runbooks.workflows.policy.node_conditions import watched_conditions
from gpu_runbooks.workflows.policy.planning import PlanRefused, plan, treatment_of
from gpu_runbooks.workflows.policy.policy import Policy
from gpu_runbooks.workflows.severity import REPAIRS, notifies_owner, severity
from gpu_runbooks.workflows.slots import Slots
from gpu_runbooks.workflows.windows import next_permitted

DISRUPTING = frozenset({RungName.DRAIN, RungName.RESTART_WORKLOAD, *REPAIRS})
"""Rungs that wait for a maintenance window."""

OF_WORKLOADS = frozenset({RungName.NOTIFY_OWNER, RungName.RESTART_WORKLOAD})


class Verdict(StrEnum):
    """What would happen now, in a word."""

    REFUSED = "refused"
    """No incident: the node is in no pool, or in two, or its hardware is unknown."""
    NOTHING = "nothing"
    """No incident: the status of the condition is not bad, or nothing watches its type."""
    JOINS = "joins"
    """The incident of the node is open and takes the fault in."""
    HELD = "held"
    """A person has the node: the fault is recorded."""
    LEFT_ALONE = "left-alone"
    """The rule touches nothing."""
    OBSERVED = "observed"
    """Mode observe: the plan is recorded."""
    TOLERATED = "tolerated"
    """Nothing until the toleration ends."""
    QUEUED = "queued"
    """It waits for a slot of the pool."""
    BEGINS = "begins"
    """The first rung follows at once."""
    UNKNOWN = "unknown"
    """Too little of the node is known."""


@dataclass(frozen=True)
class OpenIncident:
    """The incident of the node that is open now."""

    workflow_id: str
    run_id: str
    phase: str = ""
    fault: str = ""
    rule: str = ""
    ladder: str = ""
    question: str = ""


@dataclass(frozen=True)
class Seen:
    """What is known of the node and its surroundings."""

    identity: NodeIdentity
    labels: Mapping[str, str] | None
    """None where the node could not be read and nobody gave its labels."""
    node: NodeObservation | None = None
    """None where the node was not read."""
    cordoned: bool = False
    incident: OpenIncident | None = None
    asked_temporal: bool = False
    slots: Slots | None = None
    """State of the pool's budget; None where there is none, or it was not seen."""
    budget_of: str = ""
    """Cluster whose budget of the pool was asked about and seen; empty where it was not."""
    unseen: tuple[str, ...] = ()
    """What could not be seen, and why."""


@dataclass(frozen=True)
class Explanation:
    """The answer of `policy explain`."""

    node: str
    fault: str
    policy_digest: str
    pool: str
    mode: str
    owners: str
    rule: str
    rule_of: str
    """`site`, or `built-in`."""
    why: str
    """What is known of the fault, for a built-in rule."""
    application: bool
    ladder: str
    toleration: timedelta
    rungs: tuple[Rung, ...]
    verdict: Verdict
    now: tuple[str, ...]
    """What would happen now, in sentences."""
    unseen: tuple[str, ...]


def explain(policy: Policy, fault: Fault, seen: Seen, now: datetime) -> Explanation:
    """Explain a fault that is seen now."""
    treatment = treatment_of(policy, fault)
    made: Plan | None = None
    refused = ""
    if seen.labels is not None:
        try:
            made = plan(policy, fault, seen.identity, seen.labels, namespace="")
            treatment = made.treatment
        except PlanRefused as error:
            refused = str(error)
    if not_bad := _not_bad(policy, fault):
        verdict, sentences = Verdict.NOTHING, [not_bad]
    elif made is not None:
        verdict, sentences = _answer(fault, made, seen, now)
    elif refused:
        verdict, sentences = Verdict.REFUSED, [f"Refused: {refused}."]
    else:
        verdict, sentences = Verdict.UNKNOWN, ["In which pool the node is could not be seen: give --labels."]
    enforce = policy.mode == "enforce" if made is None else made.enforce
    site = answer_to(policy, fault).of_site
    return Explanation(
        node=seen.identity.name,
        fault=in_notation(fault),
        policy_digest=policy.digest,
        pool=made.pool if made else "",
        mode="enforce" if enforce else "observe",
        owners=made.owners if made else "",
        rule=treatment.rule,
        rule_of="site" if site else "built-in",
        why="" if site else meaning(fault, treatment.rule),
        application=treatment.application,
        ladder=treatment.ladder,
        toleration=treatment.toleration,
        rungs=treatment.rungs,
        verdict=verdict,
        now=tuple(sentences),
        unseen=seen.unseen,
    )


def _not_bad(policy: Policy, fault: Fault) -> str:
    """Why a condition is reported by nobody; empty for one that is, and for any other fault."""
    if fault.source is not FaultSource.CONDITION:
        return ""
    bad = watched_conditions(policy).get(fault.code)
    if bad is None:
        return f"No table and no rule of the site names condition {fault.code}: nothing watches it."
    if fault.status and fault.status not in bad:
        return f"This status is not bad: {fault.code} is bad when {' or '.join(sorted(bad))}."
    return ""


def _answer(fault: Fault, made: Plan, seen: Seen, now: datetime) -> tuple[Verdict, list[str]]:
    treatment = made.treatment
    only_tells = notifies_owner(treatment) and severity(treatment) == 0
    owners = [f"{_sentence(OWNERS_WORD)}. {how_to_opt_in(made.identity.name)}."] if made.opted_out else []
    if seen.incident is not None:
        return Verdict.JOINS, [*owners, *_joining(seen.incident, treatment)]
    if owners and not only_tells:
        unless = (
            "No incident would open" if seen.asked_temporal else "Unless one is open, no incident would open"
        )
        return Verdict.LEFT_ALONE, [
            *owners,
            f"{unless}; without the label it would be ladder {treatment.ladder}.",
        ]
    opens = "An incident would open" if seen.asked_temporal else "Unless one is open, an incident would open"
    said = [*owners, f"{opens} for node {made.identity.name} of pool {made.pool}."]
    if severity(treatment) == 0 and not treatment.rungs:
        return Verdict.LEFT_ALONE, [*said, f"Rule {treatment.rule} touches nothing: it ends as a record."]
    if not made.enforce:
        return Verdict.OBSERVED, [*said, *_tolerating(fault, treatment, now), *_observing(made)]
    marker = seen.node.marker if seen.node is not None else None
    if marker is not None and marker.held and not OF_WORKLOADS.issuperset(_names(treatment)):
        held = f"A person holds the node since {_time(marker.since)}: the fault would be recorded, no more."
        return Verdict.HELD, [*said, held]
    verdict, slot = _slot(made, seen.slots, seen.budget_of, now)
    waits = list(_tolerating(fault, treatment, now))
    said += [
        *waits,
        *slot,
        *_rungs(fault, made, now),
        *_node(seen, treatment),
    ]
    return (Verdict.TOLERATED if waits else verdict), said


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _joining(incident: OpenIncident, treatment: Treatment) -> Iterator[str]:
    of = f", of {incident.fault}" if incident.fault else ""
    phase = f", in phase {incident.phase}" if incident.phase else ""
    yield f"It would join the open incident {incident.workflow_id} (run {incident.run_id}{of}{phase})."
    if incident.ladder:
        yield f"That incident climbs ladder {incident.ladder} by rule {incident.rule}."
    yield f"The more severe of the two ladders decides from then on; this fault's is {treatment.ladder}."
    if incident.question:
        yield f"It waits for a person: {incident.question}"


def _tolerating(fault: Fault, treatment: Treatment, now: datetime) -> Iterator[str]:
    counts = fault.first_seen + treatment.toleration
    if counts > now:
        cleared = ", and if it is good again before, the incident ends"
        ends = cleared if fault.source is FaultSource.CONDITION else ""
        tolerated = in_units(treatment.toleration)
        yield f"Nothing is done before {_time(counts)}: the fault may stand for {tolerated}{ends}."


def _observing(made: Plan) -> Iterator[str]:
    treatment = made.treatment
    rungs = ", ".join(_names(treatment))
    yield f"Pool {made.pool} is observed only: ladder {treatment.ladder} ({rungs}) is recorded, not climbed."


def _slot(made: Plan, slots: Slots | None, cluster: str, now: datetime) -> tuple[Verdict, list[str]]:
    treatment = made.treatment
    rungs = _names(treatment)
    if {*rungs} == {RungName.NOTIFY_OWNER}:
        return Verdict.BEGINS, []
    if slots is None:
        budget = f"The budget of pool {made.pool} (at most {made.budget.in_words()})"
        if not cluster:
            return Verdict.BEGINS, [f"{budget} could not be asked."]
        none = f"has no budget workflow in cluster {cluster} yet, so that all slots are free"
        return Verdict.BEGINS, [f"{budget} {none}."]
    ahead = sum(each.severity >= severity(treatment) for each in slots.waiters)
    state, free = _pool_use(made, slots, now)
    if free > ahead:
        return Verdict.BEGINS, [f"{state}: a slot is free."]
    place = f"would queue behind {ahead}, the most severe first" if ahead else "would be the next to get one"
    if rungs[0] is RungName.NOTIFY_OWNER:
        # Nobody needs a slot to be told.
        return Verdict.BEGINS, [f"The owner is told at once. {state}: for {rungs[1]} it {place}."]
    blocks = made.budget.block_waiting and RungName.BLOCK in rungs
    blocked = [f"Node {made.identity.name} is blocked while it waits."] if blocks else []
    return Verdict.QUEUED, [f"{state}: it {place}.", *blocked]


def _pool_use(made: Plan, slots: Slots, now: datetime) -> tuple[str, int]:
    """How much of the pool is unavailable and what stops or slows its slots, and how many are free."""
    budget = made.budget if slots.override is None or now >= slots.override.until else slots.override.budget
    most = budget.max_unavailable if slots.nodes is None else budget.limit(slots.nodes)
    used = max(len(slots.holders), slots.used)
    state = f"{used} of {most} slots of pool {made.pool} are used"
    if most is None:
        state = f"{used} slots of pool {made.pool} are used (at most {budget.in_words()})"
    state += f", {len(slots.waiters)} incidents wait"
    if budget is not made.budget and slots.override is not None:
        state += f" (limit {budget.in_words()} by {slots.override.operator}: {slots.override.reason})"
    if stopped := slots.stopped(now):
        return f"{state}, and nobody may disrupt anything, {stopped}", 0
    if slots.brake.mode == "pace":
        return f"{state}, and slots are given one at a time after storm {slots.brake.storm}", 0
    return state, (1 if most is None else most) - used


def _rungs(fault: Fault, made: Plan, now: datetime) -> Iterator[str]:
    """What each rung that needs something waits for, after the first act."""
    rungs = made.treatment.rungs
    begins = max(now, fault.first_seen + made.treatment.toleration)
    yield f"The first act would be {rungs[0].name}."
    opens = next_permitted(made.windows, made.freezes, begins)
    first = next((rung.name for rung in rungs if rung.name in DISRUPTING), None)
    if first is None or fault.source is FaultSource.MANUAL:
        opens, wait = begins, timedelta(0)  # what a person orders waits for no window, and for no others
    else:
        wait = made.storm.group_wait
    if begins < now + wait:
        yield f"{first} waits until {in_units(wait)} after the start: others with the same cause may report."
    if opens > begins:
        frozen = next((each for each in made.freezes if each.begins <= begins < each.ends), None)
        why = f"In a change freeze ({frozen.why})" if frozen else "Outside the pool's maintenance windows"
        yield f"{why}: {first} waits until {_time(opens)}."
    whom = made.owners or "a person (the pool has no owners)"
    for rung in rungs:
        if rung.approval:
            other = ", by another person than whoever asked" if rung.approval_by_other else ""
            yield f"Before {rung.name} it asks {whom} for approval{other}."
        elif rung.observe:
            yield f"{rung.name} is observed only: it tells {whom} what would follow, and waits."
    if made.repair.replace == "ask" and RungName.REPLACE in _names(made.treatment):
        yield f"Before {RungName.REPLACE} it asks {whom}, as repair.replace says."


def _node(seen: Seen, treatment: Treatment) -> Iterator[str]:
    """What of the node as it is now matters for the ladder."""
    if seen.node is None or OF_WORKLOADS.issuperset(_names(treatment)):
        return
    if (marker := seen.node.marker) is not None:
        yield f"Our block stands on the node since {_time(marker.since)}, by {marker.incident}."
    elif seen.cordoned:
        yield "Somebody has cordoned the node: that cordon stays when our block goes."
    if seen.node.ready != "True":
        yield f"The node is not Ready ({seen.node.ready}): a drain cannot tell what its pods do, and may ask."
    if seen.node.karpenter and RungName.REPLACE in _names(treatment):
        yield "Karpenter launched the node: it would be replaced by deleting its NodeClaim."


def _names(treatment: Treatment) -> list[RungName]:
    return [rung.name for rung in treatment.rungs]


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
