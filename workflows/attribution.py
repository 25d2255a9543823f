"""Who spoke: the name that a person gave, together with the identity that the server saw.

The history has the identity, the workflow does not: an activity reads it there. Without an answer the ladder
goes on, and the name stands alone.
"""

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.workflows.failures import in_words
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.incident_state import Requester, Spoken
from gpu_runbooks.workflows.recording import show
from gpu_runbooks.workflows.speakers import find_identities


async def attribute(incident: Incident) -> None:
    """Note who said what was said since the last step, and take back an approval of one's own request."""
    if not incident.unattributed:
        return
    asked, incident.unattributed = incident.unattributed, []
    runs = {spoken.run_id for spoken in asked}
    identities: dict[str, str] = {}
    for run_id in sorted(runs):
        found = await _speakers(incident, run_id, [each.update for each in asked if each.run_id == run_id])
        identities |= found
    for spoken in asked:
        identity = identities.get(spoken.update, "")
        if identity:
            said = f"{spoken.what}: {spoken.operator} (identity {identity})"
            incident.note(workflow.now(), said)
            _know(incident, spoken.operator, identity)
    for spoken in asked:
        _refuse_own(incident, spoken, identities.get(spoken.update, ""))
    show(incident)


async def _speakers(incident: Incident, run_id: str, updates: list[str]) -> dict[str, str]:
    try:
        return await find_identities(run_id, updates)
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        incident.note(workflow.now(), f"the server's identity of who spoke is not known: {in_words(error)}")
        return {}


def _know(incident: Incident, operator: str, identity: str) -> None:
    """Keep the identity with whoever asked, for a later approval."""
    incident.requesters = [
        Requester(operator=asked.operator, identity=identity)
        if asked.operator == operator and not asked.identity
        else asked
        for asked in incident.requesters
    ]


def _refuse_own(incident: Incident, spoken: Spoken, identity: str) -> None:
    """Take an approval back that came from whoever asked, under another name."""
    rungs = incident.plan.treatment.rungs
    rung = next((each for each in rungs if each.name is spoken.approves), None)
    if rung is None or not rung.approval_by_other or not identity:
        return
    if any(asked.identity == identity for asked in incident.requesters):
        incident.approved = {**incident.approved, rung.name: 0}
        incident.note(
            workflow.now(),
            f"approval of {rung.name} does not count: {spoken.operator} has the identity {identity} of "
            "whoever asked, and policy wants another person's",
        )
