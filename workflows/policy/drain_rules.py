"""What is wrong with the section `drain` across its parts: rules that never decide, names that nothing has.

Pure, and over the parts that could be read, as `policy_rules`.
"""

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase

from gpu_runbooks.workflows.policy.built_in_rules import SHAPES, fault_of, is_built_in, other_names
from gpu_runbooks.workflows.policy.drain import DrainRule, Pods, WorkloadPods
from gpu_runbooks.workflows.policy.faults import FaultRule
from gpu_runbooks.workflows.policy.rules import Contradiction
from gpu_runbooks.workflows.policy.yaml_lines import Place


def drain_contradictions(
    rules: Mapping[int, DrainRule],
    workloads: Mapping[int, WorkloadPods],
    essential: Mapping[int, Pods],
    faults: Mapping[int, FaultRule],
    fault_names: Collection[str],
) -> Iterator[Contradiction]:
    """Yield every contradiction. `fault_names` are all rules of the file, the unreadable ones included."""
    yield from _shadowed_rules(rules)
    for index, rule in rules.items():
        for position, name in enumerate(rule.faults or ()):
            place: Place = ("drain", "rules", index, "faults", position)
            yield from _fault(place, name, faults, fault_names)
    yield from _shadowed_workloads(workloads)
    for index, pods in essential.items():
        if "*" in (pods.namespaces or ()) and not pods.labels and not pods.owners:
            yield Contradiction(
                ("drain", "essential", index), "every pod would be essential: no drain would end"
            )


def _shadowed_rules(rules: Mapping[int, DrainRule]) -> Iterator[Contradiction]:
    names: dict[str, int] = {}
    for index, rule in rules.items():
        if names.setdefault(rule.name, index) != index:
            first = ("drain", "rules", names[rule.name])
            yield Contradiction(("drain", "rules", index, "name"), f"a second rule named {rule.name}", first)
        for earlier, other in rules.items():
            if earlier < index and _decides_all(other, rule):
                yield Contradiction(
                    ("drain", "rules", index),
                    f"rule {rule.name} never decides: rule {other.name} before it fits all its pods; put the "
                    "narrower rule first",
                    ("drain", "rules", earlier),
                )
                break


def _decides_all(first: DrainRule, second: DrainRule) -> bool:
    """Whether every pod and fault that the second rule fits, the first one fits too."""
    return (
        {*first.workloads} >= {*second.workloads}
        and _cover(first.namespaces, second.namespaces)
        and (first.faults is None or (second.faults is not None and {*first.faults} >= {*second.faults}))
    )


def _cover(wide: Collection[str], narrow: Collection[str]) -> bool:
    """Whether every namespace of the one is surely one of the other; False where the patterns do not tell."""
    return all(any(_covers(pattern, each) for pattern in wide) for each in narrow)


def _covers(wide: str, narrow: str) -> bool:
    if wide == narrow:
        return True
    # A pattern read as a name stands for all its names only where nothing but * has to fit its wildcards.
    if {*narrow} & {*"*?"} and {*wide} & {*"?["}:
        return False
    return "[" not in narrow and fnmatchcase(narrow, wide)


def _shadowed_workloads(workloads: Mapping[int, WorkloadPods]) -> Iterator[Contradiction]:
    for index, pods in workloads.items():
        for earlier, other in workloads.items():
            if earlier < index and _selects_all(other, pods):
                yield Contradiction(
                    ("drain", "workloads", index),
                    f"it never decides: an earlier entry takes all its pods for {other.workload}",
                    ("drain", "workloads", earlier),
                )
                break


def _selects_all(first: Pods, second: Pods) -> bool:
    return (
        _cover(first.namespaces or ("*",), second.namespaces or ("*",))
        and (first.labels or {}).items() <= (second.labels or {}).items()
        and (first.owners is None or (second.owners is not None and {*first.owners} >= {*second.owners}))
    )


def _fault(
    place: Place, name: str, faults: Mapping[int, FaultRule], fault_names: Collection[str]
) -> Iterator[Contradiction]:
    """Yield where no fault has this rule: unknown, or all its faults have a rule of the site."""
    if name in fault_names:
        return
    if not is_built_in(name):
        known = ", ".join(sorted(fault_names))
        yield Contradiction(
            place,
            f"no rule for faults is named {name}: there are "
            f"{known + ', and built in ' if known else ''}{', '.join((*SHAPES, *other_names()))}",
        )
        return
    fault = fault_of(name)
    if fault is None:
        return
    source, code = fault
    for index, rule in faults.items():
        narrow = rule.match.reasons or rule.match.bad_statuses
        if rule.match.source is source and code in rule.match.written_codes() and not narrow:
            yield Contradiction(
                place,
                f"{name} never decides, since rule {rule.name} is for that fault: write {rule.name}",
                ("faults", index),
            )
