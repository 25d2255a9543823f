"""The commands of a person, ready to copy from the details of a workflow: those that fit its state."""

from collections.abc import Iterator

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.phases import Phase
from gpu_runbooks.workflows.severity import REPAIRS
from gpu_runbooks.workflows.step_token import step_of


def commands_for(incident: Incident) -> list[str]:
    """One line for each word that fits now, with the token of the step; none for an incident that ends."""
    if incident.outcome is not None or incident.phase in {Phase.OPEN, Phase.RETURNING, Phase.CLOSED}:
        return []
    words = _answers(incident) if incident.question is not None else _any_time(incident)
    step = f', "step": "{step_of(incident)}"'
    return [f"- {what}: {command(incident.workflow_id, name, step + more)}" for what, name, more in words]


def command(workflow_id: str, name: str, more: str = "") -> str:
    """A word to a workflow by the command line, with what it has beside operator and reason."""
    said = f'{{"operator": "you", "reason": "why"{more}}}'
    return f"`temporal workflow update execute --workflow-id {workflow_id} --name {name} --input '{said}'`"


def _answers(incident: Incident) -> Iterator[tuple[str, str, str]]:
    """What each word does, its name, and what it has beside operator, reason and step."""
    if incident.phase is Phase.PAUSED:
        yield "go on", "resume", ""
        return
    if incident.asking is not None:
        yield "let it be done", "approve", f', "rung": "{incident.asking}"'
        yield "leave it out", "reject", f', "rung": "{incident.asking}"'
    yield "drain or validate again", "retry", ""
    if incident.blockers:
        ways = "`evict` despite an annotation, `delete` despite a budget, or `abandon`"
        yield (
            f"pods in the way, {ways}",
            "override_drain",
            ', "method": "evict", "pods": ["namespace/name"]',
        )
    for rung in _repairs(incident):
        again = "once more" if incident.attempts(rung) else "next"
        yield f"{rung} {again}", "escalate_to", f', "rung": "{rung}"'
    if incident.blocked and not incident.gone:
        yield "give it back although nobody validated it", "return_anyway", ""
    yield _end(incident), "abort", ""
    if incident.blocked:
        yield "end it, and take the block off", "abort", ', "block": "remove"'


def _any_time(incident: Incident) -> Iterator[tuple[str, str, str]]:
    if incident.paused is not None and incident.phase is Phase.PAUSED:
        yield "go on", "resume", ""
    else:
        yield "do nothing for a while", "pause", ', "for": "2h"'
    if incident.phase is Phase.PROBATION:
        yield "end the watch, such as to start another runbook: the node stays in service", "abort", ""
    else:
        yield _end(incident), "abort", ""


def _end(incident: Incident) -> str:
    return "end it, blocked" if incident.blocked else "end it"


def _repairs(incident: Incident) -> list[RungName]:
    return [rung.name for rung in incident.plan.treatment.rungs if rung.name in REPAIRS]
