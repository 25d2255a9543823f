"""Digest of the tables that are built in, which decide beside the policy file."""

import hashlib
from functools import cache
from pathlib import Path

from gpu_runbooks.activities.aws import instance_types
from gpu_runbooks.activities.karpenter import repair_policies

BESIDE = Path(__file__).parent
"""Whatever table lies here is one of the policy's: Xids, SXids, conditions, events."""


@cache
def built_in_tables() -> dict[str, str]:
    """SHA-256 of every built-in table, by the name of its file."""
    tables = [*BESIDE.glob("*.csv"), instance_types.TABLE, repair_policies.TABLE]
    return {table.name: hashlib.sha256(table.read_bytes()).hexdigest() for table in sorted(tables)}
