"""What the nodes of a storm have in common and others lack: the suspected cause, in words. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

NEARLY_ALL = 0.9
"""Share of the nodes of a storm that have to agree: one may have its fault for a reason of its own."""

MOST_VALUES = 8
"""Different values of one trait that are counted: of more, none is shared by nearly all."""

MOST_TRAITS = 10
"""Traits of a node that are kept."""

ORDER = ("job", "driver", "detector", "rack", "network spine", "zone", "image", "node pool", "instance type")
"""The likelier cause first. Others follow."""

Counts = dict[str, dict[str, int]]
"""How many nodes have which value, by trait."""


def add(counts: Counts, traits: Mapping[str, str]) -> None:
    """Count one node more."""
    for trait, value in list(traits.items())[:MOST_TRAITS]:
        if trait not in counts and len(counts) >= MOST_TRAITS:
            continue
        values = counts.setdefault(trait, {})
        if value in values or len(values) < MOST_VALUES:
            values[value] = values.get(value, 0) + 1


def suspected(counts: Counts, nodes: int, others: Sequence[Mapping[str, str]]) -> str:
    """The traits that nearly all of so many nodes share, those first that the others lack.

    `others` are nodes that had different faults lately: of the healthy ones the guard knows nothing.
    """
    shared = list(_shared(counts, nodes))
    telling = [(kind, value, times) for kind, value, times in shared if _lacking(kind, value, others)]
    found = telling or shared
    if not found:
        return "nothing is known that nearly all of its nodes have in common"
    words = "; ".join(f"the same {kind} {value} ({times} of {nodes})" for kind, value, times in found)
    if telling:
        return f"{words}, unlike nodes with other faults"
    return f"{words}; nothing is known of other nodes" if not others else f"{words}, as other nodes have"


def _shared(counts: Counts, nodes: int) -> Iterable[tuple[str, str, int]]:
    rank = {kind: index for index, kind in enumerate(ORDER)}
    for kind in sorted(counts, key=lambda kind: (rank.get(kind, len(ORDER)), kind)):
        value, times = Counter(counts[kind]).most_common(1)[0]
        if nodes > 1 and times >= NEARLY_ALL * nodes:
            yield kind, value, times


def _lacking(kind: str, value: str, others: Sequence[Mapping[str, str]]) -> bool:
    """Whether most of the others that are known to have this trait at all have another value of it."""
    known = [traits[kind] for traits in others if kind in traits]
    return bool(known) and sum(each == value for each in known) * 2 < len(known)
