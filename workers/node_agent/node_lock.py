"""One agent at a time acts on a machine.

A Pod that was deleted by force may live on beside its successor, and two agents that see the same task would
both begin it. The lock is a file of the machine, so all agents there meet at it. The kernel drops it with the
process that holds it, however that ends.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NodeLockedError(Exception):
    """The lock is not ours. The message says why and what to do."""


@contextmanager
def node_lock(file: Path) -> Iterator[None]:
    """Hold the lock until the block ends. Raises `NodeLockedError` at once where it cannot be had."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NodeLockedError(
            f"the lock {file} cannot be opened ({error.strerror or error}), so whether another agent is at "
            "work on this node is unknown; mount the host's folder there (GPU_RUNBOOKS_AGENT_LOCK)"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise NodeLockedError(
                f"another agent of this node holds {file} ({error.strerror or error}): of a Pod that was "
                "deleted by force, perhaps; end its process if it does not end by itself"
            ) from error
        yield
    finally:
        os.close(descriptor)
