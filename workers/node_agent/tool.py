"""Runs a command-line tool with a limit that holds also when the tool cannot be killed.

A process that hangs in the kernel survives SIGKILL, and one that it left behind may hold its output open, so
neither is waited for.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

KILL_GRACE = 1.0
"""Seconds that a killed child gets to go. One that hangs in the kernel stays, and is left alone."""

LONGEST_OUTPUT = 2000
"""Bytes of the output that are read, unless the caller wants more."""


@dataclass(frozen=True)
class ToolAnswer:
    exit_code: int | None
    """None where it did not end in time."""
    output: str


class Tool:
    """One tool of this node: at most one runs at any time, also one that cannot be killed."""

    def __init__(self, command: Sequence[str], *, longest_output: int = LONGEST_OUTPUT) -> None:
        self._command = tuple(command)
        self._longest_output = longest_output
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def hung(self) -> int | None:
        """Pid of an earlier run that was given up and has not ended."""
        return self._running.pid if self._running is not None and self._running.poll() is None else None

    async def run(self, arguments: Sequence[str], limit: float) -> ToolAnswer:
        """Run the tool. Returns about `limit` seconds later at the latest, whatever the child does."""
        if self.hung is not None:
            return ToolAnswer(None, f"an earlier {self._command[0]} (pid {self.hung}) has not ended")
        # Output goes to memory, not into a pipe: nothing to read to the end, nothing that can fill up.
        output = os.memfd_create(self._command[0].rpartition("/")[2])
        try:
            self._running = subprocess.Popen(  # noqa: ASYNC220, S603 - starting it does not block
                [*self._command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            exit_code = await self._wait(self._running, limit)
            said = os.pread(output, self._longest_output, 0)
            return ToolAnswer(exit_code, said.decode(errors="backslashreplace").strip())
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
