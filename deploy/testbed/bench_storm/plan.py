"""How a detector goes wrong, and on what fleet."""

from dataclasses import dataclass

from testbed.karpenter import TOLERATIONS, UNHEALTHY
from testbed.nodes import POOL, POOL_LABEL


@dataclass(frozen=True)
class Plan:
    """A broken detector marks a growing share of the fleet, and is mended after the last step."""

    nodes: int = 40
    step_seconds: float = 30.0
    """Between one growth and the next, and from the last one to the mend."""
    growth_percent: int = 5
    top_percent: int = 60
    budget_percent: int = 10
    """Nodes that may be disrupted at once: the policy's budget, and the NodePool's."""
    pods_per_node: int = 2
    gpus_per_pod: int = 2
    """Half of the GPUs are free, so that an evicted pod finds another place."""
    calm_seconds: float = 60.0
    """So long all has to be normal, to be called so: what is late shows within."""
    patience_seconds: float = 1_200.0
    """After the mend. A fleet that is not normal then needs a person."""

    @property
    def steps(self) -> list[int]:
        """Nodes that are marked after each step."""
        shares = range(self.growth_percent, self.top_percent + 1, self.growth_percent)
        return [self.nodes * share // 100 for share in shares]

    @property
    def budget(self) -> int:
        return max(1, self.nodes * self.budget_percent // 100)

    @property
    def pods(self) -> int:
        return self.nodes * self.pods_per_node

    def policy(self) -> dict[str, object]:
        """What gpu-runbooks goes by: Karpenter's toleration, and what is built in of ladders and storm rule.

        The ladder is the one that the built-in policy has for a node whose accelerated hardware is not ready.
        """
        return {
            "mode": "enforce",
            "pools": [
                {
                    "name": POOL,
                    "selector": {POOL_LABEL: POOL},
                    "budget": {"max_unavailable": self.budget},
                }
            ],
            "faults": [
                {
                    "name": "unhealthy",
                    "match": {"source": "condition", "code": UNHEALTHY, "status": "True"},
                    "toleration": "30s",
                    "ladder": "reset",
                }
            ],
            "validation": {
                "test_pod": {
                    "image": "gpu-load-test",
                    "command": ["gpu-load-test", "--all"],
                    "tolerations": [toleration["key"] for toleration in TOLERATIONS],
                }
            },
        }
