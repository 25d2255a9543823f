"""When nodes were blocked, seen from outside: a watch of the cluster's administrator."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from gpu_runbooks.activities.names import BLOCK_ANNOTATION, BLOCK_TAINT
from gpu_runbooks.activities.nodes.node import NODES
from testbed.background import beside

LIST_EVERY = 3600.0
"""Seconds between lists: a watch goes on where the last one ended."""


def is_blocked(node: Object) -> bool:
    """Whether a Node has all of our block: taint, cordon and marker."""
    spec = node.get("spec") or {}
    tainted = any(taint["key"] == BLOCK_TAINT for taint in spec.get("taints") or ())
    marked = BLOCK_ANNOTATION in (node["metadata"].get("annotations") or {})
    return tainted and marked and bool(spec.get("unschedulable"))


class Blocks:
    """Nodes that were seen blocked, and when (`time.monotonic`)."""

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}
        self._news = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def watched(cls, kubernetes: Kubernetes) -> AsyncIterator["Blocks"]:
        """Watch all Nodes while the body runs, which begins when the watch has begun."""
        blocks = cls()
        begun = asyncio.Event()

        async def watch() -> None:
            states = kubernetes.follow(NODES, keep=blocks.note, list_every=LIST_EVERY)
            async with aclosing(states):
                async for _ in states:
                    begun.set()

        async with beside(watch()):
            await begun.wait()
            yield blocks

    async def until(self, count: int, patience: float) -> None:
        """Wait until so many nodes were seen blocked, or until the patience has ended."""
        try:
            async with asyncio.timeout(patience):
                while len(self.seen) < count:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass

    def note(self, node: Object) -> None:
        """Called with each Node at the moment at which the watch brings it."""
        name = node["metadata"]["name"]
        if name not in self.seen and is_blocked(node):
            self.seen[name] = time.monotonic()
            self._news.set()
