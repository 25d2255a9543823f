"""What a healthy node of an EC2 instance type has, from `instance_types.csv` beside this file.

Sources of the table: KARP-IT is the instance type reference of Karpenter's AWS provider and NMA-IT the GPU
counts inside aws/eks-node-monitoring-agent, both generated from DescribeInstanceTypes (July 2026). Counts of
EFA interfaces are the maximum of the type, which is what a launch template for training attaches.
A cell is empty where no source gives the number.
"""

import csv
from collections.abc import Collection
from functools import cache
from pathlib import Path

from gpu_runbooks.activities.model.plan import ExpectedHardware

TABLE = Path(__file__).with_name("instance_types.csv")


def expected_hardware(instance_type: str) -> ExpectedHardware | None:
    """Hardware of a healthy node, or None for a type that is unknown or known in part only.

    None means that no validation can pass: a caller refuses to act, and does not take it for
    "nothing expected".
    """
    return _known_types().get(instance_type)


def known_types() -> Collection[str]:
    """Names of the types whose hardware is known."""
    return _known_types().keys()


def read_table(text: str) -> dict[str, ExpectedHardware]:
    """Parse the table. Types with an empty count are left out.

    Raises `ValueError` for a type that is listed twice and for a cell that cannot be read.
    """
    known: dict[str, ExpectedHardware] = {}
    seen: set[str] = set()
    for row in csv.DictReader(text.splitlines(), strict=True):
        name = row["instance_type"]
        if name in seen:
            raise ValueError(f"instance type {name} is listed twice")
        seen.add(name)
        if row["gpus"] and row["efa_interfaces"]:
            known[name] = ExpectedHardware(
                instance_type=name,
                gpus=int(row["gpus"]),
                efa_interfaces=int(row["efa_interfaces"]),
                nvlink={"yes": True, "no": False}[row["nvlink"]],
            )
    return known


@cache
def _known_types() -> dict[str, ExpectedHardware]:
    return read_table(TABLE.read_text(encoding="utf-8"))
