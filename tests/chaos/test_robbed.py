"""An incident whose successor another one took: it asks its group for a newer list, and goes on."""

from datetime import UTC, datetime

from incident.conftest import running_workers
from incident.fakes import World
from incident.plans import fault, identity, report
from temporalio import activity

from gpu_runbooks.activities.model.repair import (
    AwaitSuccessor,
    ClaimReplacement,
    ReplacementProof,
    SuccessorComing,
)
from gpu_runbooks.activities.names import REMEDIATION_QUEUE
from gpu_runbooks.workflows.audit import Result


class Robbed(World):
    """The first machine of the group goes to somebody else."""

    def __init__(self) -> None:
        super().__init__(node=identity("robbed", provider_id=identity().provider_id))
        self.lists: list[tuple[str, ...]] = []
        self.patience: list[float] = []

    @activity.defn
    async def await_successor(self, request: AwaitSuccessor) -> SuccessorComing:  # noqa: ARG002
        await self._called("await_successor")
        self.lists.append(("i-1",) if not self.lists else ("i-1", "i-2"))
        return SuccessorComing(coming=True, instances=self.lists[-1])

    @activity.defn
    async def claim_replacement(self, request: ClaimReplacement) -> ReplacementProof:
        self.patience.append(request.patience.total_seconds())
        if "i-2" not in request.instances:
            await self._called("claim")
            return ReplacementProof(proven=False, taken=True)
        return await super().claim_replacement(request)


async def test_the_group_is_asked_again_and_the_machine_terminated_once(server):
    world = Robbed()
    async with running_workers(server, world):
        opened = report("replace", of=fault(at=datetime.now(UTC)), identity=world.node, pool="robbed")
        handle = await server.start_workflow(
            "NodeRemediation",
            {"report": opened.model_dump(mode="json")},
            id="node/test/robbed",
            task_queue=REMEDIATION_QUEUE,
            static_summary="a test",
            result_type=Result,
        )
        result = await handle.result()
    assert result.outcome == "replaced"
    assert world.calls.count("replace") == 1
    assert world.lists == [("i-1",), ("i-1", "i-2")]
    assert world.patience == [30, 60]
