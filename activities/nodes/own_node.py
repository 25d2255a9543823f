"""A worker that is asked to act on the node that it runs on: one elsewhere should do it.

It would evict its own pod in the middle of the drain, or be gone with the reboot (seen in other tools).
Temporal gives a failed attempt to any worker that polls, so an attempt that fails at once is a hand-over.
"""

import socket
from datetime import timedelta

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors

HAND_OVERS = 5
"""Attempts left to others. With two replicas, at most one of 32 tries meets the same worker so often."""

PAUSE = timedelta(seconds=2)
"""Before the next attempt: long enough for another worker's poll to be first in the queue."""


def hand_over(node: str, own_node: str, attempt: int) -> bool:
    """Leave an act on our own node to another worker. True: nobody else took it, decide what to do.

    False where the node is not ours. `own_node` is empty where the worker runs outside of the cluster.

    Raises `ApplicationError` OWN_NODE, to be tried again, for the first attempts.
    """
    if node != own_node:
        return False
    if attempt > HAND_OVERS:
        return True
    raise ApplicationError(
        f"worker {socket.gethostname()} runs on node {node} itself: attempt {attempt} of {HAND_OVERS} is "
        "left to a worker on another node, nothing was written",
        type=errors.OWN_NODE,
        next_retry_delay=PAUSE,
    )


def refuse_own_node(node: str, own_node: str, attempt: int) -> None:
    """Leave the act to another worker, and refuse it for good where nobody else took it.

    Raises `ApplicationError` OWN_NODE.
    """
    if hand_over(node, own_node, attempt):
        # The host name of a Pod is the Pod's name.
        raise errors.refusal(
            errors.OWN_NODE,
            f"no worker of queue `cluster` outside of node {node} took this up, and worker "
            f"{socket.gethostname()} runs on that node: it would be drained with it, so nothing was written. "
            f"Run a replica of the cluster worker on another node (delete Pod {socket.gethostname()}, or "
            "check the Deployment's affinity), then retry",
        )
