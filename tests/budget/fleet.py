"""A pool of many nodes: one scripted world for each, and what the pool shows of them all."""

import typing
from collections.abc import Callable
from typing import Any

from incident.fakes import World
from incident.plans import identity
from temporalio import activity
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.model.slot import ObservePool, PoolSeen, UnavailableNode


class Fleet:
    """Stands in for `World` where incidents of several nodes run at once."""

    def __init__(self, *names: str, **script: Any) -> None:
        self.worlds = {name: World(node=identity(name), **script) for name in names}
        self.foreign: list[set[str]] = []
        """Nodes that somebody else has cordoned, at the coming looks; the last one stays."""
        self.away = 0
        """Coming looks that the API server does not answer."""
        self.looks = 0
        self.busy: set[str] = set()
        """Nodes whose work somebody ends right now, or that carry our block."""
        self.busiest = 0

    def cluster(self) -> list[Callable[..., Any]]:
        world = next(iter(self.worlds.values()))
        names = [each.__name__ for each in world.cluster() if each.__name__ != "observe_pool"]
        return [self.observe_pool, *map(self._by_node, names)]

    def cloud(self) -> list[Callable[..., Any]]:
        return list(map(self._by_node, [each.__name__ for each in next(iter(self.worlds.values())).cloud()]))

    @activity.defn
    async def observe_pool(self, request: ObservePool) -> PoolSeen:
        self.looks += 1
        if self.away:
            self.away -= 1
            raise ApplicationError("the API server is away", type=errors.UNAVAILABLE)
        foreign = self.foreign[0] if self.foreign else set()
        self.foreign = self.foreign[1:] or self.foreign
        blocked = {name for name, world in self.worlds.items() if world.marker is not None}
        return PoolSeen(
            nodes=1000,
            unavailable=tuple(
                UnavailableNode(name=name, ready=True, cordoned=True, ours=name in blocked)
                for name in sorted((blocked | foreign) - set(request.asked))
            ),
        )

    def _by_node(self, name: str) -> Callable[..., Any]:
        """The activity of this name, of the world of the incident's node."""

        async def one(request: Any) -> Any:
            node = activity.info().workflow_id.rpartition("/")[2]
            world = self.worlds[node]
            ends_work = name == "drain_pods"
            if ends_work:
                self._count(node)
            result = await getattr(world, name)(request)
            self.busy.discard(node)
            if world.marker is not None:
                self._count(node)
            return result

        hints = typing.get_type_hints(getattr(World, name))
        one.__annotations__ = {"request": hints["request"]}
        return activity.defn(name=name)(one)

    def _count(self, node: str) -> None:
        self.busy.add(node)
        self.busiest = max(self.busiest, len(self.busy))
