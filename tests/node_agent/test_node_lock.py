"""The lock of a machine, held by real processes."""

import subprocess
import sys

import pytest

from gpu_runbooks.workers.node_agent.node_lock import NodeLockedError, node_lock

HOLDER = """
import sys
from pathlib import Path
from gpu_runbooks.workers.node_agent.node_lock import node_lock
with node_lock(Path(sys.argv[1])):
    print(flush=True)
    sys.stdin.read()
"""


def test_it_is_free_again_after_a_holder_that_was_killed(tmp_path):
    lock = tmp_path / "agent.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        with pytest.raises(NodeLockedError, match="another agent of this node"), node_lock(lock):
            pass
        holder.kill()
        holder.wait()
        with node_lock(lock):
            pass


def test_it_is_given_back_after_an_error_too(tmp_path):
    with pytest.raises(ZeroDivisionError), node_lock(tmp_path / "lock"):
        raise ZeroDivisionError
    with node_lock(tmp_path / "lock"):
        pass


def test_a_lock_that_cannot_be_opened_is_not_had(tmp_path):
    with pytest.raises(NodeLockedError, match="cannot be opened"), node_lock(tmp_path / "nowhere" / "lock"):
        pass
