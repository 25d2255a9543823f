"""The figures of `make bench-drain`: as a table, and as JSON."""

import os
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

HEADINGS = ("pods", "kubectl s", "ours s", "ratio", "requests per pod: kubectl", "ours")


@dataclass(frozen=True)
class Comparison:
    """Both drains of nodes with so many pods that end at once."""

    pods: int
    kubectl_seconds: float
    ours_seconds: tuple[float, ...]
    """Of each of our rounds; their median counts."""
    kubectl_requests: int
    ours_requests: tuple[int, ...]

    @property
    def ours(self) -> float:
        return median(self.ours_seconds)

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.kubectl_seconds / self.ours

    @property
    def kubectl_per_pod(self) -> float:
        return self.kubectl_requests / self.pods

    @property
    def ours_per_pod(self) -> float:
        return median(self.ours_requests) / self.pods


@dataclass(frozen=True)
class SlowPods:
    """Our drain of a node whose pods take their time to stop."""

    pods: int
    seconds: float
    slowest_pod_seconds: float
    """From the deletion to the end of the pod that took longest, as a watch saw it."""

    @property
    def ratio(self) -> float:
        return self.seconds / self.slowest_pod_seconds


@dataclass(frozen=True)
class ManyNodes:
    """Our drain of many nodes at once, from the first step to the last result."""

    nodes: int
    pods_each: int
    seconds: float


@dataclass(frozen=True)
class Figures:
    """All that a run measured."""

    comparisons: tuple[Comparison, ...]
    slow_pods: SlowPods
    many_nodes: ManyNodes
    load_before: float
    """Load average of the minute before the testbed began: what else the machine was doing."""

    def as_json(self, reference: int) -> dict[str, float]:
        """Figures by name; the requests per pod are those of the comparison of `reference` pods."""
        figures: dict[str, float] = {}
        for one in self.comparisons:
            figures |= {
                f"kubectl_seconds_{one.pods}": one.kubectl_seconds,
                f"ours_seconds_{one.pods}": one.ours,
                f"ratio_{one.pods}": one.ratio,
            }
            if one.pods == reference:
                figures |= {
                    "requests_per_pod_kubectl": one.kubectl_per_pod,
                    "requests_per_pod_ours": one.ours_per_pod,
                }
        figures |= {
            "slow_pods_seconds": self.slow_pods.seconds,
            "slowest_pod_seconds": self.slow_pods.slowest_pod_seconds,
            "slowest_pod_ratio": self.slow_pods.ratio,
            "fifty_nodes_seconds": self.many_nodes.seconds,
            "load_before": self.load_before,
        }
        return {name: round(value, 3) for name, value in figures.items()}


def show(figures: Figures, console: Console) -> None:
    """Print the figures: a table on a terminal, plain lines elsewhere."""
    rows = [
        (
            str(one.pods),
            f"{one.kubectl_seconds:.1f}",
            f"{one.ours:.2f}",
            f"{one.ratio:.1f}",
            f"{one.kubectl_per_pod:.2f}",
            f"{one.ours_per_pod:.2f}",
        )
        for one in figures.comparisons
    ]
    if console.is_terminal:
        table = Table(title="Drain of one node whose pods end at once", title_justify="left")
        for heading in HEADINGS:
            table.add_column(heading, justify="right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    else:
        for row in (HEADINGS, *rows):
            line = "  ".join(cell.rjust(len(heading)) for heading, cell in zip(HEADINGS, row, strict=True))
            console.print(line, highlight=False, soft_wrap=True)
    slow, many = figures.slow_pods, figures.many_nodes
    slowest = f"{slow.pods} pods, of which the slowest takes {slow.slowest_pod_seconds:.1f} s to stop"
    for line in (
        f"{slowest}: ours {slow.seconds:.1f} s, {slow.ratio:.2f} times that",
        f"{many.nodes} nodes of {many.pods_each} pods at once: ours {many.seconds:.1f} s",
        f"load average before: {figures.load_before:.1f}, on {os.cpu_count()} processors",
    ):
        console.print(line, highlight=False, soft_wrap=True)
