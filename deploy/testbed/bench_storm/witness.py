"""What became of a fleet, seen from outside: watches of its Nodes, NodeClaims and Pods."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager

from gpu_runbooks.activities.karpenter.objects import (
    DISRUPTED_TAINT,
    NODE_CLAIMS,
    REBOOTING_TAINT,
    is_going,
)
from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from gpu_runbooks.activities.names import BLOCK_TAINT, NODE_POOL_LABEL
from gpu_runbooks.activities.nodes.node import NODES
from testbed.background import beside
from testbed.bench_storm.detector import is_marked
from testbed.bench_storm.plan import Plan
from testbed.fleet import POOL_SELECTOR, is_ready
from testbed.nodes import POOL

OUT_OF_SERVICE = frozenset({BLOCK_TAINT, DISRUPTED_TAINT, REBOOTING_TAINT})
"""Taints by which a remediator takes a node out of service."""

LIST_EVERY = 3600.0
LOOK_SECONDS = 0.5


def is_disturbed(node: Object) -> bool:
    """Whether somebody takes the node, or has taken it, out of service."""
    spec = node.get("spec") or {}
    tainted = any(taint["key"] in OUT_OF_SERVICE for taint in spec.get("taints") or ())
    return tainted or bool(spec.get("unschedulable")) or is_going(node)


class Witness:
    """Remembers what was done to nodes, machines and pods. All nodes of this fleet are healthy."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._nodes: Mapping[str, Object] = {}
        self._claims: Mapping[str, Object] = {}
        self._pods: Mapping[str, Object] = {}
        self.disturbed: set[str] = set()
        """UIDs of nodes that were out of service at any time, for whatever reason."""
        self.most_at_once = 0
        """Nodes that were out of service at one moment, at most."""
        self.destroyed: set[str] = set()
        """UIDs of NodeClaims that were deleted: the machine of each was healthy."""
        self.killed: set[str] = set()
        """UIDs of pods that were told to end, or went away."""

    @classmethod
    @asynccontextmanager
    async def watching(cls, kubernetes: Kubernetes, namespace: str, plan: Plan) -> AsyncIterator["Witness"]:
        """Watch while the body runs, which begins when all of it is seen."""
        witness = cls(plan)
        begun = [asyncio.Event() for _ in range(3)]
        follow = kubernetes.follow

        async def nodes() -> None:
            async with aclosing(
                follow(NODES, label_selector=POOL_SELECTOR, keep=dict, list_every=LIST_EVERY)
            ) as states:
                async for state in states:
                    witness.see_nodes(state)
                    begun[0].set()

        async def claims() -> None:
            selector = f"{NODE_POOL_LABEL}={POOL}"
            async with aclosing(
                follow(NODE_CLAIMS, label_selector=selector, keep=dict, list_every=LIST_EVERY)
            ) as states:
                async for state in states:
                    witness.see_claims(state)
                    begun[1].set()

        async def pods() -> None:
            path = f"/api/v1/namespaces/{namespace}/pods"
            async with aclosing(follow(path, keep=dict, list_every=LIST_EVERY)) as states:
                async for state in states:
                    witness.see_pods(state)
                    begun[2].set()

        async with beside(nodes(), claims(), pods()):
            await asyncio.gather(*(event.wait() for event in begun))
            yield witness

    def see_nodes(self, nodes: Mapping[str, Object]) -> None:
        disturbed = {uid for uid, node in nodes.items() if is_disturbed(node)}
        disturbed |= self._nodes.keys() - nodes.keys()
        self.disturbed |= disturbed
        self.most_at_once = max(self.most_at_once, len(disturbed))
        self._nodes = dict(nodes)

    def see_claims(self, claims: Mapping[str, Object]) -> None:
        self.destroyed |= {uid for uid, claim in claims.items() if is_going(claim)}
        self.destroyed |= self._claims.keys() - claims.keys()
        self._claims = dict(claims)

    def see_pods(self, pods: Mapping[str, Object]) -> None:
        self.killed |= {uid for uid, pod in pods.items() if is_going(pod)}
        self.killed |= self._pods.keys() - pods.keys()
        self._pods = dict(pods)

    def abnormal(self) -> str:
        """What is not as it was before the storm; empty where all is."""
        nodes, claims, pods = self._nodes.values(), self._claims.values(), self._pods.values()
        left = {
            "nodes out of service": sum(map(is_disturbed, nodes)),
            "nodes not Ready": sum(not is_ready(node) for node in nodes),
            "nodes called unhealthy": sum(map(is_marked, nodes)),
            "nodes too few or too many": abs(len(nodes) - self._plan.nodes),
            "machines on their way out": sum(map(is_going, claims)),
            "pods missing": max(0, self._plan.pods - sum(map(_runs, pods))),
        }
        return ", ".join(f"{count} {what}" for what, count in left.items() if count)

    async def calm(self, since: float) -> tuple[float | None, str]:
        """Seconds from `since` until all was normal and stayed so.

        After the patience None, and what is not normal.
        """
        abnormal_at = since
        while True:
            now, left = time.monotonic(), self.abnormal()
            if left:
                abnormal_at = now
            elif now - abnormal_at >= self._plan.calm_seconds:
                return abnormal_at - since, ""
            if left and now - since > self._plan.patience_seconds:
                return None, left
            await asyncio.sleep(LOOK_SECONDS)


def _runs(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running" and not is_going(pod)
