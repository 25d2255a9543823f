"""How machines are repaired: the section `repair` of the policy file, for all pools and for one.

Every field may be left out: a pool's section stands over that of the file, which stands over what is built in
(`activities.model.repair.RepairPolicy`), field by field.
"""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, field_validator

from gpu_runbooks.activities.model.repair import RebootMethod, RepairPolicy, RepeatPolicy
from gpu_runbooks.workflows.policy.fields import LONGEST, Duration, Written

Cap = Annotated[int | None, Field(ge=1, le=100, strict=True)]


class Repeats(Written):
    """How often the same hardware is repaired before a person is asked."""

    window: Duration | None = None
    """How far back repairs of the same hardware count; no further than the retention of the namespace."""
    resets: Cap = None
    """Resets within the window."""
    reboots: Cap = None
    """Reboots within the window."""
    replacements: Cap = None
    """Replacements within the window."""
    returns: Cap = None
    """Returns within the window after which the same fault came back: the next one asks a person at once."""

    @field_validator("window")
    @classmethod
    def _looks_back(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value < timedelta(hours=1):
            raise ValueError(f"write a window of at least 1h and at most {LONGEST.days}d")
        return value

    def over(self, base: RepeatPolicy) -> RepeatPolicy:
        """What counts: what is written here, else the base."""
        return base.model_copy(update=_written(self))


class Repair(Written):
    """A section `repair`."""

    reset_scope: Literal["gpu", "node"] | None = None
    """Whose pods are drained before one GPU is reset: gpu or node."""
    reboot: RebootMethod | None = None
    """Who reboots a machine: ec2, agent or command."""
    replace: Literal["allowed", "ask"] | None = None
    """Whether a person is asked before an instance is terminated: allowed or ask."""
    launch_first: Annotated[bool | None, Field(strict=True)] = None
    """Whether the successor is launched before the instance is terminated."""
    without_evidence: Literal["go-on", "stop"] | None = None
    """What follows when no evidence could be kept: go-on or stop."""
    repeats: Repeats = Repeats()
    """How often the same hardware is repaired, such as {window: 7d, reboots: 3}."""

    def over(self, base: RepairPolicy) -> RepairPolicy:
        """What counts: what is written here, else the base."""
        return base.model_copy(
            update={**_written(self, besides="repeats"), "repeats": self.repeats.over(base.repeats)}
        )


def _written(section: Written, besides: str = "") -> dict[str, object]:
    return {name: value for name, value in section if value is not None and name != besides}
