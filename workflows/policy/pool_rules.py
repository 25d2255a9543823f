"""What is wrong with pools across their parts: nodes in two of them, windows that overlap. Pure."""

from collections.abc import Iterator, Mapping
from datetime import timedelta

from gpu_runbooks.workflows.policy.pools import Pool
from gpu_runbooks.workflows.policy.rules import Contradiction
from gpu_runbooks.workflows.policy.windows import DAYS, Window
from gpu_runbooks.workflows.policy.yaml_lines import Place

WEEK = timedelta(days=7)


def pool_contradictions(pools: Mapping[int, Pool]) -> Iterator[Contradiction]:
    """Yield every contradiction among the pools that could be read."""
    for index, pool in pools.items():
        yield from _windows(index, pool)
        for other_index, other in pools.items():
            if other_index >= index:
                break
            first: Place = ("pools", other_index)
            if pool.name == other.name:
                yield Contradiction(("pools", index, "name"), f"a second pool named {pool.name}", first)
            # Such a node would be in two pools, so that every plan for it is refused.
            narrow, wide = sorted((pool, other), key=lambda each: len(each.selector), reverse=True)
            if wide.selector.items() <= narrow.selector.items():
                yield Contradiction(
                    ("pools", index, "selector"),
                    f"every node of pool {narrow.name} is in pool {wide.name} too: give the pools labels "
                    "that exclude each other",
                    first,
                )


def _windows(pool_index: int, pool: Pool) -> Iterator[Contradiction]:
    place: Place = ("pools", pool_index, "windows")
    for index, window in enumerate(pool.windows):
        for earlier in range(index):
            if _overlap(window, pool.windows[earlier]):
                yield Contradiction(
                    (*place, index),
                    f"it overlaps with window {earlier + 1} of pool {pool.name}: write one of both, or let "
                    "the second begin where the first ends",
                    (*place, earlier),
                )
                break


def _overlap(window: Window, other: Window) -> bool:
    """Whether two windows are open at one moment; of two time zones it depends on the season, so False."""
    if window.timezone != other.timezone:
        return False
    return any(
        timedelta(0) <= (begin - start) % WEEK < duration
        for first, second in ((window, other), (other, window))
        for duration in (first.lasts,)
        for start in _begins(first)
        for begin in _begins(second)
    )


def _begins(window: Window) -> list[timedelta]:
    """When the window begins, from the beginning of the week."""
    time = timedelta(hours=window.begins.hour, minutes=window.begins.minute)
    return [timedelta(days=DAYS.index(day)) + time for day in window.days]
