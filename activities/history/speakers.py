"""Who started a run, and who sent its updates: read from the history, where the server wrote it."""

from collections.abc import Collection, Iterable

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client

from gpu_runbooks.activities.model.speakers import FindSpeakers, Speakers

PAGE, MOST_PAGES = 100, 10
"""Events of a page, newest first, and pages read at most: a word that is asked about is a recent one."""

LONGEST_IDENTITY = 200
"""Characters: a client writes its identity itself."""


async def find_speakers(client: Client, request: FindSpeakers) -> Speakers:
    """The identities behind these updates. What is not among the newest events is left out.

    Raises `RPCError` where the server does not answer.
    """
    run = WorkflowExecution(workflow_id=request.workflow_id, run_id=request.run_id)
    wanted = {update for update in request.updates if update}
    found: dict[str, str] = {}
    if "" in request.updates:
        first = await client.workflow_service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(namespace=client.namespace, execution=run, maximum_page_size=1)
        )
        found |= speakers_in(first.history.events, {""})
    token = b""
    for _ in range(MOST_PAGES):
        if wanted <= found.keys():
            break
        page = await client.workflow_service.get_workflow_execution_history_reverse(
            GetWorkflowExecutionHistoryReverseRequest(
                namespace=client.namespace, execution=run, maximum_page_size=PAGE, next_page_token=token
            )
        )
        found |= speakers_in(page.history.events, wanted)
        if not (token := page.next_page_token):
            break
    return Speakers(identities=found)


def speakers_in(events: Iterable[HistoryEvent], updates: Collection[str]) -> dict[str, str]:
    """Identities by the id of the update; that of the start by an empty id."""
    found = {}
    for event in events:
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                update, identity = "", event.workflow_execution_started_event_attributes.identity
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                accepted = event.workflow_execution_update_accepted_event_attributes
                update = accepted.protocol_instance_id
                identity = accepted.accepted_request.meta.identity
            case _:
                continue
        who = _in_words(identity, event.principal.name, event.principal.type)
        if update in updates and who:
            found[update] = who
    return found


def _in_words(identity: str, principal: str, kind: str) -> str:
    """What the client says of itself, and whom the server authenticated."""
    authenticated = f"authenticated as {kind}:{principal}".replace("as :", "as ") if principal else ""
    return ", ".join(part for part in (identity[:LONGEST_IDENTITY], authenticated[:LONGEST_IDENTITY]) if part)
