"""The testbed's child processes: each with a log file, and none of them outlives its starter."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.ports import IN_USE, free_port

LAUNCHER = Path(__file__).with_name("die_with_parent.py")

PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")
"""All that a child gets of our own environment: the rest is given to each by name."""

LOG_TAIL = 2000

READY_SECONDS = 60.0
"""Time that a server has to answer. Seconds suffice on an idle machine; tests may share a busy one."""

CONFLICTS = 2
"""Tries on a chosen port before the last one, whose failure is told."""

STOP_GRACE = 10.0
"""Seconds that a child has to end after SIGTERM before it is killed."""


class PartFailedError(Exception):
    """A part of the testbed did not start, or ended by itself."""


def dying_with_us(*command: str) -> list[str]:
    """Command line that runs `command` until it ends or this process does, even by SIGKILL.

    The kernel ties the child to the thread that starts it: start from one that lives on, the main thread.
    """
    return [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *command]


@dataclass(frozen=True)
class Part:
    """One running process."""

    name: str
    log: Path
    process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    def log_tail(self) -> str:
        with suppress(FileNotFoundError):
            return self.log.read_text(errors="replace")[-LOG_TAIL:]
        return ""

    async def ready(self, is_ready: Callable[[], Awaitable[bool]], timeout: float) -> None:
        """Wait until `is_ready` says so.

        Raises `PartFailedError` with the end of the log if that never comes.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not await is_ready():
            if not self.running:
                raise self._failed(f"ended with status {self.process.returncode} instead of becoming ready")
            if loop.time() > deadline:
                raise self._failed(f"was not ready after {timeout:.0f} s")
            await asyncio.sleep(0.05)

    def _failed(self, what: str) -> PartFailedError:
        return PartFailedError(f"{self.name} {what}. End of its log {self.log}:\n{self.log_tail()}")


class Processes:
    """The children of one testbed by name. Leaving the context kills those that still run."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._parts: dict[str, Part] = {}

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.gather(*(self.kill(name) for name in reversed(self._parts)))

    def __getitem__(self, name: str) -> Part:
        return self._parts[name]

    def running(self) -> list[str]:
        """Names of the children that run."""
        return [name for name, part in self._parts.items() if part.running]

    async def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Part:
        """Start a child. It sees only what it is given and `PASSED_ON`; its output goes to `<name>.log`.

        It has a session of its own, so that Ctrl-C reaches the starter alone, which ends the children.
        """
        if name in self._parts and self._parts[name].running:
            raise PartFailedError(f"{name} runs already as process {self._parts[name].pid}")
        log = self._logs / f"{name}.log"
        inherited = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *dying_with_us(*command),
                env={**inherited, **(environment or {})},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        part = self._parts[name] = Part(name, log, process)
        return part

    async def serve(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        is_ready: Callable[[int], Awaitable[bool]],
        *,
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> int:
        """Start a server on a free port, or the given one, and return the port when it is ready.

        A port that somebody else took in the meantime costs another try with another port.
        Raises `PartFailedError` when it does not become ready.
        """
        for _ in range(CONFLICTS if port is None else 0):
            chosen = free_port()
            try:
                await self._serve_on(name, chosen, command, is_ready, environment)
            except PartFailedError as failure:
                if IN_USE not in str(failure).lower():
                    raise
            else:
                return chosen
        chosen = free_port() if port is None else port
        await self._serve_on(name, chosen, command, is_ready, environment)
        return chosen

    async def _serve_on(
        self,
        name: str,
        port: int,
        command: Callable[[int], Sequence[str]],
        is_ready: Callable[[int], Awaitable[bool]],
        environment: Mapping[str, str] | None,
    ) -> None:
        part = await self.start(name, command(port), environment)
        await part.ready(lambda: is_ready(port), READY_SECONDS)

    async def stop(self, name: str, grace: float = STOP_GRACE) -> None:
        """End a child by SIGTERM, or by SIGKILL if it takes longer than `grace` seconds."""
        await self._end(name, signal.SIGTERM, grace)

    async def kill(self, name: str) -> None:
        """End a child and its own children by SIGKILL: it can tidy up nothing."""
        await self._end(name, signal.SIGKILL)

    async def _end(self, name: str, how: signal.Signals, grace: float = STOP_GRACE) -> None:
        process = self._parts[name].process
        if process.returncode is None and how == signal.SIGKILL:
            _kill_group(process.pid)
        elif process.returncode is None:
            process.send_signal(how)
        try:
            await asyncio.wait_for(process.wait(), grace)
        except TimeoutError:
            _kill_group(process.pid)
            await process.wait()


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
