"""What a person may order of a pool, or of all: raw JSON in, an order with who, why and until when out."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator

from gpu_runbooks.activities.errors import BAD_INPUT, refusal
from gpu_runbooks.activities.model.fleet import Halt
from gpu_runbooks.activities.model.slot import PoolBudget
from gpu_runbooks.workflows.operator import Word, wrong_fields
from gpu_runbooks.workflows.policy.fields import Duration
from gpu_runbooks.workflows.refusals import not_now
from gpu_runbooks.workflows.slots import Limit

SHORTEST, LONGEST = timedelta(minutes=1), timedelta(days=30)
"""An order that is to last longer belongs into the policy, where others review it."""

MOST_HALTS = 10


class Order(Word):
    """A decision that counts for a time, and ends by itself."""

    lasts: Annotated[Duration, Field(alias="for")]

    @field_validator("lasts")
    @classmethod
    def _ends(cls, value: timedelta) -> timedelta:
        if not SHORTEST <= value <= LONGEST:
            raise ValueError("write a time from 1m to 30d: it ends by itself, and can be ordered again")
        return value


class HaltOrder(Order):
    """Begin no disruption."""

    def halt(self, now: datetime) -> Halt:
        """The halt from now on."""
        return Halt(operator=self.operator, reason=self.reason, since=now, until=now + self.lasts)


class LimitOrder(Order):
    """Another limit than the policy's."""

    max_unavailable: Annotated[int, Field(ge=1, le=10_000, strict=True)] | None = None
    percent: Annotated[int, Field(ge=1, le=100, strict=True)] | None = None

    @model_validator(mode="after")
    def _is_one_limit(self) -> "LimitOrder":
        if (self.max_unavailable is None) == (self.percent is None):
            raise ValueError("write exactly one of max_unavailable and percent; halt is for none at all")
        return self

    def limit(self, now: datetime) -> Limit:
        """The limit from now on."""
        return Limit(
            operator=self.operator,
            reason=self.reason,
            since=now,
            until=now + self.lasts,
            budget=PoolBudget(max_unavailable=self.max_unavailable, percent=self.percent),
        )


class StormOrder(Word):
    """A storm is none, or over: a person knows better."""

    storm: Annotated[str, Field(min_length=1, max_length=100)]


Said = TypeVar("Said", bound=Word)


def read_halt(raw: Any) -> HaltOrder:
    """Read `{"operator": ..., "reason": ..., "for": "2h"}`. Raises `BadInput` that names each wrong field."""
    return _read(HaltOrder, raw, ', "for": "2h"')


def read_limit(raw: Any) -> LimitOrder:
    """Read the same with `max_unavailable` or `percent`. Raises `BadInput` likewise."""
    return _read(LimitOrder, raw, ', "for": "2h", "max_unavailable": 2')


def read_resume(raw: Any) -> Word:
    """Read `{"operator": ..., "reason": ...}`. Raises `BadInput` likewise."""
    return _read(Word, raw, "")


def read_storm_end(raw: Any) -> StormOrder:
    """Read `{"operator": ..., "reason": ..., "storm": "..."}`. Raises `BadInput` likewise."""
    return _read(StormOrder, raw, ', "storm": "id, see the query state"')


def refuse_more(halts: Collection[Halt]) -> None:
    """Refuse one more halt where too many stand. Raises `NotNow`."""
    if len(halts) >= MOST_HALTS:
        raise not_now(f"{MOST_HALTS} halts stand already: resume ends them")


def _read(kind: type[Said], raw: Any, more: str) -> Said:
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        wrong = wrong_fields(error, kind).replace("lasts", "for")
        example = f'{{"operator": "who", "reason": "why"{more}}}'
        raise refusal(BAD_INPUT, f"bad argument: {wrong}; give --input '{example}'") from None
