"""A NodeTask as the agent reads it, and the reasons not to touch it. Pure."""

from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.model.node_task import HardwareFacts, NodeTaskKind
from gpu_runbooks.workers.node_agent.device_settings import DeviceSettings
from gpu_runbooks.workers.node_agent.own_node import OwnNode

LONGEST_MESSAGE = 4096
"""Limit of the CRD for `status.message`."""


class Spec(BaseModel):
    """What the node is asked to do. The API server keeps it as it was created."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    node_name: str = Field(alias="nodeName")
    node_uid: str = Field(alias="nodeUID")
    boot_id: str = Field(alias="bootID")
    kind: NodeTaskKind
    incident: str
    start_deadline: AwareDatetime = Field(alias="startDeadline")
    deadline: AwareDatetime
    gpu_uuid: str | None = Field(default=None, alias="gpuUUID")
    gpu_pci_address: str | None = Field(default=None, alias="gpuPCIAddress")


class Status(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    phase: Literal["Running", "Succeeded", "Failed"] | None = None
    facts: HardwareFacts | None = None
    """Of a task that is Running: what was measured before it acted."""
    restore: tuple[DeviceSettings, ...] = ()
    """Of a reset: what has to be as it was afterwards."""


class NodeTask(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    uid: str
    spec: Spec
    status: Status

    @property
    def begun(self) -> bool:
        return self.status.phase == "Running"


def acts(task: Object) -> bool:
    """Whether the task changes the machine; what only looks may be done by two at a time."""
    return (task.get("spec") or {}).get("kind") not in {NodeTaskKind.MEASURE, NodeTaskKind.COLLECT}


def ended(task: Object) -> bool:
    return (task.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def read(task: Object) -> NodeTask | str:
    """The task, or in words why it cannot be read."""
    try:
        return NodeTask(
            name=task["metadata"]["name"],
            uid=task["metadata"]["uid"],
            spec=task.get("spec"),
            status=task.get("status") or {},
        )
    except ValidationError as error:
        fields = ("/".join(map(str, trouble["loc"])) + ": " + trouble["msg"] for trouble in error.errors())
        return f"this agent cannot read the task: {'; '.join(fields)}"


def objection(task: NodeTask, node: OwnNode, boot_id: str | None, now: datetime) -> str | None:
    """Why a task must not be worked on, in words for its status.

    A task is for one machine, one boot and a limited time: a late reset would hit whoever works there now.
    """
    spec = task.spec
    if spec.node_name != node.name:
        return f"the task is for node {spec.node_name}, this is {node.name}"
    if spec.node_uid != node.uid:
        return f"the task is for node UID {spec.node_uid}, the node {node.name} has {node.uid}"
    if boot_id is None:
        return "this agent cannot read the boot id of its machine"
    if spec.boot_id != boot_id:
        return f"the task is for boot {spec.boot_id}, this is boot {boot_id}"
    if now > spec.deadline and not (task.begun and spec.kind is NodeTaskKind.RESET_GPU):
        # What a reset took away is given back, however late.
        return f"the deadline {spec.deadline.isoformat()} has passed"
    if not task.begun and now > spec.start_deadline:
        return f"the task had to be started by {spec.start_deadline.isoformat()}"
    return None
