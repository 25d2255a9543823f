"""Wire types: what travels between processes through Temporal and NodeTasks.

All are frozen and ignore unknown fields (a newer worker may send more), and every time is aware
and in UTC. No default is computed: a default factory that reads a clock or draws an id would
escape the workflow sandbox. Payloads stay small: lists that could grow are cut by whoever makes them.
"""

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """Base of all wire types."""

    model_config = ConfigDict(frozen=True, extra="ignore")
