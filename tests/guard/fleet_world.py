"""Many nodes in one world: each with its own machine and block."""

from typing import Any

from incident.fakes import World
from incident.plans import fault, identity, report
from temporalio import activity
from temporalio.client import Client, WorkflowHandle

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.node import BlockNode, NodeObservation, ObserveNode
from gpu_runbooks.activities.model.slot import PoolBudget
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, incident_id
from gpu_runbooks.workflows.audit import Result

CONDITION = "example.com/GPUHealthy"


class FleetWorld(World):
    """What is done to which node is in `disturbed`; `conditions` are those of all nodes."""

    def __init__(self, **script: Any) -> None:
        super().__init__(**script)
        self.disturbed: set[str] = set()

    @activity.defn
    async def observe_node(self, request: ObserveNode):
        kept = self.node
        if request.name != kept.name:
            self.node = identity(request.name)
        try:
            return NodeObservation.model_validate(await super().observe_node(request))
        finally:
            self.node = kept

    @activity.defn
    async def block_node(self, request: BlockNode):
        self.disturbed.add(request.identity.name)
        self.node, self.marker = request.identity, None
        return await super().block_node(request)


def bad_node(name: str, now: Any, **changes: Any):
    """A condition of a node that is bad, and the plan for it."""
    condition = fault(CONDITION, at=now, fingerprint=f"{name}@{now}", gpu=None).model_copy(
        update={
            "source": FaultSource.CONDITION,
            "status": "False",
            "good_status": "True",
            "reporter": "a-detector",
        }
    )
    return report(
        "reboot",
        of=condition,
        identity=identity(name),
        **{"budget": PoolBudget(max_unavailable=3), "traits": {"driver": "570.1"}, **changes},
    )


async def open_incident(client: Client, name: str, now: Any, **changes: Any) -> WorkflowHandle[Any, Result]:
    opened = bad_node(name, now, **changes)
    return await client.start_workflow(
        "NodeRemediation",
        {"report": opened.model_dump(mode="json")},
        id=incident_id("test", name),
        task_queue=REMEDIATION_QUEUE,
        result_type=Result,
    )
