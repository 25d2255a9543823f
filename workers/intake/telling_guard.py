"""Telling the guard of the fleet what is wrong with which node, before the node's incident has the fault.

So the guard knows when many nodes have the same before any of them asks for a slot. Faults that come together
are one signal, or a few: a burst of them costs the guard little, and none waits for another's.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import monotonic

from temporalio.client import Client

from gpu_runbooks.activities.model.fleet import (
    AlertsTruncated,
    EnsureGuard,
    FaultSeen,
    FaultsSeen,
    StormRule,
)
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.activities.temporal import Temporal
from gpu_runbooks.workflows.traits import fault_traits, signature

GATHER_SECONDS = 0.03
"""How long a fault waits for others to go with it."""

LONGEST_SIGNAL = 12 * 1024
"""Bytes of the faults of one signal: a payload stays under 16 KiB with all that is around them."""

TELL_SECONDS = 5.0
"""Time limit of one signal, with the start of the guard where it does not run."""

MOST_REMEMBERED = 20_000
"""One that is forgotten is told again: of a node that the guard knows already it counts once."""

_Told = tuple[str, str, str]
"""Node, signature, and the episode of the node that it belongs to."""


def sighting(report: FaultReport) -> FaultSeen:
    """What the guard is to know of a fault."""
    return FaultSeen(
        node=report.plan.identity.name,
        pool=report.plan.pool,
        signature=signature(report.fault),
        traits={**report.plan.traits, **fault_traits(report.fault)},
    )


_Faults = dict[_Told, tuple[FaultSeen, StormRule]]


@dataclass(frozen=True)
class _Batch:
    """Faults that are told together."""

    faults: _Faults
    sent: asyncio.Task[None]


def signals(faults: Iterable[tuple[FaultSeen, StormRule]]) -> Iterator[FaultsSeen]:
    """As few signals as can be, each of one rule and short enough."""
    by_rule: dict[str, tuple[StormRule, list[FaultSeen]]] = {}
    for seen, rule in faults:
        by_rule.setdefault(rule.model_dump_json(), (rule, []))[1].append(seen)
    for rule, alike in by_rule.values():
        together: list[FaultSeen] = []
        room = LONGEST_SIGNAL
        for seen in alike:
            length = len(seen.model_dump_json().encode()) + 1
            if together and length > room:
                yield FaultsSeen(faults=tuple(together), rule=rule)
                together, room = [], LONGEST_SIGNAL
            together.append(seen)
            room -= length
        yield FaultsSeen(faults=tuple(together), rule=rule)


class GuardNews:
    """Tells the guard of one cluster, over one client, and nothing twice within the time of the rule."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._temporal = Temporal(client)
        self._cluster = cluster
        self._told: OrderedDict[_Told, float] = OrderedDict()
        """Until when (`monotonic`) it need not be told again."""
        self._gathering: _Batch | None = None
        self._one_at_a_time = asyncio.Lock()

    async def tell(self, report: FaultReport, episode: str) -> None:
        """Make sure that the guard was told of a fault. Raises what says that Temporal is away.

        `episode`: while it is the same one for a node, the same signature again says nothing new.
        """
        seen, rule = sighting(report), report.plan.storm
        key = (seen.node, seen.signature, episode)
        if self._told.get(key, 0.0) > monotonic():
            return
        batch = self._gathering or self._gather()
        batch.faults[key] = (seen, rule)
        await asyncio.shield(batch.sent)
        self.remember(report, episode)

    def remember(self, report: FaultReport, episode: str) -> None:
        """Count a fault as told in this episode too: it has opened it."""
        key = (report.plan.identity.name, signature(report.fault), episode)
        self._told[key] = monotonic() + report.plan.storm.within.total_seconds()
        self._told.move_to_end(key)
        while len(self._told) > MOST_REMEMBERED:
            self._told.popitem(last=False)

    async def tell_truncated(self, hidden: AlertsTruncated) -> None:
        """Tell of alerts that were cut off. Raises as `tell`."""
        await self._signal(EnsureGuard(cluster=self._cluster, signal="alerts_truncated", argument=hidden))

    def _gather(self) -> _Batch:
        faults: _Faults = {}
        batch = self._gathering = _Batch(faults, asyncio.create_task(self._send(faults)))
        # All who wait may have given up: asyncio would log the error as one that nobody saw.
        batch.sent.add_done_callback(lambda sent: sent.cancelled() or sent.exception())
        return batch

    async def _send(self, faults: _Faults) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        async with self._one_at_a_time:  # meanwhile the next ones gather
            self._gathering = None
            for told in signals(faults.values()):
                await self._signal(EnsureGuard(cluster=self._cluster, signal="faults_seen", argument=told))

    async def _signal(self, told: EnsureGuard) -> None:
        async with asyncio.timeout(TELL_SECONDS):
            await self._temporal.ensure_guard(told)
