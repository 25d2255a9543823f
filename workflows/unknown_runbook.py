"""What answers a start whose type nobody knows: without it the run hangs, and holds the node's id."""

from collections.abc import Sequence
from typing import NoReturn

from temporalio import workflow
from temporalio.common import RawValue

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.activities.errors import BAD_INPUT, refusal
    from gpu_runbooks.activities.names import RUNBOOKS


@workflow.defn(dynamic=True)
class UnknownRunbook:
    """Fails at once, with the types that there are."""

    @workflow.run
    async def run(self, _: Sequence[RawValue]) -> NoReturn:
        """Touch nothing."""
        slip, known = workflow.info().workflow_type, ", ".join(RUNBOOKS)
        raise refusal(BAD_INPUT, f"no runbook is called {slip!r}: write --type with one of {known}")
