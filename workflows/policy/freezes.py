"""Change freezes, as a person writes them: when nothing of a pool, or of all pools, is disrupted."""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator

from gpu_runbooks.activities.model.plan import ChangeFreeze
from gpu_runbooks.workflows.policy.fields import Line, Written

MOST_FREEZES = 20
"""Of a pool, and of the file: all of them travel with every fault."""


FIRST_YEAR, LAST_YEAR = 2000, 2099
"""Of a moment: what lies beyond is a slip, and the calendar ends where windows would be looked for."""


def _moment(value: Any) -> datetime:
    """The moment in UTC, as everything that a person reads later has it."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"write a moment with its time zone, such as 2026-12-20T00:00:00Z; not {value!r}")
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise ValueError(f"write a moment of the years {FIRST_YEAR} to {LAST_YEAR}; not {value!r}")
    return moment.astimezone(UTC)


Moment = Annotated[
    datetime,
    BeforeValidator(_moment),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": "^20"}),
]


class Freeze(Written):
    """A time in which nothing is disrupted. Blocking and validating go on."""

    begins: Moment
    """When it begins, such as 2026-12-20T00:00:00Z."""
    ends: Moment
    """When it ends."""
    why: Line
    """What it is for: whoever waits for its end reads it."""

    @field_validator("ends")
    @classmethod
    def _after_its_begin(cls, value: datetime, info: ValidationInfo) -> datetime:
        begins = info.data.get("begins")
        if begins is not None and value <= begins:
            raise ValueError(f"it ends before it begins, at {begins.isoformat()}: write a later moment")
        return value

    def wire(self) -> ChangeFreeze:
        return ChangeFreeze(begins=self.begins, ends=self.ends, why=self.why)


Freezes = Annotated[tuple[Freeze, ...], Field(max_length=MOST_FREEZES)]
