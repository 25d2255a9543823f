"""The calls that the EC2 stand-in got: what a test counts to know that no act was done twice."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Call:
    """One call that was answered."""

    action: str
    """As AWS spells it, for example `RebootInstances`."""
    caller: str
    """Access key id of whoever called."""
    instance_ids: tuple[str, ...]
    status: int


def append_call(file: Path, call: Call) -> None:
    with file.open("a") as log:
        log.write(json.dumps(asdict(call)) + "\n")


def read_calls(file: Path) -> list[Call]:
    """All calls so far, oldest first."""
    if not file.exists():
        return []
    return [
        Call(**{**row, "instance_ids": tuple(row["instance_ids"])})
        for row in map(json.loads, file.read_text().splitlines())
    ]
