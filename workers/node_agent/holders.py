"""Who keeps a GPU from being reset: processes that work on it, and those that have its device file open."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_runbooks.activities.model.node_task import GpuFacts
from gpu_runbooks.workers.node_agent.device import Device
from gpu_runbooks.workers.node_agent.device_handles import Handles, open_handles
from gpu_runbooks.workers.node_agent.pod_cgroups import pod_uid
from gpu_runbooks.workers.node_agent.reset_domain import is_fabric_manager
from gpu_runbooks.workers.node_agent.verdict import name

MOST_NAMED = 8

RESET_TOOL = "nvidia-smi"


@dataclass(frozen=True)
class Holder:
    pid: int
    command: str
    pod_uid: str | None

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command}, {f'pod {self.pod_uid}' if self.pod_uid else 'no pod'})"


@dataclass(frozen=True)
class Hold:
    """What stands against a reset. Free only with neither."""

    holders: tuple[str, ...] = ()
    """A sentence for each GPU that is held."""
    doubts: tuple[str, ...] = ()
    """Questions without an answer. What cannot be read is unknown, not free."""

    @property
    def free(self) -> bool:
        return not self.holders and not self.doubts

    def __str__(self) -> str:
        return "; ".join((*self.holders, *self.doubts))


def hold_on(proc: Path, gpus: Iterable[tuple[GpuFacts, Device]]) -> Hold:
    """Who holds these GPUs. This process counts for nothing: its session is closed before the reset."""
    handles = open_handles(proc, os.getpid())
    held, doubts = [], _doubts_of(handles)
    for gpu, device in gpus:
        if device.pids is None:
            doubts.append(f"the driver does not say who works on {name(gpu)}")
        if device.minor is None:
            doubts.append(f"the driver does not say which device file is that of {name(gpu)}")
        opened = frozenset() if device.minor is None else handles.pids.get(device.minor, frozenset())
        pids = sorted((device.pids or frozenset()) | opened)
        holders = [_holder(proc, pid) for pid in pids if not _is_harmless(proc, pid, gpu)]
        if holders:
            named = ", ".join(map(str, holders[:MOST_NAMED]))
            more = f" and {len(holders) - MOST_NAMED} more" if len(holders) > MOST_NAMED else ""
            held.append(f"{name(gpu)} is held by {named}{more}")
    return Hold(tuple(held), tuple(doubts))


def resets_in_progress(proc: Path) -> bool:
    """Whether some nvidia-smi still has a GPU open, such as one that an earlier start of this agent began."""
    handles = open_handles(proc, os.getpid())
    return any(_command(proc, pid) == RESET_TOOL for pids in handles.pids.values() for pid in pids)


def _doubts_of(handles: Handles) -> list[str]:
    doubts = [handles.gap] if handles.gap else []
    if handles.unread:
        shown = ", ".join(map(str, handles.unread[:MOST_NAMED]))
        doubts.append(f"the open files of {len(handles.unread)} processes cannot be read (pid {shown})")
    return doubts


def _is_harmless(proc: Path, pid: int, gpu: GpuFacts) -> bool:
    """The Fabric Manager has to run where it makes the reset of one GPU possible."""
    return gpu.reset_alone is True and is_fabric_manager(proc, str(pid)) is True


def _holder(proc: Path, pid: int) -> Holder:
    try:
        pod = pod_uid((proc / str(pid) / "cgroup").read_text(errors="replace"))
    except OSError:
        pod = None
    return Holder(pid, _command(proc, pid) or "command unknown", pod)


def _command(proc: Path, pid: int) -> str:
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""
