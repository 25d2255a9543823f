"""What is wrong with a policy across its parts: contradictions that no single field shows.

Pure, and over parts: a file with an error in one pool still gets its ladders checked, so that a person sees
all errors at once.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.policy.policy import (
    BLOCK_ONLY,
    BUILT_IN_LADDERS,
    NO_TOUCH,
    NOTIFY,
    OF_WORKLOADS,
    REPAIRS,
    RESTART,
    FaultRule,
    Ladder,
    Pool,
    leaves_node,
)

Place = tuple[str | int, ...]
"""Path of a field in the file: `("ladders", "reset", 1, "rung")`."""

ORDER = (
    RungName.NOTIFY_OWNER,
    RungName.RESTART_WORKLOAD,
    *(rung for rung in RungName if rung not in OF_WORKLOADS),
)


@dataclass(frozen=True)
class Contradiction:
    place: Place
    message: str
    elsewhere: Place | None = None
    """The other side of it."""


def contradictions(
    pools: Mapping[int, Pool],
    ladders: Mapping[str, Ladder],
    faults: Mapping[int, FaultRule],
    ladder_names: Collection[str],
) -> Iterator[Contradiction]:
    """Yield every contradiction among the parts that could be read.

    `ladder_names` are all that the file defines, the unreadable ones included.
    """
    yield from _pools(pools)
    for name, ladder in ladders.items():
        yield from _ladder(name, ladder)
    yield from _faults(faults, {*BUILT_IN_LADDERS, *ladder_names})
    yield from _applications(faults, {**BUILT_IN_LADDERS, **ladders})


def _pools(pools: Mapping[int, Pool]) -> Iterator[Contradiction]:
    for index, pool in pools.items():
        for other_index, other in pools.items():
            if other_index >= index:
                continue
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


def _ladder(name: str, ladder: Ladder) -> Iterator[Contradiction]:
    place: Place = ("ladders", name)
    rungs = [step.rung for step in ladder]
    if name == NO_TOUCH:
        if rungs:
            yield Contradiction(place, f"ladder {NO_TOUCH} touches nothing: write [] or use another name")
    elif not rungs:
        yield Contradiction(place, f"a ladder without rungs: name {NO_TOUCH} where nothing is to be done")
    else:
        alone = next((rung for rung in rungs if rung in OF_WORKLOADS), None)
        if alone is None or OF_WORKLOADS.issuperset(rungs):
            yield from _order(place, rungs)
            yield from _needs(place, rungs) if alone is None else ()
        else:
            yield Contradiction(
                (*place, rungs.index(alone), "rung"),
                f"{alone} is for workloads and leaves the node, so that nothing is blocked, drained or "
                f"returned beside it: give the others a ladder of their own",
            )
        harm = alone or _first_repair(rungs)
        if name == BLOCK_ONLY and harm:
            yield Contradiction(
                place,
                f"ladder {BLOCK_ONLY} is what unknown faults get and may not hold {harm}: use another name",
            )
        needed = {RESTART: RungName.RESTART_WORKLOAD, NOTIFY: RungName.NOTIFY_OWNER}.get(name)
        if needed is not None and needed not in rungs:
            yield Contradiction(place, f"ladder {name} leaves the node and holds {needed}: use another name")


def _order(place: Place, rungs: Sequence[RungName]) -> Iterator[Contradiction]:
    for index, (before, rung) in enumerate(pairwise(rungs), start=1):
        if ORDER.index(rung) <= ORDER.index(before):
            problem = "stands twice" if rung is before else f"cannot follow {before}"
            yield Contradiction((*place, index, "rung"), f"{rung} {problem}: the order is {', '.join(ORDER)}")


def _needs(place: Place, rungs: Sequence[RungName]) -> Iterator[Contradiction]:
    """Yield what a rung needs beside it: no act without block and drain, no return without a test."""
    if RungName.BLOCK not in rungs:
        yield Contradiction(place, "a ladder needs block: no rung acts on a node that takes new work")
    for needed in (RungName.VALIDATE, RungName.RETURN):
        if needed not in rungs:
            yield Contradiction(place, f"a ladder needs {needed}: a blocked node comes back only through it")
    repair = _first_repair(rungs)
    if repair and RungName.DRAIN not in rungs:
        yield Contradiction(place, f"{repair} needs drain in its ladder")


def _first_repair(rungs: Sequence[RungName]) -> RungName | None:
    return next((rung for rung in rungs if rung in REPAIRS), None)


def _faults(faults: Mapping[int, FaultRule], known: Collection[str]) -> Iterator[Contradiction]:
    names: dict[str, int] = {}
    owners: dict[tuple[str, str], int] = {}
    for index, rule in faults.items():
        if rule.ladder is not None and rule.ladder not in known:
            yield Contradiction(
                ("faults", index, "ladder"),
                f"no ladder is named {rule.ladder}: there are {', '.join(sorted(known))}",
            )
        if names.setdefault(rule.name, index) != index:
            first = ("faults", names[rule.name])
            yield Contradiction(("faults", index, "name"), f"a second rule named {rule.name}", first)
        field = "code" if rule.match.codes == () else "codes"
        seen: set[str] = set()
        for code in rule.match.written_codes():
            owner = owners.setdefault((rule.match.source, code), index)
            if owner != index or code in seen:
                other = faults[owner].name
                yield Contradiction(
                    ("faults", index, "match", field),
                    f"{rule.match.source} {code} is matched by rule {other} already: keep it in one place",
                    ("faults", owner),
                )
            seen.add(code)


def _applications(faults: Mapping[int, FaultRule], ladders: Mapping[str, Ladder]) -> Iterator[Contradiction]:
    for index, rule in faults.items():
        ladder = ladders.get(rule.ladder or NO_TOUCH, ())
        if rule.application and not leaves_node(ladder):
            yield Contradiction(
                ("faults", index, "ladder"),
                f"an application's fault touches no node: drop `ladder: {rule.ladder}`, or write "
                f"`ladder: {RESTART}` to restart the pods that hold the GPU",
            )
