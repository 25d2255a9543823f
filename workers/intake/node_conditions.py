"""The source `node conditions`: one watch of all nodes, and what is bad about each.

EKS' node monitoring agent, node-problem-detector, the kubelet and our own agent write what they find into the
conditions of their Node. Which types are watched, and which statuses are bad, policy says.
"""

import asyncio
import logging
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial

from gpu_runbooks.activities.kubernetes.client import KubernetesError
from gpu_runbooks.activities.names import OPT_OUT_LABEL
from gpu_runbooks.activities.nodes.node import INSTANCE_TYPE, NODES
from gpu_runbooks.workers.intake.condition_deliveries import Deliveries
from gpu_runbooks.workers.intake.condition_faults import MOST_REASONS, Clocks
from gpu_runbooks.workers.intake.fleet import KeptNode, kept
from gpu_runbooks.workers.intake.reception import Reception
from gpu_runbooks.workers.intake.reported_conditions import Watched
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workflows.policy.node_conditions import watched_conditions
from gpu_runbooks.workflows.policy.policy import Policy

PAGE_SIZE = 100
"""Nodes that are in memory whole at a time: some 3 MB of JSON."""

LIST_EVERY = 1800.0
"""Seconds between two lists of all nodes while the watch is well: 5,000 nodes are 125 MB."""

REFUSED_PAUSE = 30.0
"""Seconds until nodes are asked for again that we may not see."""

log = logging.getLogger(__name__)


async def run(reception: Reception, settings: Settings, stop: asyncio.Event) -> None:  # noqa: ARG001
    """Watch all nodes until `stop` is set."""
    async with asyncio.TaskGroup() as group:
        watch = ConditionWatch(reception, group)
        watching = group.create_task(watch.run())
        await stop.wait()
        watching.cancel()
        watch.deliveries.cancel()


class ConditionWatch:
    """Follows the nodes, keeps their clocks, and hands on what is bad."""

    def __init__(self, reception: Reception, group: asyncio.TaskGroup) -> None:
        self._reception = reception
        self._policy = reception.policy
        self._watched: Watched = watched_conditions(self._policy)
        self._labels = labels_looked_at(self._policy)
        self._clocks: dict[str, Clocks] = {}
        self.deliveries = Deliveries(reception, group, lambda: self._watched)

    async def run(self) -> None:
        """Watch until cancelled. Where we may not see the nodes, the log says so, and other sources go on."""
        while True:
            try:
                await self._follow()
            except KubernetesError as error:
                log.error(  # noqa: TRY400 - a trace would say no more
                    "no node condition is seen: the intake needs the right to list and watch nodes: %s", error
                )
                await asyncio.sleep(REFUSED_PAUSE)

    async def _follow(self) -> None:
        """Follow until policy looks at other things: what was not kept of the nodes is listed then."""
        keep = partial(kept, watched=self._watched, labels=self._labels)
        states = self._reception.kubernetes.follow(
            NODES, keep=keep, page_size=PAGE_SIZE, list_every=LIST_EVERY
        )
        async with aclosing(states):
            async for nodes in states:
                for uid, node in self._reception.fleet.see(nodes):
                    self._look(uid, node)
                if self._is_watched_anew():
                    return

    def _look(self, uid: str, node: KeptNode | None) -> None:
        if node is None:
            self._clocks.pop(uid, None)
            self.deliveries.forget(uid)
            return
        clocks = self._clocks.get(uid) or self._clocks.setdefault(uid, Clocks(uid, node.created))
        look = clocks.look(node.conditions, datetime.now(UTC))
        for kind in look.overlooked:
            log.warning(
                "node %s: %s is bad for ever new reasons, of which the first %d are faults of their own; a "
                "reason should hold no numbers that change",
                node.name,
                kind,
                MOST_REASONS,
            )
        self.deliveries.see(node, look)

    def _is_watched_anew(self) -> bool:
        """Whether another policy counts that looks at other conditions or labels."""
        policy = self._reception.policy
        if policy is self._policy:
            return False
        looked_at = watched_conditions(policy), labels_looked_at(policy)
        anew = looked_at != (self._watched, self._labels)
        self._policy = policy
        self._watched, self._labels = looked_at
        self.deliveries.ask_again()
        return anew


def labels_looked_at(policy: Policy) -> frozenset[str]:
    """Keys of the labels of a Node that decide what is done: its pool, its hardware, and opt-out. Pure."""
    return frozenset({INSTANCE_TYPE, OPT_OUT_LABEL, *(key for pool in policy.pools for key in pool.selector)})
