"""A workflow that leaves what an incident leaves: memo and search attributes."""

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.activities.history.recorded_repairs import MEMO
    from gpu_runbooks.workflows.search_attributes import RUNBOOK_HARDWARE, RUNBOOK_OUTCOME, RUNBOOK_PHASE


@workflow.defn
class Leaves:
    @workflow.init
    def __init__(self, told: dict[str, Any]) -> None:
        workflow.upsert_memo({MEMO: told["repairs"]})
        workflow.upsert_search_attributes(
            [RUNBOOK_HARDWARE.value_set(told["hardware"]), RUNBOOK_PHASE.value_set("rebooting")]
        )

    @workflow.run
    async def run(self, told: dict[str, Any]) -> None:
        if told["end"] == "continue":
            workflow.continue_as_new({**told, "end": "complete", "repairs": told["repairs"][:1]})
        await workflow.wait_condition(lambda: told["end"] == "complete")
        workflow.upsert_search_attributes([RUNBOOK_OUTCOME.value_set(told["outcome"])])

    @workflow.query
    def written(self) -> bool:
        return True
