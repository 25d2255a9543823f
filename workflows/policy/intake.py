"""The section `intake`: which node a signal means, how old it may be, and what belongs together."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field, field_validator

from gpu_runbooks.workflows.policy.fields import Duration, Written

LONGEST_SETTLE = timedelta(seconds=10)
"""Alertmanager waits for an answer meanwhile, and gives up after its own timeout."""

LARGEST_AGE = timedelta(days=30)

LabelName = Annotated[str, Field(min_length=1, max_length=128)]


class Intake(Written):
    """The section `intake`."""

    node_labels: Annotated[tuple[LabelName, ...], Field(min_length=1, max_length=20)] = (
        *("node", "kubernetes_node", "Hostname"),
    )
    """Labels of an alert that may hold the node's name; the first that it carries must be a Node's name."""
    max_age: Duration | None = None
    """How long ago a fault may have begun before its evidence is stale; without it any age counts."""
    job_nodes: Annotated[int, Field(ge=2, le=1000, strict=True)] = 2
    """Nodes of one job that have one code at one moment, from which on it is the job's incident."""
    settle: Duration = timedelta(seconds=3)
    """How long an application's fault waits for others of the same job."""

    @field_validator("node_labels")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = next((name for index, name in enumerate(value) if name in value[:index]), None)
        if twice is not None:
            raise ValueError(f"{twice} stands twice: the first place counts, drop the other")
        return value

    @field_validator("max_age")
    @classmethod
    def _ages(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and not timedelta(minutes=1) <= value <= LARGEST_AGE:
            raise ValueError(f"write an age of at least 1m and at most {LARGEST_AGE.days}d")
        return value

    @field_validator("settle")
    @classmethod
    def _settles(cls, value: timedelta) -> timedelta:
        if value > LONGEST_SETTLE:
            raise ValueError(
                f"write at most {LONGEST_SETTLE.seconds}s: who sends an alert waits for the answer as long"
            )
        return value
