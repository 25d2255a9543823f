"""When a drain tells its incident what stands in the way: seldom, each word is an event of the history."""

from collections.abc import Hashable

PATIENCE = 3.0
"""Seconds for which something has to be in the way before it is worth a word."""

INTERVAL = 20.0
"""Seconds at least between two words."""

MOST = 10
"""Words of one drain."""


class ProgressPace:
    """Decides when to tell. Pure: it gets what is in the way, and a clock in seconds."""

    def __init__(self) -> None:
        self._blocked_since: float | None = None
        self._told: frozenset[Hashable] = frozenset()
        self._told_at = float("-inf")
        self._count = 0

    def due(self, in_the_way: frozenset[Hashable], clock: float) -> bool:
        """Whether to tell now. True counts as told."""
        if in_the_way and self._blocked_since is None:
            self._blocked_since = clock
        if not in_the_way:
            self._blocked_since = None
        waited = self._blocked_since is None or clock - self._blocked_since >= PATIENCE
        if in_the_way == self._told or not waited:
            return False
        if clock - self._told_at < INTERVAL or self._count >= MOST:
            return False
        self._told, self._told_at, self._count = in_the_way, clock, self._count + 1
        return True
