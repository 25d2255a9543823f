"""What tells a repeat from news, within bounds: a forged log may name any number of things."""

from collections import OrderedDict
from collections.abc import Hashable

from gpu_runbooks.activities.kernel_log.window import Moment

MOST_REMEMBERED = 16_384
"""Events that are known again when they are read again."""

MOST_DEVICES = 4096
"""Devices, or codes of a device, of which the last moment is known. A node has a few dozen."""


class Told:
    """Records of which an event was told, or that belong to such a one."""

    def __init__(self) -> None:
        self._records: OrderedDict[Hashable, None] = OrderedDict()

    def __contains__(self, record: Hashable) -> bool:
        return record in self._records

    def add(self, record: Hashable) -> None:
        self._records[record] = None
        if len(self._records) > MOST_REMEMBERED:
            self._records.popitem(last=False)


class Recent:
    """When things were first seen, of late."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._moments: OrderedDict[Hashable, Moment] = OrderedDict()
        self._last: Moment | None = None

    def lately(self, moment: Moment) -> bool:
        """Whether anything was seen within the time before."""
        return self._last is not None and moment.near(self._last, self._seconds)

    def again(self, thing: Hashable, moment: Moment) -> bool:
        """Whether it was seen within the time before; if not, it is now."""
        before = self._moments.get(thing)
        if before and moment.near(before, self._seconds):
            return True
        self.put(thing, moment)
        return False

    def put(self, thing: Hashable, moment: Moment) -> None:
        self._moments[thing] = self._last = moment
        if len(self._moments) > MOST_DEVICES:
            self._moments.popitem(last=False)

    def clear(self) -> None:
        self._moments.clear()
        self._last = None
