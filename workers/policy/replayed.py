"""What a replay of recorded faults came to: counts, groups of equal differences, first examples. Pure."""

from collections import Counter
from dataclasses import dataclass, field

from gpu_runbooks.workers.policy.fault_notation import in_notation
from gpu_runbooks.workers.policy.recorded_faults import RecordedFault
from gpu_runbooks.workers.policy.replay import Difference

MOST_GROUPS = 1000
"""Differences that are told apart: a file of nonsense fills no memory."""

EXAMPLES = 5

MOST_CODES = 50
"""Faults of one group that are counted by name."""

LONGEST_CODE = 200
"""Characters of such a name."""


@dataclass
class Group:
    """Faults that two policies differ about in the same way."""

    difference: Difference
    faults: int = 0
    nodes: set[str] = field(default_factory=set)
    codes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Example:
    """One of the first faults that would have been answered differently."""

    line: RecordedFault
    difference: Difference


@dataclass
class Report:
    """What a replay came to."""

    old: str
    new: str
    """Digests of the policies."""
    faults: int = 0
    same: int = 0
    nodes: set[str] = field(default_factory=set)
    groups: dict[tuple[str, str, tuple[str, ...]], Group] = field(default_factory=dict)
    around: Counter[str] = field(default_factory=Counter)
    """What differs for a whole pool, with how many faults it had."""
    examples: list[Example] = field(default_factory=list)
    ungrouped: int = 0
    """Faults of differences beyond those that are told apart."""
    broken: int = 0
    """Lines that were passed over."""

    @property
    def different(self) -> int:
        return self.faults - self.same

    def take(self, event: RecordedFault, found: Difference | None) -> None:
        self.faults += 1
        self.nodes.add(event.node)
        if found is not None:
            self.around.update(found.around)
        if found is None or not found.changes:
            self.same += 1
            return
        if len(self.examples) < EXAMPLES:
            self.examples.append(Example(event, found))
        key = (found.before, found.after, found.changes)
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= MOST_GROUPS:
                self.ungrouped += 1
                return
            group = self.groups[key] = Group(found)
        group.faults += 1
        group.nodes.add(event.node)
        code = in_notation(event.fault)[:LONGEST_CODE]
        if code in group.codes or len(group.codes) < MOST_CODES:
            group.codes[code] += 1
