"""When a drain tells its incident what stands in the way: seldom, each word is an event of the history."""

from collections.abc import Hashable

PATIENCE = 3.0
"""Seconds for which something has to be in the way before it is worth a word."""

INTERVALS = (20.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0)
"""Seconds at least from one word to the next, then the last of them for ever: about ten words in two hours,
and 48 a day."""


class ProgressPace:
    """Decides when to tell. Pure: it gets what is in the way, how it is coming on, and a clock in seconds."""

    def __init__(self, words: int = 0, clock: float = float("-inf")) -> None:
        """`words`: those that the incident was told up to `clock` by an earlier worker."""
        self._blocked_since: float | None = None
        self._told: tuple[frozenset[Hashable], Hashable] = (frozenset(), None)
        self._told_at = clock
        self.words = words

    def due(self, in_the_way: frozenset[Hashable], clock: float, figures: Hashable = None) -> bool:
        """Whether to tell now. True counts as told.

        `figures` are attempts and what is left: worth a word only while something is in the way.
        """
        if in_the_way and self._blocked_since is None:
            self._blocked_since = clock
        if not in_the_way:
            self._blocked_since = None
        waited = self._blocked_since is None or clock - self._blocked_since >= PATIENCE
        news = (in_the_way, figures if in_the_way else None)
        if news == self._told or not waited or clock - self._told_at < self._interval():
            return False
        self._told, self._told_at, self.words = news, clock, self.words + 1
        return True

    def _interval(self) -> float:
        return INTERVALS[min(self.words, len(INTERVALS)) - 1] if self.words else 0.0
