"""`NodeRemediation`: the runbook that a fault starts, and that a person may start as well."""

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.workflows import audit
    from gpu_runbooks.workflows.runbook import IncidentLife


@workflow.defn
class NodeRemediation(IncidentLife):
    """Blocks, drains, repairs, validates and returns one GPU node, escalating only on proof."""

    @workflow.init
    def __init__(self, raw: Any = None) -> None:
        super().__init__(raw)

    @workflow.run
    async def run(self, raw: Any = None) -> audit.Result:
        """Climb the ladder that policy gives for the fault."""
        return await self._climb(raw)
