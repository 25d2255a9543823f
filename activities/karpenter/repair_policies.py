"""Node conditions that others repair, and how long they tolerate each, from `repair_policies.csv`.

Karpenter's providers bring their repair policies with them: what replaces a node, not what reboots it. The
rows of `eks` are no Karpenter's: Amazon EKS itself repairs nodes of managed node groups and of Auto Mode.
Providers without a row have no policy (Cluster API), or one of the operator's own (Oracle). EKS does not
repair DiskPressure and MemoryPressure, so it has no row for them. `source` says where each row is from.
"""

import csv
from collections.abc import Iterable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

TABLE = Path(__file__).with_name("repair_policies.csv")

EKS = "eks"
"""Repair by Amazon EKS, of nodes that are not Karpenter's own."""

PROVIDER_BY_SCHEME = {
    "aws": "aws",
    "azure": "azure",
    "gce": "gcp",
    "ibm": "ibm",
    "kwok": "kwok",
}
"""Karpenter provider by the scheme of a node's provider id. Alibaba's provider ids have no scheme."""


class RepairedCondition(BaseModel):
    """A condition that a node may show for so long before its provider has it replaced."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: str
    condition: str
    """Type of the Node condition."""
    status: Literal["True", "False", "Unknown"]
    """Other statuses of the condition are not repaired."""
    toleration_seconds: int = Field(ge=0)
    """Counted from the condition's `lastTransitionTime`."""
    source: str

    @property
    def toleration(self) -> timedelta:
        return timedelta(seconds=self.toleration_seconds)


def repaired_by(provider: str) -> tuple[RepairedCondition, ...]:
    """What a provider repairs. None known gives an empty tuple."""
    return tuple(row for row in repaired_conditions() if row.provider == provider)


def provider_of(provider_id: str) -> str:
    """Karpenter provider of a node by its provider id; empty where the id does not tell."""
    scheme, separator, _ = provider_id.partition("://")
    return PROVIDER_BY_SCHEME.get(scheme, "") if separator else ""


def read_table(text: str) -> tuple[RepairedCondition, ...]:
    """Parse the table.

    Raises `ValueError` (pydantic's included) for an unknown column or value, and for a row that is there
    twice.
    """
    rows = TypeAdapter(tuple[RepairedCondition, ...]).validate_python(
        tuple(csv.DictReader(text.splitlines(), strict=True))
    )
    _refuse_twins(rows)
    return rows


@cache
def repaired_conditions() -> tuple[RepairedCondition, ...]:
    """The whole table, in its order."""
    return read_table(TABLE.read_text(encoding="utf-8"))


def _refuse_twins(rows: Iterable[RepairedCondition]) -> None:
    seen: set[tuple[str, str, str]] = set()
    for row in rows:
        key = (row.provider, row.condition, row.status)
        if key in seen:
            raise ValueError(f"{row.provider}: {row.condition}={row.status} is listed twice")
        seen.add(key)
