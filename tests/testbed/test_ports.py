"""No two processes are given the same port: what looks free may be about to be served by the other one."""

import subprocess
import sys
from pathlib import Path

from testbed import ports

DEPLOY = Path(__file__).parents[2] / "deploy"

GIVEN = "from testbed.ports import free_port; print(free_port(), flush=True); input()"


def test_a_port_is_given_once_as_long_as_its_process_lives(monkeypatch):
    another = subprocess.Popen(
        [sys.executable, "-c", GIVEN],
        env={"PYTHONPATH": str(DEPLOY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with another:
        theirs = int(another.stdout.readline())
        ours = ports.free_port()
        drawn = iter([theirs, ours, *range(ports.FIRST, ports.FIRST + 1000)])
        monkeypatch.setattr(ports.random, "randrange", lambda *_: next(drawn))
        assert ports.free_port() not in {theirs, ours}
        another.communicate("\n")
    monkeypatch.setattr(ports.random, "randrange", lambda *_: theirs)
    assert ports.free_port() == theirs
