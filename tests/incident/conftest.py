"""A Temporal server with skipped time, and workers over a scripted world."""

import asyncio
import functools
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from incident.fakes import World
from incident.wedging import logged_runtime
from temporalio import activity
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from gpu_runbooks.activities.model.ledger import HardwareHistory, RecallHardware
from gpu_runbooks.activities.model.slot import FindHolders, Holders
from gpu_runbooks.activities.model.speakers import FindSpeakers, Speakers
from gpu_runbooks.activities.names import CLOUD_QUEUE, CLUSTER_QUEUE, REMEDIATION_QUEUE, TEMPORAL_QUEUE
from gpu_runbooks.activities.temporal import Temporal
from gpu_runbooks.workers.controller import WORKFLOWS
from gpu_runbooks.workers.punctual import PunctualRunner
from gpu_runbooks.workflows.search_attributes import SEARCH_ATTRIBUTES

PROMPT = {"max_heartbeat_throttle_interval": timedelta(milliseconds=100)}
"""A heartbeat brings a cancellation: by default it is sent every eight seconds only."""


@pytest.fixture
async def skipping() -> AsyncIterator[WorkflowEnvironment]:
    """The time-skipping test server: waits of hours pass in milliseconds."""
    async with await WorkflowEnvironment.start_time_skipping(
        data_converter=pydantic_data_converter,
        runtime=logged_runtime(),
        test_server_existing_path=str(Path(sys.executable).parent / "temporal-test-server"),
    ) as environment:
        # The test server lists no attributes, so `search_attributes.register` cannot ask what is missing.
        types = {key.name: IndexedValueType.ValueType(key.indexed_value_type) for key in SEARCH_ATTRIBUTES}
        await environment.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=environment.client.namespace, search_attributes=types)
        )
        yield environment


@asynccontextmanager
async def dev_server(*settings: str) -> AsyncIterator[Client]:
    """The real server, in memory. Settings are its dynamic configuration, `key=value`."""
    arguments = [part for setting in settings for part in ("--dynamic-config-value", setting)]
    async with await WorkflowEnvironment.start_local(
        data_converter=pydantic_data_converter,
        dev_server_existing_path=str(Path(sys.executable).parent / "temporal"),
        dev_server_extra_args=arguments,
        search_attributes=SEARCH_ATTRIBUTES,
        dev_server_log_level="error",
    ) as environment:
        yield environment.client


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Client]:
    """The real server with its defaults."""
    async with dev_server() as client:
        yield client


class ListlessTemporal(Temporal):
    """On the test server, which lists no workflows and no history backwards: there is no earlier budget."""

    @activity.defn
    async def find_holders(self, request: FindHolders) -> Holders:  # noqa: ARG002
        return Holders()

    @activity.defn
    async def recall_hardware(self, request: RecallHardware) -> HardwareHistory:  # noqa: ARG002
        return HardwareHistory()

    @activity.defn
    async def find_speakers(self, request: FindSpeakers) -> Speakers:  # noqa: ARG002
        return Speakers()


async def lists_workflows(client: Client) -> bool:
    try:
        await client.count_workflows()
    except RPCError:
        return False
    return True


@asynccontextmanager
async def running_workers(client: Client, world: World, cached_workflows: int = 1000) -> AsyncIterator[None]:
    """One worker per queue, as the roles run them."""
    real = await lists_workflows(client)
    temporal = Temporal(client) if real else ListlessTemporal(client)
    # On the real server a heartbeat in the middle of an update makes its workflow task one of the history.
    beats = {} if real else PROMPT
    async with AsyncExitStack() as stack:
        for worker in (
            Worker(
                client,
                task_queue=REMEDIATION_QUEUE,
                workflows=WORKFLOWS,
                workflow_runner=PunctualRunner(),
                max_cached_workflows=cached_workflows,
            ),
            Worker(client, task_queue=CLUSTER_QUEUE, activities=world.cluster(), **beats),
            Worker(client, task_queue=CLOUD_QUEUE, activities=world.cloud(), **beats),
            Worker(client, task_queue=TEMPORAL_QUEUE, activities=temporal.activities()),
        ):
            await stack.enter_async_context(worker)
        yield


Workers = Callable[[Client, World], AbstractAsyncContextManager[None]]


@pytest.fixture
def workers() -> Workers:
    """Workers without a cache: each workflow task replays the history from its start.

    That is the cheapest test of determinism there is. What runs on the real server has a cache, as deployed.
    """
    return functools.partial(running_workers, cached_workflows=0)


async def until(condition, *, seconds: float = 60) -> None:
    """Await a condition of the world, with a limit that only a failure reaches."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)
