"""The input of a runbook: raw JSON from an intake, a person, or the run before."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpu_runbooks.activities.errors import BAD_INPUT, refusal
from gpu_runbooks.activities.model.fault import Entity
from gpu_runbooks.activities.model.plan import FaultReport, Plan, RungName
from gpu_runbooks.activities.names import incident_id
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.operator import OneLine, wrong_fields
from gpu_runbooks.workflows.phases import Runbook

TESTED = (RungName.VALIDATE, RungName.RETURN)

LADDERS = {
    Runbook.DRAIN: ("drain", (RungName.BLOCK, RungName.DRAIN)),
    Runbook.RESET: ("reset", (RungName.BLOCK, RungName.DRAIN, RungName.RESET_GPU, *TESTED)),
    Runbook.REBOOT: ("reboot", (RungName.BLOCK, RungName.DRAIN, RungName.REBOOT, *TESTED)),
    Runbook.REPLACE: ("replace", (RungName.BLOCK, RungName.DRAIN, RungName.REPLACE, *TESTED)),
    Runbook.VALIDATE: ("block", (RungName.BLOCK, *TESTED)),
    Runbook.RETURN: ("block", (RungName.BLOCK, *TESTED)),
}
"""Of the runbooks that only people start: the ladder of the policy, and what they climb of it."""


GPU_NAME = r"^(GPU-[0-9A-Za-z-]{1,90}|[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})$"
"""UUID as NVML spells it, or a PCI address without function."""


class AutomaticStart(BaseModel):
    """Written by an intake: the fault, with the plan that policy makes of it."""

    report: FaultReport
    slot_asked: bool = False
    """The intake asks for the slot: `slot_request.opens_waiting`."""


class ContinuedStart(BaseModel):
    """Written by the run before, when it continues as new."""

    incident: Incident


class HandStart(BaseModel):
    """Written by a person, so an unknown field is a slip and is refused: all runbooks that name their act."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    node: str = Field(min_length=1)
    reason: OneLine = Field(min_length=1, max_length=500)
    operator: OneLine = Field(min_length=1, max_length=100)


class ResetStart(HandStart):
    """A person's start of `ResetGpu`."""

    gpu: str | None = Field(default=None, pattern=GPU_NAME)
    """UUID or PCI address of the one to reset; None resets all GPUs of the node."""

    def entity(self) -> Entity:
        """What the fault is about."""
        if self.gpu is None:
            return Entity()
        if self.gpu.startswith("GPU-"):
            return Entity(kind="gpu", uuid=self.gpu)
        return Entity(kind="gpu", pci_address=self.gpu.lower())


class ManualStart(HandStart):
    """A person's start of `NodeRemediation`; node, reason and operator are enough."""

    ladder: str | None = None
    """Ladder of the policy; None for that of the rule for manual starts."""
    take_held: bool = False
    """Repair the node although a person drained it by hand and holds it."""


Start = AutomaticStart | ContinuedStart | HandStart

BY_RUNBOOK: dict[Runbook, type[HandStart]] = {Runbook.REMEDIATE: ManualStart, Runbook.RESET: ResetStart}
"""Where a person may write more than node, reason and operator."""


def read_start(raw: Any, runbook: Runbook = Runbook.REMEDIATE) -> Start:
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
    model: type[Start] = BY_RUNBOOK.get(runbook, HandStart)
    if "incident" in raw:
        model = ContinuedStart
    elif "report" in raw and runbook is Runbook.REMEDIATE:
        model = AutomaticStart
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise refusal(BAD_INPUT, f"bad input of {runbook}: {wrong_fields(error, model)}") from None


def narrowed(plan: Plan, runbook: Runbook) -> Plan:
    """The plan with the rungs of this runbook only.

    Raises `BadInput` where the policy's own ladder of that name lacks one of them.
    """
    if runbook not in LADDERS:
        return plan
    ladder, wanted = LADDERS[runbook]
    rungs = tuple(rung for rung in plan.treatment.rungs if rung.name in wanted)
    if missing := [name for name in wanted if name not in {rung.name for rung in rungs}]:
        raise refusal(
            BAD_INPUT,
            f"{runbook} climbs {', '.join(wanted)} of the policy's ladder {ladder!r}, which lacks "
            f"{', '.join(missing)}: add it there",
        )
    return plan.model_copy(update={"treatment": plan.treatment.model_copy(update={"rungs": rungs})})


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
