"""Timeouts and retries of the activities, by kind.

Every activity that can take more than a few seconds has a heartbeat timeout, since only a heartbeat tells
that its worker died. Repeating for ever is right where the alternative is to act without knowing.
"""

from datetime import datetime, timedelta
from typing import Any

from temporalio.common import Priority, RetryPolicy

from gpu_runbooks.activities.names import CLOUD_QUEUE, CLUSTER_QUEUE, TEMPORAL_QUEUE

HEARTBEAT = timedelta(seconds=10)

SLACK = timedelta(minutes=2)
"""What an activity with a deadline of its own gets beyond it, for retries on another worker."""

BRIEFLY = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_interval=timedelta(seconds=15)
)

TEMPORAL: dict[str, Any] = {
    "task_queue": TEMPORAL_QUEUE,
    "start_to_close_timeout": timedelta(seconds=30),
    "retry_policy": BRIEFLY,
}

MANY_ANSWERS: dict[str, Any] = {
    **TEMPORAL,
    "start_to_close_timeout": timedelta(minutes=10),
    "heartbeat_timeout": HEARTBEAT,
}
"""A question to many incidents: each that is silent takes 5 s, and twenty are asked at once."""

RECALL: dict[str, Any] = {
    **TEMPORAL,
    "schedule_to_close_timeout": timedelta(minutes=15),
    "priority": Priority(priority_key=5),
}
"""What is read from the list of workflows, which costs the server most: all else comes first. Without an
answer a person is asked."""

CLUSTER: dict[str, Any] = {
    "task_queue": CLUSTER_QUEUE,
    "schedule_to_close_timeout": timedelta(minutes=15),
    "start_to_close_timeout": timedelta(seconds=60),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": BRIEFLY,
}
"""Reads, block and unblock: tried while the API server is away, then a person is asked. Nothing else."""

POOL: dict[str, Any] = {
    "task_queue": CLUSTER_QUEUE,
    "schedule_to_close_timeout": timedelta(seconds=45),
    "start_to_close_timeout": timedelta(seconds=30),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": BRIEFLY,
}
"""A look that a budget waits for, with all that want to hear of it: without an answer nobody gets a slot."""

LOOK_HOLDS = timedelta(seconds=60)
"""How long a look at the node permits an act: block, boot and machine may be others a minute later."""

SOON: dict[str, Any] = {
    "task_queue": CLOUD_QUEUE,
    "schedule_to_start_timeout": timedelta(seconds=30),
    "start_to_close_timeout": LOOK_HOLDS,
    "heartbeat_timeout": HEARTBEAT,
}
"""An act that waits for no worker: the incident looks at the node again instead."""

REBOOT_ONCE: dict[str, Any] = {**SOON, "retry_policy": RetryPolicy(maximum_attempts=1)}
"""RebootInstances has no idempotency token: one attempt, then the wait for proof, whatever the answer."""

COMMAND_ONCE: dict[str, Any] = {**REBOOT_ONCE, "start_to_close_timeout": timedelta(minutes=2)}
"""The site's own command has 40 s, behind what EC2 is asked first."""

INSPECT: dict[str, Any] = {
    **SOON,
    "schedule_to_close_timeout": timedelta(seconds=60),
    "retry_policy": BRIEFLY,
}
"""A look that the act waits for: without an answer nothing is sent."""

REPLACE_SOON: dict[str, Any] = {
    **SOON,
    "schedule_to_close_timeout": timedelta(seconds=90),
    "retry_policy": BRIEFLY,
}
"""It reads the state first, so a second attempt terminates nothing twice."""


def until(deadline: datetime, now: datetime, queue: str = CLUSTER_QUEUE) -> dict[str, Any]:
    """An activity that watches until a deadline of its own, resumed by another worker if its own dies."""
    remaining = max(deadline - now, timedelta(0)) + SLACK
    return {
        "task_queue": queue,
        "start_to_close_timeout": remaining,
        "schedule_to_close_timeout": remaining,
        "heartbeat_timeout": HEARTBEAT,
        "retry_policy": BRIEFLY,
    }


SWEEP_CLUSTER: dict[str, Any] = {**CLUSTER, "schedule_to_close_timeout": timedelta(minutes=5)}
SWEEP_TEMPORAL: dict[str, Any] = {**TEMPORAL, "schedule_to_close_timeout": timedelta(minutes=5)}
"""A sweep waits for nobody: what has no answer is left to the next one."""
