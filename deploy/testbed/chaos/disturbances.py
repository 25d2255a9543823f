"""The columns of the matrix: what befalls incidents. It has begun inside its context, and is over after."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from testbed.api_faults import Behaviour, close_connection, hang
from testbed.aws_faults import Outage
from testbed.chaos.subject import Subject
from testbed.testbed import Testbed

OUTAGE_SECONDS = 8.0
"""Length of an outage: calls fail in it and are tried again, and no deadline of the policy passes."""


@dataclass(frozen=True)
class Disturbance:
    """Something that goes wrong. It befalls all incidents that are given, or everything in the testbed."""

    name: str
    happen: Callable[[Testbed, Sequence[Subject]], AbstractAsyncContextManager[None]]
    ends_incident: bool = False
    """The incident ends by it, and nothing that it waits for is let go before."""


@asynccontextmanager
async def _cancel(_: Testbed, subjects: Sequence[Subject]) -> AsyncIterator[None]:
    await asyncio.gather(*(subject.incident.cancel() for subject in subjects))
    yield


@asynccontextmanager
async def _terminate(_: Testbed, subjects: Sequence[Subject]) -> AsyncIterator[None]:
    await asyncio.gather(*(subject.incident.terminate("chaos") for subject in subjects))
    yield


@asynccontextmanager
async def _kill(role: str, testbed: Testbed, _: Sequence[Subject]) -> AsyncIterator[None]:
    await testbed.product.kill(role)
    yield
    await testbed.product.start(role)


@asynccontextmanager
async def _stop(role: str, testbed: Testbed, _: Sequence[Subject]) -> AsyncIterator[None]:
    ending = asyncio.create_task(testbed.product.stop(role))
    await asyncio.sleep(0)  # the signal is sent
    yield
    await ending
    await testbed.product.start(role)


@asynccontextmanager
async def _restart_temporal(testbed: Testbed, _: Sequence[Subject]) -> AsyncIterator[None]:
    await testbed.temporal.stop()
    yield
    await testbed.temporal.resume()


@asynccontextmanager
async def _api_outage(behaviour: Behaviour, testbed: Testbed, _: Sequence[Subject]) -> AsyncIterator[None]:
    with testbed.proxy.outage(behaviour):
        yield
        await asyncio.sleep(OUTAGE_SECONDS)


@asynccontextmanager
async def _aws_outage(kind: Outage, testbed: Testbed, _: Sequence[Subject]) -> AsyncIterator[None]:
    with testbed.cloud.faults.outage(kind):
        yield
        await asyncio.sleep(OUTAGE_SECONDS)


DISTURBANCES = (
    Disturbance("cancel", _cancel, ends_incident=True),
    Disturbance("terminate", _terminate, ends_incident=True),
    Disturbance("kill-controller", partial(_kill, "controller")),
    Disturbance("kill-cluster-worker", partial(_kill, "cluster-worker")),
    Disturbance("kill-cloud-worker", partial(_kill, "cloud-worker")),
    Disturbance("stop-controller", partial(_stop, "controller")),
    Disturbance("stop-cluster-worker", partial(_stop, "cluster-worker")),
    Disturbance("stop-cloud-worker", partial(_stop, "cloud-worker")),
    Disturbance("temporal-restart", _restart_temporal),
    Disturbance("api-refuses", partial(_api_outage, close_connection())),
    Disturbance("api-hangs", partial(_api_outage, hang())),
    Disturbance("aws-refuses", partial(_aws_outage, "refuse")),
    Disturbance("aws-hangs", partial(_aws_outage, "hang")),
)
"""`kill` is SIGKILL, `stop` SIGTERM with the grace of a Pod."""
