"""What an auditor reads in the Temporal UI: the live details of an incident, in Markdown."""

from datetime import datetime, timedelta

from pydantic import BaseModel

from gpu_runbooks.activities.model.drain import PodBlocker, PodOverride
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.plan import Plan, RungName
from gpu_runbooks.activities.model.seen import Seen, seen_of
from gpu_runbooks.activities.model.wire import Wire
from gpu_runbooks.activities.names import budget_id, fleet_id
from gpu_runbooks.workflows.acts import Act
from gpu_runbooks.workflows.commands import commands_for
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ledger import window_in_words
from gpu_runbooks.workflows.phases import Outcome, Phase, Runbook
from gpu_runbooks.workflows.step_token import step_of


class Status(BaseModel):
    """Answer of the query `status`."""

    runbook: Runbook
    phase: Phase
    node: str
    target: str
    """Node that acts are for now; another than `node` once it was replaced."""
    rule: str
    ladder: str
    slot_held: bool
    blocked: bool
    question: str | None
    step: str
    """Token of what it does or asks now, for a person's word: one for another step does not count."""
    run_id: str
    """Of the incident, for the field `incident` of a person's word."""
    skipped: list[RungName]
    paused_until: datetime | None
    blockers: list[PodBlocker]
    blockers_seen: datetime | None
    """As of when these stand in the way."""
    overrides: list[PodOverride]
    acts: list[Act]
    outcome: Outcome | None
    reason: str
    faults: list[Fault]


class Result(Wire):
    """Result of the workflow: what happened, and which faults are dealt with."""

    runbook: Runbook
    """A start that met a running incident shows that incident's result."""
    outcome: Outcome
    reason: str
    node: str
    target: str
    provider_id: str
    """Machine of the first fault."""
    policy_digest: str
    acts: tuple[str, ...]
    fingerprints: tuple[str, ...]
    """An alert with one of these that still fires is a repeat, not news."""
    seen: tuple[Seen, ...] = ()
    """Faults at GPUs: the same place again may be suspect."""


def status(incident: Incident) -> Status:
    """The incident as it is now."""
    return Status(
        runbook=incident.runbook,
        phase=incident.phase,
        node=incident.plan.identity.name,
        target=incident.target.name,
        rule=incident.plan.treatment.rule,
        ladder=incident.plan.treatment.ladder,
        slot_held=incident.slot_held,
        blocked=incident.blocked,
        question=incident.question,
        step=step_of(incident),
        run_id=incident.run_id,
        skipped=incident.skipped,
        paused_until=incident.paused.until if incident.paused else None,
        blockers=incident.blockers,
        blockers_seen=incident.blockers_seen,
        overrides=incident.overrides,
        acts=incident.acts,
        outcome=incident.outcome,
        reason=incident.reason,
        faults=incident.faults,
    )


def result(incident: Incident, outcome: Outcome, reason: str) -> Result:
    """What the closed incident leaves behind."""
    return Result(
        runbook=incident.runbook,
        outcome=outcome,
        reason=reason,
        node=incident.plan.identity.name,
        target=incident.target.name,
        provider_id=incident.plan.identity.provider_id,
        policy_digest=incident.plan.policy_digest,
        acts=tuple(
            f"{act.rung} {act.attempt}: {'proven' if act.proven else 'not proven'}" for act in incident.acts
        ),
        fingerprints=tuple(incident.fingerprints),
        seen=tuple(seen for fault in incident.faults if (seen := seen_of(fault))),
    )


def origin(fault: Fault, plan: Plan) -> str:
    """Who or what began the incident and what policy says, for the static details."""
    ladder = " → ".join(rung.name for rung in plan.treatment.rungs) or "nothing is touched"
    return (
        f"**Started by** {fault.reporter}\n\n"
        f"**Fault** {fault.source} {fault.code} on {_place(fault)}, seen first {_time(fault.first_seen)}: "
        f"{fault.summary or 'no summary'}\n\n"
        f"**Machine** {plan.identity.instance_id or plan.identity.provider_id or 'unknown'} "
        f"({plan.identity.instance_type}, {plan.identity.zone}), node UID {plan.identity.uid}, "
        f"boot {plan.identity.boot_id}\n\n"
        + (f"**Pool** {plan.pool} of {plan.owners}\n\n" if plan.owners else "")
        + f"**Policy** {plan.policy_digest}: rule `{plan.treatment.rule}`, "
        f"ladder `{plan.treatment.ladder}`: {ladder}"
    )


def live_details(incident: Incident) -> str:
    """The incident so far: what it is doing, each act with its proof, and the notes."""
    lines = [f"## {incident.phase}" + (f": {incident.outcome}" if incident.outcome else ""), ""]
    if incident.paused and incident.phase is Phase.PAUSED:
        lines += [f"**Paused** by {incident.paused.operator} until {_time(incident.paused.until)}", ""]
    if incident.stopped:
        whose = f"`{budget_id(incident.cluster, incident.plan.pool)}` and `{fleet_id(incident.cluster)}`"
        lines += [f"**Stopped:** {incident.stopped}. Workflows {whose} say by whom, and how it ends", ""]
    elif incident.phase is Phase.WAITING_FOR_SLOT:
        budget = budget_id(incident.cluster, incident.plan.pool)
        lines += [f"The details of workflow `{budget}` say who has the slots, and what stops them.", ""]
    if incident.phase is Phase.PROBATION and incident.watched_until is not None:
        until = _time(incident.watched_until)
        lines += [f"**In service**, not blocked, and watched until {until}: a fault goes on from here", ""]
    if incident.question:
        lines += [f"**A person is needed:** {incident.question}", ""]
    if incident.question and incident.asked_since is not None:
        lines += [f"Asked since {_time(incident.asked_since)}; {_called(incident, incident.asked_since)}", ""]
    if commands := commands_for(incident):
        lines += [f"Step `{step_of(incident)}`. What you can say:", "", *commands, ""]
    if incident.reason:
        lines += [incident.reason, ""]
    if incident.outcome is Outcome.ABORTED and incident.blocked:
        lines += [f"Node {incident.target.name} stays blocked: the runbook `ReturnNode` gives it back", ""]
    lines += [origin(incident.faults[0], incident.plan), ""]
    if incident.acts:
        lines += ["| rung | attempt | result | took | proof |", "|---|---|---|---|---|"]
        lines += [
            f"| {act.rung} | {act.attempt} | {'proven' if act.proven else '**not proven**'} "
            f"| {_seconds(act.ended - act.started)} | {_cell(act.proof)}{_evidence(act)} |"
            for act in incident.acts
        ]
        lines.append("")
    if incident.blockers:
        if incident.blockers_seen is not None:
            lines += [f"In the way of the drain, as of {_time(incident.blockers_seen)}:", ""]
        lines += _blockers(incident.blockers)
    lines += [
        f"- tolerated until {_time(each.until)}: {each.fault.source} {each.fault.code}"
        for each in incident.pending
    ]
    lines += [f"- {_time(note.at)} {note.text}" for note in incident.notes]
    return "\n".join(lines)


def _called(incident: Incident, since: datetime) -> str:
    """Who was called about the question, and what follows without an answer."""
    policy = incident.plan
    if not incident.paged:
        called = "nobody was called yet, it asks again by itself"
    elif "alertmanager" in incident.page_reached:
        called = "an alert is raised"
    else:
        called = "only an Event on the node says so, as the cluster-worker knows no Alertmanager"
    if incident.page_problem:
        called = f"**not everybody could be called**: {_cell(incident.page_problem)}"
    if incident.overdue:
        return f"{called}; nobody answered within {window_in_words(policy.operator_deadline)}"
    return (
        f"{called}; without an answer by {_time(since + policy.operator_deadline)}: {policy.after_deadline}"
    )


def _blockers(pods: list[PodBlocker]) -> list[str]:
    """Pods that keep the drain from ending, each with its reason."""
    return [
        "| pod | workload | reason | since | attempts | what to do |",
        "|---|---|---|---|---|---|",
        *(
            f"| {pod.namespace}/{pod.name} | {pod.workload} | {pod.reason}"
            f"{' ' + ', '.join(pod.names) if pod.names else ''} | {_time(pod.since)} | {pod.attempts} "
            f"| {_cell(pod.message)} |"
            for pod in pods
        ),
        "",
    ]


def _evidence(act: Act) -> str:
    return f" Evidence {_cell(act.evidence)}" if act.evidence else ""


def _place(fault: Fault) -> str:
    return fault.entity.uuid or fault.entity.pci_address or f"the {fault.entity.kind}"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():.0f} s"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")[:300]
