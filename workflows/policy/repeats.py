"""When a fault that is normally the application's is suspected to be the hardware's: it comes again.

`repeats.csv` has the rules, each with its source. Whoever takes faults in asks `repeat_rule` what to count,
and writes the number of those before into `Fault.before`.
"""

from datetime import timedelta
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.workflows.policy import catalogue
from gpu_runbooks.workflows.policy.catalogue import UnreadableXidError
from gpu_runbooks.workflows.policy.rows import REPAIRING, Row, load


class RepeatRule(Row):
    """So often, in so much time, at one place or on one GPU."""

    fault: Literal[FaultSource.XID]
    code: Annotated[str, Field(min_length=1)]
    by: Literal["place", "gpu"]
    """`place`: only faults at the same `Fault.place` of one GPU count; one without a place counts alone."""
    times: Annotated[int, Field(ge=2)]
    """With the one at hand."""
    hours: Annotated[int, Field(ge=1)]

    @property
    def within(self) -> timedelta:
        """How far back faults count."""
        return timedelta(hours=self.hours)

    @property
    def rule(self) -> str:
        """Name of the rule of the fault that makes it too many."""
        return f"{self.fault}-{self.code}-repeated"

    def contradiction(self) -> str | None:
        """What is wrong with the row: it is for an application's code, and leads to a repair."""
        if not catalogue.is_applications(self.code):
            return "the code is no application's: it gets its repair at once"
        if self.first_rung not in REPAIRING:
            return f"suspected hardware, and first rung {self.first_rung}"
        return None


def repeat_rule(source: FaultSource, code: str) -> RepeatRule | None:
    """Rule for the repeats of a code; None where a repeat of it says nothing."""
    try:
        number = str(catalogue.parse_code(code))
    except UnreadableXidError:
        return None
    return repeat_rules().get((source, number))


def is_repeated(fault: Fault) -> RepeatRule | None:
    """The rule that a fault fulfils by those before it; None where it is not one too many."""
    rule = repeat_rule(fault.source, fault.code)
    if rule is None or fault.before + 1 < rule.times:
        return None
    # A place that nobody knows is no place twice, and a GPU that nobody knows no GPU.
    if fault.entity.kind != "gpu" or (rule.by == "place" and not fault.place):
        return None
    return rule


@cache
def repeat_rules() -> dict[tuple[FaultSource, str], RepeatRule]:
    """All rules, by source and code."""
    return load("repeats", RepeatRule, lambda row: (row.fault, row.code))
