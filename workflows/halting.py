"""What a person may order of a pool or of all: raw JSON in, an order with who, why and until when out."""

from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from gpu_runbooks.activities.errors import BAD_INPUT, refusal
from gpu_runbooks.activities.model.fleet import Halt
from gpu_runbooks.workflows.operator import Word, wrong_fields
from gpu_runbooks.workflows.policy.fields import Duration

LONGEST = timedelta(days=30)
"""An order that is to last longer belongs into the policy, where others review it."""

Lasts = Annotated[Duration, Field(alias="for", ge=timedelta(minutes=1), le=LONGEST)]


class HaltOrder(Word):
    """A decision to begin no disruption for a time."""

    lasts: Lasts

    def halt(self, now: datetime) -> Halt:
        """The halt from now on."""
        return Halt(operator=self.operator, reason=self.reason, since=now, until=now + self.lasts)


class StormOrder(Word):
    """A person knows better: it is no storm, or over."""

    storm: str = Field(min_length=1, max_length=100)


Order = TypeVar("Order", bound=Word)


def read_halt(raw: Any) -> HaltOrder:
    """Read `{"operator": ..., "reason": ..., "for": "2h"}`. Raises `BadInput` that names each wrong field."""
    return read_order(HaltOrder, raw, '"for": "2h"')


def read_resume(raw: Any) -> Word:
    """Read `{"operator": ..., "reason": ...}`. Raises `BadInput` likewise."""
    return read_order(Word, raw, "")


def read_storm_end(raw: Any) -> StormOrder:
    """Read `{"operator": ..., "reason": ..., "storm": "..."}`. Raises `BadInput` likewise."""
    return read_order(StormOrder, raw, '"storm": "id, see the query state"')


def read_order(kind: type[Order], raw: Any, more: str) -> Order:
    """Read an order that has this beside operator and reason. Raises `BadInput` with a right example."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        wrong = wrong_fields(error, kind).replace("lasts", "for")
        given = '{"operator": "who", "reason": "why"' + (f", {more}" if more else "") + "}"
        raise refusal(BAD_INPUT, f"bad argument: {wrong}; give --input '{given}'") from None
