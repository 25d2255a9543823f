"""What is wrong with the section `faults` across its parts: one fault in two rules, rules that never match.

Pure, and over the parts that could be read, as `rules`.
"""

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workflows.policy.built_in_rules import fault_of, is_built_in
from gpu_runbooks.workflows.policy.code_rules import meant_by, never_said, reason_never_said
from gpu_runbooks.workflows.policy.faults import FaultRule, Match
from gpu_runbooks.workflows.policy.fields import KEY_NAME, KEY_PREFIX, STATUSES
from gpu_runbooks.workflows.policy.ladders import BUILT_IN_LADDERS, NO_TOUCH, RESTART, Ladder, leaves_node
from gpu_runbooks.workflows.policy.node_conditions import built_in_statuses, condition_types
from gpu_runbooks.workflows.policy.rules import Contradiction
from gpu_runbooks.workflows.policy.yaml_lines import Place

NAME_NO_GPU = frozenset(
    {FaultSource.CONDITION, FaultSource.AWS, FaultSource.EFA, FaultSource.SXID, FaultSource.MANUAL}
)
"""Sources whose faults are of the node, a NIC or a switch."""


def fault_contradictions(
    faults: Mapping[int, FaultRule], ladders: Mapping[str, Ladder], ladder_names: Collection[str]
) -> Iterator[Contradiction]:
    """Yield every contradiction. `ladder_names` are all that the file defines, the unreadable included."""
    names: dict[str, int] = {}
    known = {*BUILT_IN_LADDERS, *ladder_names}
    readable = {**BUILT_IN_LADDERS, **ladders}
    for index, rule in faults.items():
        if names.setdefault(rule.name, index) != index:
            first = ("faults", names[rule.name])
            yield Contradiction(("faults", index, "name"), f"a second rule named {rule.name}", first)
        yield from _anothers_name(index, rule)
        yield from _ladders(index, rule, known)
        yield from _repeats(index, rule, readable)
        yield from _application(index, rule, readable)
        yield from _never_matches(("faults", index, "match"), rule.match)
    yield from _twice(faults)
    yield from _polarities(faults)


def _anothers_name(index: int, rule: FaultRule) -> Iterator[Contradiction]:
    """Yield where a rule is called as a built-in one is that is for other faults: an audit would mislead."""
    if is_built_in(rule.name) and {fault_of(rule.name)} != {
        (rule.match.source, code) for code in rule.match.written_codes()
    }:
        yield Contradiction(
            ("faults", index, "name"),
            f"{rule.name} is the name of a built-in rule, and not for what this one matches: give it a name "
            f"of its own, such as our-{rule.name}",
        )


def _ladders(index: int, rule: FaultRule, known: Collection[str]) -> Iterator[Contradiction]:
    named: dict[Place, str | None] = {
        ("faults", index, "ladder"): rule.ladder,
        ("faults", index, "repeats", "ladder"): None if rule.repeats is None else rule.repeats.ladder,
    }
    for place, ladder in named.items():
        if ladder is not None and ladder not in known:
            close = get_close_matches(ladder[:63], known, n=1)
            guess = f", did you mean {close[0]}?" if close else ":"
            yield Contradiction(
                place, f"no ladder is named {ladder[:63]}{guess} there are {', '.join(sorted(known))}"
            )


def _repeats(index: int, rule: FaultRule, ladders: Mapping[str, Ladder]) -> Iterator[Contradiction]:
    """Yield repeats that suspect no hardware, and such as are never counted."""
    if rule.repeats is None:
        return
    ladder = ladders.get(rule.repeats.ladder)
    if rule.repeats.ladder == rule.ladder or (ladder is not None and leaves_node(ladder)):
        yield Contradiction(
            ("faults", index, "repeats", "ladder"),
            f"{rule.repeats.ladder} suspects no hardware: name a ladder that does, such as reset, or leave "
            "repeats out",
        )
    if rule.match.source in NAME_NO_GPU:
        yield Contradiction(
            ("faults", index, "repeats"),
            f"repeats are counted on one GPU, and a fault of {rule.match.source} names none: drop them",
        )


def _application(index: int, rule: FaultRule, ladders: Mapping[str, Ladder]) -> Iterator[Contradiction]:
    if rule.application and not leaves_node(ladders.get(rule.ladder or NO_TOUCH, ())):
        yield Contradiction(
            ("faults", index, "ladder"),
            f"an application's fault touches no node: drop `ladder: {rule.ladder}`, or write "
            f"`ladder: {RESTART}` to restart the pods that hold the GPU",
        )


def _never_matches(place: Place, match: Match) -> Iterator[Contradiction]:
    """Yield where no fault can have what a rule is for."""
    for code in dict.fromkeys(match.written_codes()):  # one that stands twice is an error of its own
        place_of_code = (*place, "codes" if match.code is None else "code")
        if (why := never_said(match.source, code)) is not None:
            yield Contradiction(place_of_code, why)
        for reason in match.reasons:
            if (why := reason_never_said(code, reason)) is not None:
                yield Contradiction((*place, "reasons"), why)
        if match.source is FaultSource.CONDITION and not meant_by(code, condition_types()):
            yield from _condition(place, place_of_code, match, code)


def _condition(place: Place, place_of_code: Place, match: Match, code: str) -> Iterator[Contradiction]:
    prefix, slash, name = code.rpartition("/")
    if not KEY_NAME.fullmatch(name) or (slash and not KEY_PREFIX.fullmatch(prefix)):
        yield Contradiction(
            place_of_code,
            f"no condition has the type {code[:63]!r}: write it as the Node has it, such as Ready",
        )
        return
    built_in, written = built_in_statuses(code), match.bad_statuses
    place_of_status: Place = (*place, "statuses" if match.statuses else "status")
    if not written and not built_in:
        yield Contradiction(
            place,
            f"nothing is built in for the condition {code}: write the status that is bad, such as "
            "`status: True` of a problem or `statuses: [False, Unknown]` of a health",
        )
    elif {"True", "False"} <= written:
        yield Contradiction(
            place_of_status,
            f"{code} would be bad whatever it says: write {' or '.join(STATUSES[:2])}, not both",
        )
    elif written and len(good := {"True", "False"} - built_in) == 1 and good <= written:
        yield Contradiction(
            place_of_status,
            f"{code} is good when it is {good.pop()}: write {', '.join(sorted(built_in))}, or leave it out",
        )


def _polarities(faults: Mapping[int, FaultRule]) -> Iterator[Contradiction]:
    """Yield conditions that one rule takes for bad when True, and another when False."""
    bad: dict[tuple[str, str], int] = {}
    for index, rule in faults.items():
        for code in rule.match.written_codes() if rule.match.source is FaultSource.CONDITION else ():
            for status, opposite in (STATUSES[:2], STATUSES[1::-1]):
                other = bad.get((code, opposite))
                if status in rule.match.bad_statuses and other is not None and other != index:
                    yield Contradiction(
                        ("faults", index, "match", "statuses" if rule.match.statuses else "status"),
                        f"{code} would be bad whatever it says: rule {faults[other].name} has {opposite}",
                        ("faults", other),
                    )
            for status in rule.match.bad_statuses:
                bad.setdefault((code, status), index)


def _twice(faults: Mapping[int, FaultRule]) -> Iterator[Contradiction]:
    """Yield faults that two rules are for, or one rule twice."""
    owners: dict[tuple[FaultSource, str, str, str], int] = {}
    for index, rule in faults.items():
        match = rule.match
        said: set[str] = set()
        for code, status, reason in _faults_of(match):
            key = (match.source, code, status, reason)
            twice, owner = key in owners, owners.setdefault(key, index)
            words = " ".join(filter(None, (match.source, code, status, reason)))
            if not twice or (owner != index and code in said):
                continue
            said.add(code)
            yield Contradiction(
                ("faults", index, "match", _field(match, index == owner)),
                f"{words} is matched by rule {faults[owner].name} already: keep it in one place",
                ("faults", owner),
            )


def _faults_of(match: Match) -> Iterator[tuple[str, str, str]]:
    """Code, status and reason of every fault that is matched; an empty reason is all that no rule names."""
    for code in match.written_codes():
        statuses = match.bad_statuses or built_in_statuses(code) or {""}
        if match.source is not FaultSource.CONDITION:
            statuses = {""}
        for status in sorted(statuses):
            for reason in match.reasons or ("",):
                yield code, status, reason


def _field(match: Match, same: bool) -> str:
    """The field that says it twice; of two rules, that with the code."""
    if same and len(set(match.written_codes())) == len(match.written_codes()):
        return "reasons"
    return "code" if match.code is not None else "codes"
