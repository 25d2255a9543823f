"""Run something in a process of its own that goes on when its starter has ended.

Until it is released, it belongs to its starter: Ctrl-C there, or the starter's death in any way, ends it.
It writes to the starter's terminal until then, so that progress looks as it would in the foreground.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any


class Starter:
    """The starter, as its detached process sees it."""

    def __init__(self, life_line: int, answer: int) -> None:
        self._life_line = life_line
        self._answer = answer

    @property
    def waits(self) -> bool:
        """Whether the starter has not been released yet."""
        return self._answer >= 0

    def end_with(self, task: "asyncio.Task[Any]") -> None:
        """Cancel the task when the starter dies before its release."""
        loop = asyncio.get_running_loop()

        def died() -> None:
            loop.remove_reader(self._life_line)  # an end of file is read for ever: a second one would disturb
            task.cancel()

        loop.add_reader(self._life_line, died)

    def release(self, status: int, log: Path) -> None:
        """Let the starter exit with this status. What is written from now on goes into `log`."""
        asyncio.get_running_loop().remove_reader(self._life_line)
        sys.stdout.flush()
        sys.stderr.flush()
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        self.answer(status)

    def answer(self, status: int) -> None:
        if self.waits:
            os.write(self._answer, bytes([status]))
            os.close(self._answer)
            self._answer = -1


def run_detached(serve: Callable[[Starter], Coroutine[Any, Any, int]]) -> int:
    """Run `serve` in a new process; return the status that it releases us with, or ends with.

    SIGTERM and SIGINT to the new process cancel `serve`. Call this before there are threads or an event loop.
    """
    life_line, our_life = os.pipe()
    answers, answer = os.pipe()
    if os.fork() == 0:
        os.close(our_life)
        os.close(answers)
        os.setsid()
        _serve(serve, Starter(life_line, answer))
    os.close(life_line)
    os.close(answer)
    return _wait(our_life, answers)


def _wait(our_life: int, answers: int) -> int:
    """Wait for the status. Interrupted, we let go of the life line and wait until the other has tidied up."""
    try:
        status = os.read(answers, 1)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.close(our_life)
        os.read(answers, 1)
        return 128 + signal.SIGINT
    return status[0] if status else 1


def _serve(serve: Callable[[Starter], Coroutine[Any, Any, int]], starter: Starter) -> None:
    """Be the new process. Never returns: the starter's code after the fork is not ours to run."""
    status = 1
    try:
        status = asyncio.run(_until_ended(serve, starter))
    except (asyncio.CancelledError, KeyboardInterrupt):
        status = 128 + signal.SIGTERM
    except Exception as error:  # noqa: BLE001 - said to a person; there is nobody above to handle it
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        with suppress(OSError):  # the terminal may be gone
            sys.stdout.flush()
            sys.stderr.flush()
        with suppress(OSError):  # the starter may be gone
            starter.answer(status)
        os._exit(status)


async def _until_ended(serve: Callable[[Starter], Coroutine[Any, Any, int]], starter: Starter) -> int:
    task = asyncio.create_task(serve(starter))
    starter.end_with(task)
    for how in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(how, task.cancel)
    return await task
