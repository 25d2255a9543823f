"""What Temporal knows of a workflow, as the server itself says it.

Asked by the service's own calls: the SDK's client fails on a status that it has no name for, such as that of
a workflow paused through the server, and one such workflow would hide all others of a list.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping

from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    ListWorkflowExecutionsRequest,
    ListWorkflowExecutionsResponse,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.activities.model.sweep import Run, Standing

PREFIX = "WORKFLOW_EXECUTION_STATUS_"

OPEN = frozenset({"RUNNING", "PAUSED"})

ENDED = frozenset({"COMPLETED", "FAILED", "CANCELED", "TERMINATED", "CONTINUED_AS_NEW", "TIMED_OUT"})
"""What is neither, such as a status of a newer server, is unknown."""


def status_of(info: WorkflowExecutionInfo) -> str:
    """Temporal's word for the status, such as RUNNING; a number for one that is new."""
    try:
        return WorkflowExecutionStatus.Name(info.status).removeprefix(PREFIX)
    except ValueError:
        return str(info.status)


def attribute(info: WorkflowExecutionInfo, name: str) -> str:
    """A search attribute of type Keyword; empty where there is none."""
    value = _decoded(info.search_attributes.indexed_fields, name)
    return value if isinstance(value, str) else ""


def attributes(info: WorkflowExecutionInfo, name: str) -> tuple[str, ...]:
    """A search attribute of type KeywordList."""
    value = _decoded(info.search_attributes.indexed_fields, name)
    values = value if isinstance(value, list) else [value]
    return tuple(each for each in values if isinstance(each, str))


def _decoded(fields: Mapping[str, Payload], name: str) -> object:
    try:
        return json.loads(fields[name].data) if name in fields else None
    except ValueError:
        return None


async def listed(client: Client, query: str, token: str, size: int) -> ListWorkflowExecutionsResponse:
    """A page of the list of workflows."""
    return await client.workflow_service.list_workflow_executions(
        ListWorkflowExecutionsRequest(
            namespace=client.namespace,
            query=query,
            page_size=size,
            next_page_token=b64decode(token),
        )
    )


def token_of(page: ListWorkflowExecutionsResponse) -> str:
    """Where the list goes on, as text; empty on the last page."""
    return b64encode(page.next_page_token).decode()


async def described(client: Client, workflow_id: str, run_id: str = "") -> WorkflowExecutionInfo | None:
    """The latest run of a workflow, or this one; None where Temporal knows none. Raises `RPCError`."""
    request = DescribeWorkflowExecutionRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
    )
    try:
        answer = await client.workflow_service.describe_workflow_execution(request)
    except RPCError as error:
        if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
            return None  # what is no run id was never one of ours
        raise
    return answer.workflow_execution_info


async def standing(client: Client, run: Run) -> Standing:
    """What became of a run. One that cannot be asked is unknown, and nobody may act on that."""
    try:
        latest = await described(client, run.id)
        if latest is None:
            return Standing(run=run, state="forgotten")
        status = status_of(latest)
        if status not in OPEN | ENDED:
            return Standing(run=run, state="unknown", how=f"status {status} is not known here")
        same = run.run_id in {"", latest.first_run_id}
        if status in OPEN:
            return Standing(run=run, state="open" if same else "open-later", how=status.lower())
        its_own = latest if same else await described(client, run.id, run.run_id)
        return Standing(run=run, state="closed", how=_end(its_own))
    except RPCError as error:
        return Standing(run=run, state="unknown", how=f"{error.status.name}: {error.message}"[:120])


def _end(info: WorkflowExecutionInfo | None) -> str:
    if info is None:
        return ""
    return attribute(info, "RunbookOutcome") or status_of(info).lower().replace("_", "-")
