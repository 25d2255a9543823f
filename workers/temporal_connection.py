"""The connection to Temporal, and the worker that every role runs."""

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError
from temporalio.worker import PollerBehaviorAutoscaling, Worker

from gpu_runbooks.workers.punctual import PunctualRunner

GRACE = timedelta(seconds=20)
"""What a running activity gets to end after SIGTERM. A Pod's grace period must be longer."""

POLLERS = PollerBehaviorAutoscaling(minimum=10, initial=20, maximum=50)
"""Long polls of a queue. Of the SDK's default of five, one takes up new workflows: a burst of incidents would
wait in line for it, 200 of them for a minute on a busy server."""


async def connect(*, lazy: bool = False) -> Client:
    """Connect as the environment and Temporal's configuration file say (`TEMPORAL_ADDRESS`, ...).

    Lazy: the first call connects, so that a role starts while Temporal is away.
    Raises `ValueError` where nothing names a server.
    """
    settings = ClientConfig.load_client_connect_config()
    if "target_host" not in settings:
        raise ValueError("no Temporal server is configured: set TEMPORAL_ADDRESS, for example 127.0.0.1:7233")
    return await Client.connect(**settings, data_converter=pydantic_data_converter, lazy=lazy)


def unanswered(client: Client, error: RPCError | RuntimeError) -> str:
    """Why Temporal did not answer a command, and what to look at."""
    where = f"Temporal at {client.service_client.config.target_host}, namespace {client.namespace}"
    if not isinstance(error, RPCError):
        return f"{where}, cannot be reached: {error}. Is TEMPORAL_ADDRESS right, and does the server run?"
    if unknown := re.search(r"\bRunbook[A-Z]\w*", error.message):
        return (
            f"{where}, has no search attribute {unknown[0]}: no controller of gpu-runbooks has run there. "
            "Is TEMPORAL_NAMESPACE right?"
        )
    return f"{where}, refused ({error.status.name}): {error.message}"


async def run_worker(
    client: Client,
    stop: asyncio.Event,
    *,
    task_queue: str,
    workflows: Sequence[type] = (),
    activities: Sequence[Callable[..., Any]] = (),
    activities_at_once: int = 500,
) -> None:
    """Run a worker until `stop` is set, then let what runs finish within the grace.

    Activities are coroutines that mostly wait: a drain of hours must not keep others out.
    """
    worker = Worker(
        client,
        task_queue=task_queue,
        workflows=workflows,
        activities=activities,
        workflow_runner=PunctualRunner(),
        max_concurrent_activities=activities_at_once,
        max_cached_workflows=2000,
        workflow_task_poller_behavior=POLLERS,
        activity_task_poller_behavior=POLLERS,
        # The SDK's default waits up to 60 s, longer than our heartbeat timeouts.
        max_heartbeat_throttle_interval=timedelta(seconds=3),
        graceful_shutdown_timeout=GRACE,
    )
    running = asyncio.create_task(worker.run())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not running.done():
        await worker.shutdown()
    await running
