"""What a person sees while something takes time: live on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn


class Progress:
    """Says what is going on. Steps may overlap."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._bars: Bars | None = None
        self._open = 0

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show `what` with its elapsed time while the body runs, and how long it took at the end."""
        started = time.monotonic()
        task = self._show(what)
        try:
            yield
        except BaseException:
            self._hide(task)
            self.say(f"  {what}: stopped after {time.monotonic() - started:.1f} s")
            raise
        self._hide(task)
        self.say(f"  {what}: {time.monotonic() - started:.1f} s")

    def _show(self, what: str) -> int | None:
        if not self._console.is_terminal:
            self.say(f"  {what} ...")
            return None
        if self._bars is None:
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._bars = Bars(*columns, console=self._console, transient=True)
            self._bars.start()
        self._open += 1
        return self._bars.add_task(what, total=None)

    def _hide(self, task: int | None) -> None:
        if self._bars is None or task is None:
            return
        self._bars.remove_task(task)  # type: ignore[arg-type]
        self._open -= 1
        if not self._open:
            self._bars.stop()
            self._bars = None
