"""The columns of the matrix: what befalls incidents, and is over when the function returns."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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
    happen: Callable[[Testbed, Sequence[Subject]], Awaitable[None]]
    ends_incident: bool = False
    """The incident ends by it, and nothing that it waits for is let go before."""


async def _cancel(_: Testbed, subjects: Sequence[Subject]) -> None:
    await asyncio.gather(*(subject.incident.cancel() for subject in subjects))


async def _terminate(_: Testbed, subjects: Sequence[Subject]) -> None:
    await asyncio.gather(*(subject.incident.terminate("chaos") for subject in subjects))


async def _kill(role: str, testbed: Testbed, _: Sequence[Subject]) -> None:
    await testbed.product.kill(role)
    await testbed.product.start(role)


async def _stop(role: str, testbed: Testbed, _: Sequence[Subject]) -> None:
    await testbed.product.stop(role)
    await testbed.product.start(role)


async def _restart_temporal(testbed: Testbed, _: Sequence[Subject]) -> None:
    await testbed.temporal.stop()
    await testbed.temporal.resume()


async def _api_outage(behaviour: Behaviour, testbed: Testbed, _: Sequence[Subject]) -> None:
    with testbed.proxy.outage(behaviour):
        await asyncio.sleep(OUTAGE_SECONDS)


async def _aws_outage(kind: Outage, testbed: Testbed, _: Sequence[Subject]) -> None:
    with testbed.cloud.faults.outage(kind):
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
