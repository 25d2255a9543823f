"""What a sweep meets in Temporal: a runbook that has ended, and a budget with holders."""

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

OUTCOME = SearchAttributeKey.for_keyword("RunbookOutcome")


@workflow.defn(name="DrainNode")
class Ending:
    """A runbook that ends as it is told, with the outcome that it is given."""

    @workflow.run
    async def run(self, outcome: str) -> None:
        workflow.upsert_search_attributes([OUTCOME.value_set(outcome)])


@workflow.defn(name="DisruptionBudget")
class Budget:
    """A budget with these holders and waiters, which takes slots back."""

    @workflow.init
    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    @workflow.run
    async def run(self, state: dict[str, Any]) -> None:  # noqa: ARG002 - read in __init__
        await workflow.wait_condition(lambda: False)

    @workflow.query
    def state(self) -> dict[str, Any]:
        return self._state

    @workflow.signal
    def return_slot(self, request: dict[str, Any]) -> None:
        for waits in ("holders", "waiters"):
            known = self._state[waits]
            self._state[waits] = [each for each in known if each["incident"] != request["incident"]]
