"""Which processes have the device file of a GPU open. NVML lists only those that work on it.

`/dev/nvidia<minor>` is one GPU's; `/dev/nvidiactl`, `/dev/nvidia-uvm` and the like are of the driver as a
whole: they identify no GPU and do not hold one. Links are read and never followed, since what they lead to
may be on a file system that hangs.
"""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DEVICE = re.compile(r"(?:.*/)?dev/nvidia(?P<minor>\d+)(?: \(deleted\))?")
"""As the process sees it: a container may have the device under another root."""

MOST_HANDLES = 1_000_000
LONGEST_LOOK = 10.0
"""Seconds. A node with thousands of processes takes a fraction of one."""


@dataclass(frozen=True)
class Handles:
    """Open device files by the minor number of the GPU, and what could not be seen."""

    pids: dict[int, frozenset[int]] = field(default_factory=dict)
    unread: tuple[int, ...] = ()
    """Processes whose open files cannot be read: each may hold anything."""
    gap: str = ""
    """Why the look is not complete, apart from these."""


def open_handles(proc: Path, own_pid: int) -> Handles:
    """Look at all processes but one. A process that ends meanwhile holds nothing."""
    pids: dict[int, set[int]] = {}
    unread: list[int] = []
    looked, started = 0, time.monotonic()
    try:
        processes = [int(process.name) for process in proc.iterdir() if process.name.isdigit()]
    except OSError as error:
        return Handles(gap=f"the processes cannot be listed: {error}")
    for pid in processes:
        if pid == own_pid:
            continue
        try:
            for target in _open_files(proc / str(pid) / "fd"):
                looked += 1
                if device := DEVICE.fullmatch(target):
                    pids.setdefault(int(device["minor"]), set()).add(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            unread.append(pid)
        if looked > MOST_HANDLES or time.monotonic() - started > LONGEST_LOOK:
            return Handles(_frozen(pids), tuple(unread), f"there are too many open files: {looked} were seen")
    return Handles(_frozen(pids), tuple(unread))


def _open_files(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                yield os.readlink(entry.path)  # noqa: PTH115 - a Path for each of very many
            except (FileNotFoundError, ProcessLookupError):
                continue  # closed meanwhile


def _frozen(pids: dict[int, set[int]]) -> dict[int, frozenset[int]]:
    return {minor: frozenset(holders) for minor, holders in pids.items()}
