"""What the intake counts of itself, for Prometheus. No label and no value names a node, a pod or a fault."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST

SECONDS = (0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 40.0)
"""Bounds of the histogram: a delivery takes milliseconds, a notification 30 s at most after its body."""


class Metrics:
    """Counters of one intake, in a registry of their own. `policy_errs`: whether its file errs now."""

    def __init__(self, policy_errs: Callable[[], bool] = lambda: False) -> None:
        self._registry = CollectorRegistry()
        self._signals = Counter(
            "gpu_runbooks_signals_total",
            "Signals by source, and by what became of them (docs/intake.md)",
            ["source", "status"],
            registry=self._registry,
        )
        self._truncated = Counter(
            "gpu_runbooks_truncated_alerts_total",
            "Alerts that Alertmanager cut off notifications: nobody here knows what they said",
            registry=self._registry,
        )
        self._seconds = Histogram(
            "gpu_runbooks_webhook_duration_seconds",
            "Time from the head of a permitted notification to its answer",
            buckets=SECONDS,
            registry=self._registry,
        )
        problem = Gauge(
            "gpu_runbooks_policy_problem",
            "1 while the policy file cannot be used as it is, and the policy before it counts",
            registry=self._registry,
        )
        problem.set_function(lambda: float(policy_errs()))

    def answered(self, source: str, status: str) -> None:
        """Count what became of a signal."""
        self._signals.labels(source, status).inc()

    def truncated(self, alerts: int) -> None:
        """Count alerts that were cut off a notification, each time that it comes."""
        self._truncated.inc(alerts)

    def notification(self) -> AbstractContextManager[object]:
        """Measure one notification until the block ends."""
        return self._seconds.time()

    def exposition(self) -> bytes:
        """All of it in Prometheus' text form."""
        return generate_latest(self._registry)
