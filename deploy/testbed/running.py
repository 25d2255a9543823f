"""Which testbeds run in the background: one small file for each, in the cache."""

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.build import cache

STOP_SECONDS = 30.0


@dataclass(frozen=True)
class Running:
    """A testbed in the background."""

    pid: int
    started: str
    """When the process started, in the kernel's own terms: tells it from a later one with the same id."""
    directory: str
    addresses: Mapping[str, str]


def file_of(pid: int) -> Path:
    """File that says that the testbed of this process runs."""
    return cache() / "testbed" / "running" / f"{pid}.json"


def announce(directory: Path, addresses: Mapping[str, str]) -> None:
    """Say that this process runs a testbed."""
    pid = os.getpid()
    file = file_of(pid)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(Running(pid, _started(pid), str(directory), dict(addresses)))))


def running() -> list[Running]:
    """All that run. Files of processes that are gone are removed."""
    found = []
    for file in sorted(file_of(0).parent.glob("*.json")):
        one = Running(**json.loads(file.read_text()))
        if _started(one.pid) == one.started:
            found.append(one)
        else:
            file.unlink(missing_ok=True)
    return found


def stop(one: Running) -> bool:
    """End a testbed and wait until it is gone. False if it takes too long."""
    os.kill(one.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while _started(one.pid) == one.started:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _started(pid: int) -> str:
    """Start time of a process in clock ticks after boot (proc(5), field 22), or nothing if it is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]
    return ""
