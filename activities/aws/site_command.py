"""Runs a command of the site's own: no shell, a bare environment, and a limit that holds in every case.

A process that hangs in the kernel survives SIGKILL, and one that it left behind may hold its output open, so
neither is waited for.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

KILL_GRACE = 1.0
"""Seconds that a killed command gets to go. One that hangs in the kernel stays, and is left alone."""

LONGEST_OUTPUT = 16 * 1024
"""Bytes kept of the output, the last ones: there a command says what went wrong."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    exit_code: int | None
    """Negative for a signal; None where it had to be killed at the limit, or could not even be."""
    output: str
    """The end of what it wrote, both streams in one."""


class SiteCommand:
    """One command at a time; the next is not started while the last one is still there."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> int | None:
        """Process id of the command that is still there, killed or not; None for none."""
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    async def run(self, command: Sequence[str], environment: Mapping[str, str], limit: float) -> Ended:
        """Run it, and return about `limit` seconds later at the latest. Raises `OSError` if it cannot start.

        On cancellation it is killed. Its children share its process group, and are killed with it.
        """
        reads, writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.set_blocking(writes, True)
            self._child = child = subprocess.Popen(  # noqa: ASYNC220, S603 - starting it does not block
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=writes,
                stderr=writes,
                start_new_session=True,
            )
            os.close(writes)
            writes = -1
            async with _collecting(reads) as output:
                exit_code = await _exit_code(child, limit)
            return Ended(exit_code, bytes(output).decode(errors="replace").strip())
        finally:
            os.close(reads)
            if writes >= 0:
                os.close(writes)


@asynccontextmanager
async def _collecting(pipe: int) -> AsyncIterator[bytearray]:
    """Read the pipe while the body runs, and once more after it, whoever still holds the other end."""
    loop, output = asyncio.get_running_loop(), bytearray()

    def read() -> None:
        with suppress(BlockingIOError):
            if not (chunk := os.read(pipe, LONGEST_OUTPUT)):
                loop.remove_reader(pipe)
            output.extend(chunk)
            del output[:-LONGEST_OUTPUT]

    loop.add_reader(pipe, read)
    try:
        yield output
        read()
    finally:
        loop.remove_reader(pipe)


async def _exit_code(child: subprocess.Popen[bytes], limit: float) -> int | None:
    """Exit code of the child, or None when it had to be killed."""
    ended = _watch(child)
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), limit)
        if (exit_code := child.poll()) is None:
            _kill(child)
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), KILL_GRACE)
        return exit_code
    finally:
        if child.poll() is None:
            _kill(child)


def _watch(child: subprocess.Popen[bytes]) -> asyncio.Event:
    """An event for the end of the child, which is reaped whenever that comes."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    pidfd = os.pidfd_open(child.pid)

    def reap() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        child.poll()
        ended.set()

    loop.add_reader(pidfd, reap)
    return ended


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
