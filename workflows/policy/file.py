"""Reading the policy file: every error at once, each with its line, its field and what would be right."""

import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gpu_runbooks.workflows.policy.asking import MOVED
from gpu_runbooks.workflows.policy.drain import MOST_ENTRIES, DrainRule, Pods, WorkloadPods
from gpu_runbooks.workflows.policy.drain_rules import drain_contradictions
from gpu_runbooks.workflows.policy.fault_rules import fault_contradictions
from gpu_runbooks.workflows.policy.faults import FaultRule
from gpu_runbooks.workflows.policy.hardware import Hardware
from gpu_runbooks.workflows.policy.hardware_rules import hardware_contradictions
from gpu_runbooks.workflows.policy.ladders import Ladder
from gpu_runbooks.workflows.policy.policy import Policy
from gpu_runbooks.workflows.policy.pool_rules import pool_contradictions
from gpu_runbooks.workflows.policy.pools import MOST_POOLS, Pool
from gpu_runbooks.workflows.policy.repair import Repair
from gpu_runbooks.workflows.policy.repair_rules import repair_contradictions
from gpu_runbooks.workflows.policy.rules import Contradiction, ladder_contradictions
from gpu_runbooks.workflows.policy.yaml_lines import NotYamlError, Place, WithLines, decode, read_yaml

MOST_SHOWN = 50
"""Errors in the text of a `PolicyError`; `problems` has all."""

MOST_COMPARED = 1000
"""Entries of one section that are compared with one another; a section with more has that error anyway."""

SHOULD = re.compile(r"^\w+ should")
"""Beginning of most of pydantic's messages."""

LONGEST_MESSAGE = 600
LONGEST_KEY = 63


@dataclass(frozen=True, order=True)
class Problem:
    """One error of the file."""

    line: int
    field: str
    """Path such as `pools[0].budget`; empty for the whole file."""
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.field or 'the file'}: {self.message}"


class PolicyError(ValueError):
    """The policy file cannot be used. `problems` has all errors, in the order of the lines."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        shown = [f"  {each}" for each in self.problems[:MOST_SHOWN]]
        rest = [f"  and {len(problems) - MOST_SHOWN} more"] if len(problems) > MOST_SHOWN else []
        super().__init__("\n".join([f"the policy has {count}:", *shown, *rest]))


def load_policy(file: str | bytes) -> Policy:
    """Read the content of a policy file. Raises `PolicyError` with all that is wrong in it."""
    try:
        written = read_yaml(decode(file) if isinstance(file, bytes) else file)
    except NotYamlError as error:
        raise PolicyError([Problem(error.line, "", _short(str(error)))]) from error
    if written.content is None:
        raise PolicyError([Problem(1, "", "it is empty: it needs mode, pools and validation")])
    problems = [
        Problem(line, _path(place), f"written twice, first on line {written.lines[place]}: keep one")
        for line, place in written.twice
    ]
    policy: Policy | None = None
    try:
        policy = Policy.model_validate(written.content)
    except ValidationError as error:
        problems += [
            _problem(written, _place(detail), _advice(detail))
            for detail in error.errors()
            if not _follows(detail)
        ]
    known = {problem.field for problem in problems}
    problems += [
        _problem(written, place, "it is empty: write a value, or leave the field out")
        for place in _empty(written.content)
        if _path(place) not in known
    ]
    problems += [_contradiction(written, each) for each in _contradictions(written.content)]
    if problems or policy is None:
        raise PolicyError(problems)
    return policy


# --- what would be right -------------------------------------------------------------------------------


def _empty(content: Any, place: Place = ()) -> Iterator[Place]:
    """Fields and entries without a value, which the schema does not have either."""
    if content is None:
        yield place
    steps = content.items() if isinstance(content, dict) else ()
    for step, inner in enumerate(content) if isinstance(content, list) else steps:
        yield from _empty(inner, (*place, step))


def _problem(written: WithLines, place: Place, message: str) -> Problem:
    return Problem(written.line(place), _path(place), _short(message))


def _path(place: Place) -> str:
    path = ""
    for step in place:
        path += f"[{step}]" if isinstance(step, int) else f".{_word(step)}"
    return path.removeprefix(".")


def _word(key: str) -> str:
    # A key may hold anything, the codes that control a terminal included.
    short = key if len(key) <= LONGEST_KEY else f"{key[:LONGEST_KEY]}..."
    return short if short.isprintable() and short else repr(short)


def _short(message: str) -> str:
    # Names of the file stand in it as they are written, the codes that control a terminal included.
    message = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in message)
    return message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}..."


def _place(detail: ErrorDetails) -> Place:
    """Where the error is; for one in a key, the field that has this key."""
    return tuple(step for step in detail["loc"] if step != "[key]")


def _follows(detail: ErrorDetails) -> bool:
    """Whether the error only follows from another one, which is in the list."""
    if detail["type"] == "default_factory_not_called":
        return True  # a rung's default timeout hangs on its name
    return detail["type"] == "too_short" and bool(detail["input"])  # items are there, each with an error


def _advice(detail: ErrorDetails) -> str:
    """Say what would be right, where pydantic says only what is wrong."""
    place, kind, found = _place(detail), detail["type"], reprlib.repr(detail["input"])
    if kind == "extra_forbidden":
        if place[:-1] == () and (moved := MOVED.get(str(place[-1]))):
            return f"has moved: {moved}"
        known = sorted(_fields(place[:-1]))
        close = get_close_matches(str(place[-1]), known, n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        return f"unknown field: {guess}known here: {', '.join(known)}"
    if kind == "missing":
        return f"is missing. {_fields(place[:-1])[str(place[-1])]}"
    if kind == "string_type":
        return f"write text, in quotes where YAML takes it for something else; not {found}"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind in {"model_type", "dict_type"}:
        return f"write fields here, as in `key: value`; not {found}"
    if kind == "too_short":
        return "write at least one entry"
    if kind == "too_long":
        return f"write at most {detail['ctx']['max_length']}; there are {len(detail['input'])}"
    if kind == "tuple_type":
        return f"write a list here, as in `- item`; not {found}"
    return f"{SHOULD.sub('it should', detail['msg'])}; not {found}"


def _fields(place: Place) -> dict[str, str]:
    """Fields of the part of a policy that is at a place, each with its description."""
    kind: Any = Policy
    for step in place:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = _present(kind.model_fields[str(step)].annotation)
        else:
            kind = [each for each in get_args(kind) if each is not Ellipsis][-1]
    return {name: each.description or "" for name, each in kind.model_fields.items()}


def _present(kind: Any) -> Any:
    """Type of an optional field where it is written."""
    return (
        next(each for each in get_args(kind) if each is not NoneType) if NoneType in get_args(kind) else kind
    )


def _contradictions(content: Any) -> list[Contradiction]:
    """Contradictions among the parts of the file that can be read by themselves."""
    pools, faults = _entries(content, "pools", MOST_POOLS), _entries(content, "faults")
    ladders, drain = (_section(content, name) for name in ("ladders", "drain"))
    fault_rules = _readable(FaultRule, faults)
    readable_pools, readable_ladders = _readable(Pool, pools), _readable(Ladder, ladders)
    repair = _readable(Repair, {"repair": _section(content, "repair")}).get("repair", Repair())
    return [
        *pool_contradictions(readable_pools),
        *hardware_contradictions(_readable(Hardware, _section(content, "hardware"))),
        *ladder_contradictions(readable_ladders),
        *fault_contradictions(fault_rules, readable_ladders, ladders),
        *repair_contradictions(repair, readable_pools, readable_ladders),
        *drain_contradictions(
            _readable(DrainRule, _entries(drain, "rules", MOST_ENTRIES)),
            _readable(WorkloadPods, _entries(drain, "workloads", MOST_ENTRIES)),
            _readable(Pods, _entries(drain, "essential", MOST_ENTRIES)),
            fault_rules,
            {str(rule.get("name")) for rule in faults.values() if isinstance(rule, dict)},
        ),
    ]


def _section(content: Any, name: str) -> dict[str, Any]:
    section = content.get(name) if isinstance(content, dict) else None
    return dict(islice(section.items(), MOST_COMPARED)) if isinstance(section, dict) else {}


def _entries(content: Any, name: str, most: int = MOST_COMPARED) -> dict[int, Any]:
    entries = content.get(name) if isinstance(content, dict) else None
    return dict(enumerate(entries[:most])) if isinstance(entries, list) else {}


def _readable(kind: Any, parts: dict[Any, Any]) -> dict[Any, Any]:
    adapter = TypeAdapter(kind)
    readable = {}
    for key, part in parts.items():
        try:
            readable[key] = adapter.validate_python(part, extra="ignore")
        except ValidationError:
            continue  # its errors are in the list already
    return readable


def _contradiction(written: WithLines, found: Contradiction) -> Problem:
    where = f" (the other is on line {written.line(found.elsewhere)})" if found.elsewhere else ""
    return _problem(written, found.place, _short(found.message) + where)
