"""What a person may order of a pool, or of all, with who, why and until when."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from gpu_runbooks.activities.model.fleet import Halt
from gpu_runbooks.activities.model.slot import PoolBudget
from gpu_runbooks.workflows.operator import Signed
from gpu_runbooks.workflows.policy.fields import Duration
from gpu_runbooks.workflows.refusals import not_now
from gpu_runbooks.workflows.slots import Limit

SHORTEST, LONGEST = timedelta(minutes=1), timedelta(days=30)
"""An order that is to last longer belongs into the policy, where others review it."""

MOST_HALTS = 10


class Order(Signed):
    """A decision that counts for a time, and ends by itself."""

    example = ', "for": "2h"'

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

    example = ', "for": "2h", "max_unavailable": 2'

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


class StormOrder(Signed):
    """A storm is none, or over: a person knows better."""

    example = ', "storm": "id, see the query state"'

    storm: Annotated[str, Field(min_length=1, max_length=100)]


def refuse_more(halts: Collection[Halt]) -> None:
    """Refuse one more halt where too many stand. Raises `NotNow`."""
    if len(halts) >= MOST_HALTS:
        raise not_now(f"{MOST_HALTS} halts stand already: resume ends them")
