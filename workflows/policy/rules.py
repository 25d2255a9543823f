"""What is wrong with a policy across its parts: contradictions that no single field shows. Here: of ladders.

Pure, and over parts: a file with an error in one pool still gets its ladders checked, so that a person sees
all errors at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.policy.ladders import (
    BLOCK_ONLY,
    DISRUPTING,
    NO_TOUCH,
    NOTIFY,
    OF_WORKLOADS,
    REPAIRS,
    RESTART,
    Ladder,
)
from gpu_runbooks.workflows.policy.yaml_lines import Place

NAMED_FOR = {
    NOTIFY: RungName.NOTIFY_OWNER,
    RESTART: RungName.RESTART_WORKLOAD,
    "drain": RungName.DRAIN,
    "reset": RungName.RESET_GPU,
    "reboot": RungName.REBOOT,
    "replace": RungName.REPLACE,
}
"""The rung without which the name of a built-in ladder would mislead: built-in answers name it too."""

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


def ladder_contradictions(ladders: Mapping[str, Ladder]) -> Iterator[Contradiction]:
    """Yield every contradiction within the ladders that could be read."""
    for name, ladder in ladders.items():
        yield from _ladder(name, ladder)
        yield from _approvals(name, ladder)
        yield from _without_effect(name, ladder)
        yield from _only_observed(name, ladder)


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
        harm = alone or _first_repair(rungs) or (RungName.DRAIN if RungName.DRAIN in rungs else None)
        if name == BLOCK_ONLY and harm:
            yield Contradiction(
                place,
                f"ladder {BLOCK_ONLY} is what unknown faults get and may not hold {harm}: use another name",
            )
        needed = NAMED_FOR.get(name)
        if needed is not None and needed not in rungs:
            of = "leaves the node and holds" if needed in OF_WORKLOADS else "is known to hold"
            yield Contradiction(place, f"ladder {name} {of} {needed}: use another name")


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


NEEDS_NO_PERSON = {
    RungName.BLOCK: "block keeps new work away, ends none, and is undone",
    RungName.NOTIFY_OWNER: "notify_owner only says something",
    RungName.VALIDATE: "validate only tests a node that nothing runs on",
    RungName.RETURN: "return follows a validation that passed",
}
"""Why the rungs that disrupt nobody have neither approval nor a mode."""


def _approvals(name: str, ladder: Ladder) -> Iterator[Contradiction]:
    for index, step in enumerate(ladder):
        place: Place = ("ladders", name, index)
        why = NEEDS_NO_PERSON.get(step.rung)
        may = ", ".join(rung for rung in ORDER if rung in DISRUPTING)
        if step.approval and why:
            yield Contradiction((*place, "approval"), f"{why}: drop it; a person approves {may}")
        if step.mode and why:
            yield Contradiction((*place, "mode"), f"{why}: drop it; only {may} can be observed")
        if step.approval and step.mode and not why:
            yield Contradiction(
                (*place, "approval"),
                f"{step.rung} is only observed, so that there is nothing to approve: drop approval or mode",
            )


ONCE = {
    RungName.BLOCK: "block is tried until the API server answers",
    RungName.NOTIFY_OWNER: "notify_owner is tried until its timeout ends",
    RungName.RETURN: "return is tried until the API server answers",
}
"""Why the rungs that are not tried anew have no attempts."""


def _without_effect(name: str, ladder: Ladder) -> Iterator[Contradiction]:
    """Yield what is written for a rung that nothing looks at there."""
    repairs = ", ".join(rung for rung in ORDER if rung in REPAIRS)
    for index, step in enumerate(ladder):
        place: Place = ("ladders", name, index)
        if step.wait and step.rung not in REPAIRS:
            yield Contradiction(
                (*place, "wait"),
                f"{step.rung} does not wait: drop it, or write it before a repair ({repairs}); for a fault "
                "that may clear by itself, write a toleration into its rule",
            )
        if step.attempts > 1 and step.rung in ONCE:
            tried = ", ".join(rung for rung in ORDER if rung not in ONCE)
            yield Contradiction(
                (*place, "attempts"), f"{ONCE[step.rung]}: drop them; of attempts there are those at {tried}"
            )


def _only_observed(name: str, ladder: Ladder) -> Iterator[Contradiction]:
    """Yield rungs that would act after one that is only observed: the ladder ends there, with a person."""
    observed: RungName | None = None
    for index, step in enumerate(ladder):
        if step.rung not in DISRUPTING:
            continue
        if step.mode == "observe":
            observed = step.rung
        elif observed is not None:
            yield Contradiction(
                ("ladders", name, index),
                f"{step.rung} is never done, since {observed} before it is only observed and a person is "
                "asked there: write `mode: observe` here too, or drop it there",
            )
