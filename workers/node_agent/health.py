"""The Node condition that the agent owns: what NVML says of the GPUs, as others can see it."""

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError
from gpu_runbooks.workers.node_agent.nvml import DriverUnavailable
from gpu_runbooks.workers.node_agent.own_node import OwnNode, read_own_node
from gpu_runbooks.workers.node_agent.probe import DriverUnresponsive, Probe
from gpu_runbooks.workers.node_agent.verdict import Verdict, judge

STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
"""Merges conditions by type. A plain merge patch would replace the kubelet's."""

MEASURE_INTERVAL = 5.0
HEARTBEAT_INTERVAL = 60.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reported:
    """What stands in the Node by our hand."""

    verdict: Verdict
    at: float
    """Loop time of the write."""
    since: str
    """When the status last changed."""


class HealthLoop:
    """Measures and reports until cancelled."""

    def __init__(
        self, kubernetes: Kubernetes, *, node: str, probe: Probe, interval: float = MEASURE_INTERVAL
    ) -> None:
        self._kubernetes = kubernetes
        self._path = f"/api/v1/nodes/{node}"
        self._probe = probe
        self._interval = interval
        self._node: OwnNode | None = None
        self._reported: Reported | None = None

    async def run(self) -> None:
        while True:
            try:
                if self._node is None:
                    await self._read_node()
                await self._report(await self._verdict())
            except KubernetesError as error:
                logger.warning("the GPU condition is not written: %s", error)
                # It may be another Node by now, or another condition than we believe.
                self._node = None
            await asyncio.sleep(self._interval)

    async def _verdict(self) -> Verdict:
        try:
            measurement = await self._probe.measure()
        except DriverUnresponsive as error:
            return Verdict("Unknown", "DriverUnresponsive", str(error))
        except DriverUnavailable as error:
            return Verdict("Unknown", "DriverUnavailable", str(error))
        return judge(measurement, self._node.expected if self._node else None)

    async def _read_node(self) -> None:
        """Take up where an earlier start of the agent left off, so that a restart is no transition."""
        node = await self._kubernetes.request("GET", self._path)
        self._node = read_own_node(node)
        self._reported = None
        for condition in (node.get("status") or {}).get("conditions") or ():
            if condition["type"] == names.HEALTHY_CONDITION:
                verdict = Verdict(
                    condition["status"], condition.get("reason") or "", condition.get("message") or ""
                )
                since = condition.get("lastTransitionTime") or _now()
                self._reported = Reported(verdict, float("-inf"), since)

    async def _report(self, verdict: Verdict) -> None:
        """Write the condition if it changed, or if the last heartbeat is a minute old."""
        last, moment = self._reported, asyncio.get_running_loop().time()
        if last and last.verdict == verdict and moment - last.at < HEARTBEAT_INTERVAL:
            return
        now = _now()
        since = last.since if last and last.verdict.status == verdict.status else now
        condition: dict[str, Any] = {
            "type": names.HEALTHY_CONDITION,
            "status": verdict.status,
            "reason": verdict.reason,
            "message": verdict.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": since,
        }
        metadata = {"uid": self._node.uid} if self._node else {}
        await self._kubernetes.request(
            "PATCH",
            f"{self._path}/status",
            body={"metadata": metadata, "status": {"conditions": [condition]}},
            content_type=STRATEGIC_MERGE_PATCH,
        )
        self._reported = Reported(verdict, moment, since)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
