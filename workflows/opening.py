"""The input of `NodeRemediation`: raw JSON from an intake, a person, or the run before."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpu_runbooks.activities.errors import BAD_INPUT, refusal
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.activities.names import incident_id
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.operator import wrong_fields


class AutomaticStart(BaseModel):
    """Written by an intake: the fault, with the plan that policy makes of it."""

    report: FaultReport


class ContinuedStart(BaseModel):
    """Written by the run before, when it continues as new."""

    incident: Incident


class ManualStart(BaseModel):
    """Written by a person, so an unknown field is a slip and is refused.

    `{"node": "...", "reason": "...", "operator": "..."}` is enough.
    """

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    node: str = Field(min_length=1)
    reason: str = Field(min_length=1, max_length=500)
    operator: str = Field(min_length=1, max_length=100)
    ladder: str | None = None
    """Ladder of the policy; None for that of the rule for manual starts."""


Start = AutomaticStart | ContinuedStart | ManualStart


def read_start(raw: Any) -> Start:
    """Read the input.

    Raises a non-retryable ApplicationError of type `BadInput` that names each wrong field: a workflow fails
    at once with it, where a typed argument would leave the run stuck.
    """
    if not isinstance(raw, dict):
        raise refusal(
            BAD_INPUT,
            'the input must be one JSON object, for example {"node": "ip-10-0-0-1.ec2.internal", '
            f'"reason": "ECC errors", "operator": "ana"}}, not {type(raw).__name__}',
        )
    model: type[Start] = ManualStart
    if "report" in raw:
        model = AutomaticStart
    elif "incident" in raw:
        model = ContinuedStart
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise refusal(BAD_INPUT, f"bad input of NodeRemediation: {wrong_fields(error)}") from None


def read_cluster(workflow_id: str, node: str) -> str:
    """Cluster in the id `node/<cluster>/<node>`.

    One incident per node holds only if the id says so: any other id is refused with the right one.
    """
    parts = workflow_id.split("/")
    if len(parts) == 3 and parts[0] == "node" and parts[1] and parts[2] == node:
        return parts[1]
    cluster = parts[1] if len(parts) == 3 and parts[1] else "<cluster>"
    raise refusal(
        BAD_INPUT,
        f"the workflow id of an incident on node {node} must be {incident_id(cluster, node)!r}, "
        f"not {workflow_id!r}: start it again with --workflow-id {incident_id(cluster, node)}",
    )
