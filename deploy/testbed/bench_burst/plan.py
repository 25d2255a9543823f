"""What a burst is made of: the fleet, the faults of mixed kinds, and the policy that permits some of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from testbed.nodes import POOL_LABEL

SIGNATURES: tuple[Mapping[str, str], ...] = (
    {"alertname": "GpuXid", "xid": "48"},
    {"alertname": "GpuXid", "xid": "64"},
    {"alertname": "GpuXid", "xid": "74"},
    {"alertname": "GpuXid", "xid": "79"},
    {"alertname": "GpuXid", "xid": "95"},
    {"alertname": "GpuXid", "xid": "119"},
    {"alertname": "NvSwitchSxid", "sxid": "20034"},
    {"alertname": "GpuThermal"},
    {"alertname": "EfaLinkDown"},
    {"alertname": "GpuMemoryPressure"},
)
"""Labels of the kinds of fault, dealt out in turn."""

CODES = (
    *(("xid", code) for code in ("48", "64", "74", "79", "95", "119")),
    ("sxid", "20034"),
    *(("alert", code) for code in ("GpuThermal", "EfaLinkDown", "GpuMemoryPressure")),
)
"""How a policy matches them: source and code."""


@dataclass(frozen=True)
class Plan:
    """How large it all is."""

    nodes: int = 1_000
    pools: int = 5
    faults: int = 200
    budget: int = 24
    """Nodes of each pool that may be disrupted at once."""
    within: float = 1.0
    """Seconds in which all faults are posted."""
    duplicates: int = 10_000

    @property
    def permitted(self) -> int:
        """Nodes that may be blocked: no pool has more than its budget."""
        per_pool = [len(range(pool, self.faults, self.pools)) for pool in range(self.pools)]
        return sum(min(self.budget, faulty) for faulty in per_pool)

    def pool_of(self, number: int) -> str:
        return f"pool-{number % self.pools}"

    def node(self, number: int) -> str:
        return f"burst-{number:04}"

    def alert(self, number: int, onset: datetime) -> dict[str, Any]:
        """The alert of the fault of one node, as Alertmanager sends it. Node and fault have one number."""
        return {
            "status": "firing",
            "labels": {**SIGNATURES[number % len(SIGNATURES)], "node": self.node(number)},
            "annotations": {"summary": f"fault {number} of the burst"},
            "startsAt": onset.isoformat(),
            "fingerprint": f"{number:016x}",
        }

    def policy(self) -> dict[str, Any]:
        """Blocks and drains whatever is reported, and leaves the rest to a person, so that slots stay held.

        The burst is to be no storm: each kind is on more nodes than the built-in rule believes.
        """
        selectors = [{POOL_LABEL: self.pool_of(number)} for number in range(self.pools)]
        return {
            "mode": "enforce",
            "pools": [
                {
                    "name": selector[POOL_LABEL],
                    "selector": selector,
                    "budget": {"max_unavailable": self.budget},
                }
                for selector in selectors
            ],
            "ladders": {
                "hold": [
                    {"rung": "block"},
                    {"rung": "drain", "timeout": "5m"},
                    {"rung": "validate"},
                    {"rung": "return"},
                ]
            },
            "faults": [
                {
                    "name": f"burst-{number}",
                    "match": {"source": source, "code": int(code) if code.isdigit() else code},
                    "ladder": "hold",
                }
                for number, (source, code) in enumerate(CODES)
            ],
            "storm": {"nodes": self.faults, "unhealthy_percent": 100},
            # never run: nothing is repaired
            "validation": {"test_pod": {"image": "gpu-load-test", "command": ["gpu-load-test", "--all"]}},
        }


def onset() -> datetime:
    """Since when the faults stand: a minute, so that no clock calls them future ones."""
    return datetime.now(UTC) - timedelta(minutes=1)
