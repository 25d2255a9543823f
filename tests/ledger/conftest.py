"""A real Temporal server, and small workflows that leave in it what incidents leave."""

import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from ledger.leaving import Leaves
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from gpu_runbooks.activities.model.ledger import PastRepair
from gpu_runbooks.workflows.search_attributes import SEARCH_ATTRIBUTES

QUEUE = "leaving"


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Client]:
    async with (
        await WorkflowEnvironment.start_local(
            data_converter=pydantic_data_converter,
            dev_server_existing_path=str(Path(sys.executable).parent / "temporal"),
            search_attributes=SEARCH_ATTRIBUTES,
            dev_server_log_level="error",
        ) as environment,
        Worker(environment.client, task_queue=QUEUE, workflows=[Leaves]),
    ):
        yield environment.client


Leave = Callable[..., Awaitable[str]]


@pytest.fixture(scope="module")
async def leave(server: Client) -> Leave:
    """Run an incident that leaves these repairs; returns its first run id."""
    number = itertools.count()

    async def run(
        repairs: Sequence[PastRepair] = (),
        hardware: Sequence[str] | None = None,
        *,
        end: str = "complete",
        raw: object = None,
        outcome: str = "returned",
    ) -> str:
        names = [name for repair in repairs for name in repair.hardware] if hardware is None else hardware
        handle = await server.start_workflow(
            Leaves.run,
            {
                "repairs": [repair.model_dump(mode="json") for repair in repairs] if raw is None else raw,
                "hardware": list(dict.fromkeys(names)),
                "end": end,
                "outcome": outcome,
            },
            id=f"node/prod/gpu-{next(number)}",
            task_queue=QUEUE,
        )
        if end in {"complete", "continue"}:
            await handle.result()
        else:
            await handle.query(Leaves.written)
        if end == "terminate":
            await handle.terminate()
        return handle.first_execution_run_id or ""

    return run
