"""What AWS can do to a call of the product instead of answering it: hold it, refuse it, or say nothing.

The stand-in for EC2 is a process of its own, so it is told by files in a folder that both know:

    outage                          "refuse": every call gets 503, "hang": none is answered
    hold-<before|after>-<action>-<instance>
                                    such a call waits until the file is gone, before or after it takes effect
    met-<before|after>-<action>-<instance>
                                    written when a call waits

A call whose caller gave up while it waited has no effect. So does one that waits when an outage begins.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

Moment = Literal["before", "after"]

Outage = Literal["refuse", "hang"]

Verdict = Literal["pass", "refuse", "drop"]

LOOK_SECONDS = 0.05

REFUSED = (
    b"<Response><Errors><Error><Code>ServiceUnavailable</Code><Message>Service is unavailable.</Message>"
    b"</Error></Errors><RequestID>0</RequestID></Response>"
)
"""Body of a 503, in the shape of EC2's query protocol."""


class AwsFaults:
    """The folder, seen by whoever makes faults and by the server that has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # --- making faults --------------------------------------------------------------------------

    @contextmanager
    def outage(self, kind: Outage) -> Iterator[None]:
        """Answer no call of the product while the body runs."""
        self._folder.mkdir(exist_ok=True)
        file = self._folder / "outage"
        file.write_text(kind)
        try:
            yield
        finally:
            file.unlink()

    def hold(self, moment: Moment, action: str, instance: str) -> None:
        """Let calls of this action on this instance wait, before or after they take effect."""
        self._folder.mkdir(exist_ok=True)
        self._hold(moment, action, instance).touch()

    def is_met(self, moment: Moment, action: str, instance: str) -> bool:
        """Whether a call waits, or has waited."""
        return (self._folder / f"met-{moment}-{action}-{instance}").exists()

    def let_go(self, moment: Moment, action: str, instance: str) -> None:
        """Let the calls go on that wait, and those that come."""
        self._hold(moment, action, instance).unlink(missing_ok=True)

    # --- having them ----------------------------------------------------------------------------

    def before(self, action: str, instances: Sequence[str], gave_up: Callable[[], bool]) -> Verdict:
        """Wait as long as a call is to wait before it takes effect; returns what becomes of it."""
        self._wait("before", action, instances, lambda: gave_up() or bool(self._outage()))
        if self._outage() == "refuse":
            return "refuse"
        hung = False
        while self._outage() == "hang" and not gave_up():
            hung = True
            time.sleep(LOOK_SECONDS)
        return "drop" if hung or gave_up() else "pass"

    def after(self, action: str, instances: Sequence[str], gave_up: Callable[[], bool]) -> Verdict:
        """Wait as long as the answer of a call is to wait; returns what becomes of the answer."""
        self._wait("after", action, instances, lambda: gave_up() or bool(self._outage()))
        return "drop" if gave_up() or self._outage() else "pass"

    def _wait(
        self, moment: Moment, action: str, instances: Sequence[str], enough: Callable[[], bool]
    ) -> None:
        for instance in instances:
            while self._hold(moment, action, instance).exists() and not enough():
                (self._folder / f"met-{moment}-{action}-{instance}").touch()
                time.sleep(LOOK_SECONDS)

    def _hold(self, moment: Moment, action: str, instance: str) -> Path:
        return self._folder / f"hold-{moment}-{action}-{instance}"

    def _outage(self) -> str:
        with suppress(FileNotFoundError):
            return (self._folder / "outage").read_text()
        return ""
