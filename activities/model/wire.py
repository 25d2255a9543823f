"""Wire types: what travels between processes through Temporal and NodeTasks.

All are frozen and ignore unknown fields (a newer worker may send more), and every time is aware
and in UTC. No default is computed: a default factory that reads a clock or draws an id would
escape the workflow sandbox. Payloads stay small: lists that could grow are cut by whoever makes them.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

Moment = Annotated[
    AwareDatetime,
    Field(ge=datetime(1970, 1, 1, tzinfo=UTC), lt=datetime(3000, 1, 1, tzinfo=UTC)),
    AfterValidator(lambda moment: moment.astimezone(UTC)),
]
"""A time that can be compared, and to which any span can be added, whoever wrote it."""

Span = Annotated[timedelta, Field(ge=timedelta(0), le=timedelta(days=366))]
"""A time that can be waited for."""


class Wire(BaseModel):
    """Base of all wire types."""

    model_config = ConfigDict(frozen=True, extra="ignore")
