"""A call for a person: what stands, where, and what to do about it."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from gpu_runbooks.activities.model.wire import Wire


class Page(Wire):
    """Raise an alert, repeat it, or take it back. The same labels are the same alert."""

    alert: str
    """Name of the alert, such as `GpuRunbookNeedsOperator`."""
    severity: Literal["warning", "critical"] = "warning"
    labels: dict[str, str] = Field(default={})
    """Beside name and severity: cluster, pool, node, and the workflow that calls."""
    node: str = ""
    """Node that gets the Event; empty where it is of no single node."""
    summary: str
    """One line: what is wrong."""
    advice: str = ""
    """What to do, with the command to copy."""
    since: datetime
    until: datetime
    """The alert ends by itself then, unless it was repeated: who calls repeats it before."""
    over: bool = False
    """Take it back now."""


class Paged(Wire):
    """Who was reached."""

    reached: tuple[str, ...] = ()
    """`alertmanager`, `event`."""
    problem: str = ""
    """Why somebody was not reached; the Event and the history have it in any case."""
