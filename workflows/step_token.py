"""The token of the step that an incident is at: a person's word for an earlier one does not count. Pure."""

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.phases import Phase

RUNGS = {
    Phase.BLOCKING: RungName.BLOCK,
    Phase.DRAINING: RungName.DRAIN,
    Phase.NOTIFYING: RungName.NOTIFY_OWNER,
    Phase.RESTARTING_WORKLOAD: RungName.RESTART_WORKLOAD,
    Phase.RESETTING_GPU: RungName.RESET_GPU,
    Phase.REBOOTING: RungName.REBOOT,
    Phase.REPLACING: RungName.REPLACE,
    Phase.VALIDATING: RungName.VALIDATE,
    Phase.RETURNING: RungName.RETURN,
}
"""The rung that is at work in a phase."""


def step_of(incident: Incident) -> str:
    """What the incident does or asks now, such as `reboot/2`, `question/1` or `waiting/3`.

    A rung counts its attempts, a question those before it, and a wait the acts before it.
    """
    if incident.asking is not None:
        return f"{incident.asking}/{incident.attempts(incident.asking) + 1}"
    if incident.question is not None:
        return f"question/{incident.answered + 1}"
    if (rung := RUNGS.get(incident.phase)) is not None:
        return f"{rung}/{incident.attempts(rung) + 1}"
    return f"{incident.phase}/{len(incident.acts)}"


def is_asked(incident: Incident) -> str:
    """What the incident does or asks now, for a person whose word was about something else."""
    at = f"it is at {step_of(incident)} now, phase {incident.phase}"
    return f"{at}, and asks: {incident.question}" if incident.question else f"{at}, and asks nothing"
