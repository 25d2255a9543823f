"""Waiting for a state of the cluster, until an absolute deadline."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TypeVar

from gpu_runbooks.activities.kubernetes.client import CALL_TIMEOUT, Kubernetes, Object

Answer = TypeVar("Answer")


def seconds_until(deadline: datetime) -> float:
    """Seconds from now to the deadline; negative when it has passed."""
    return (deadline - datetime.now(UTC)).total_seconds()


async def wait_for(
    kubernetes: Kubernetes,
    path: str,
    decide: Callable[[dict[str, Object]], Answer | None],
    deadline: datetime,
    *,
    label_selector: str = "",
    field_selector: str = "",
) -> Answer | None:
    """The first answer that `decide` gives on the collection, by UID; None when the deadline passes first.

    The world is looked at once even where the deadline lies in the past: a worker that comes back late still
    reports what happened. Raises `KubernetesError` when the collection may not be read.
    """
    following = kubernetes.follow(path, label_selector=label_selector, field_selector=field_selector)
    clock = asyncio.get_running_loop().time
    try:
        async with (
            asyncio.timeout(max(seconds_until(deadline), CALL_TIMEOUT)) as limit,
            aclosing(following) as states,
        ):
            async for objects in states:
                answer = decide(objects)
                if answer is not None:
                    return answer
                left = seconds_until(deadline)
                if left <= 0:
                    return None
                limit.reschedule(clock() + left)
    except TimeoutError:
        return None
    return None
