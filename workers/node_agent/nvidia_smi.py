"""Runs `nvidia-smi --gpu-reset` and classifies its answer. What it says is never taken for what it did."""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

TOOL = "nvidia-smi"
KILL_GRACE = 1.0
"""Seconds that a killed child gets to go. One that hangs in the kernel stays, and is left alone."""

LONGEST_OUTPUT = 2000


class Outcome(StrEnum):
    """What became of a reset, or of the attempt."""

    DONE = "done"
    BUSY = "busy"
    """Somebody holds a GPU."""
    UNSUPPORTED = "unsupported"
    LOST = "lost"
    """The GPU is not there to be reset."""
    UNRESPONSIVE = "driver-unresponsive"
    """No answer in time: a second reset would hang as well, only a reboot helps."""
    UNKNOWN = "unknown"
    UNVERIFIED = "unverified"
    """Said to be done, and the proof does not hold."""


@dataclass(frozen=True)
class ToolAnswer:
    exit_code: int | None
    """None where it did not end in time."""
    output: str


class ResetTool:
    """The stand of nvidia-smi on this node: at most one runs at any time, also one that cannot be killed."""

    def __init__(self, command: Sequence[str] = (TOOL,)) -> None:
        self._command = tuple(command)
        self._running: subprocess.Popen[bytes] | None = None

    async def reset(self, uuids: Sequence[str], limit: float) -> ToolAnswer:
        """Ask for a reset of these GPUs, of all in one command where none is named.

        Returns about `limit` seconds later at the latest, whatever the child does: a process that hangs in
        the kernel survives SIGKILL, and one that it left behind may hold its output open, so neither is
        waited for.
        """
        if self._running is not None and self._running.poll() is None:
            return ToolAnswer(None, f"an earlier {self._command[0]} (pid {self._running.pid}) has not ended")
        named = ["-i", ",".join(uuids)] if uuids else []
        # Output goes to memory, not into a pipe: nothing to read to the end, nothing that can fill up.
        output = os.memfd_create(TOOL)
        try:
            self._running = subprocess.Popen(  # noqa: ASYNC220, S603 - starting it does not block
                [*self._command, "--gpu-reset", *named],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            exit_code = await self._wait(self._running, limit)
            return ToolAnswer(exit_code, os.pread(output, LONGEST_OUTPUT, 0).decode(errors="replace").strip())
        except OSError as error:
            return ToolAnswer(127, f"{self._command[0]} cannot be started: {error}")
        finally:
            os.close(output)

    async def _wait(self, child: subprocess.Popen[bytes], limit: float) -> int | None:
        """Exit code of the child, or None when it had to be killed."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        pidfd = os.pidfd_open(child.pid)
        loop.add_reader(pidfd, ended.set)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), limit)
            exit_code = child.poll()
            if exit_code is None:
                os.killpg(child.pid, signal.SIGKILL)
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), KILL_GRACE)
                child.poll()
            return exit_code
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)


IN_USE = re.compile(r"\bin use\b|being used by|used by another", re.IGNORECASE)
GONE = re.compile(r"GPU is lost|fallen off the bus|No devices were found", re.IGNORECASE)
NOT_SUPPORTED = re.compile(r"not supported", re.IGNORECASE)

EXIT_CODES = {0: Outcome.DONE, 3: Outcome.UNSUPPORTED, 15: Outcome.LOST}
"""Of nvidia-smi's own return codes, those that need no reading of the text. It gives 255 for many things."""


def classify(answer: ToolAnswer) -> Outcome:
    """What the answer means. The text beats the exit code: a GPU in use was reported with exit 0."""
    if answer.exit_code is None:
        return Outcome.UNRESPONSIVE
    for pattern, outcome in (
        (IN_USE, Outcome.BUSY),
        (GONE, Outcome.LOST),
        (NOT_SUPPORTED, Outcome.UNSUPPORTED),
    ):
        if pattern.search(answer.output):
            return outcome
    return EXIT_CODES.get(answer.exit_code, Outcome.UNKNOWN)
