"""Reading the policy file: every error at once, each with its line, its field and what would be right."""

import reprlib
from collections.abc import Hashable
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import NoneType
from typing import Any, get_args

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gpu_runbooks.workflows.policy.drain import DrainRule, Pods, WorkloadPods
from gpu_runbooks.workflows.policy.drain_rules import drain_contradictions
from gpu_runbooks.workflows.policy.fault_rules import fault_contradictions
from gpu_runbooks.workflows.policy.faults import FaultRule
from gpu_runbooks.workflows.policy.hardware import Hardware
from gpu_runbooks.workflows.policy.hardware_rules import hardware_contradictions
from gpu_runbooks.workflows.policy.ladders import Ladder
from gpu_runbooks.workflows.policy.policy import Policy
from gpu_runbooks.workflows.policy.pool_rules import pool_contradictions
from gpu_runbooks.workflows.policy.pools import Pool
from gpu_runbooks.workflows.policy.repair import Repair
from gpu_runbooks.workflows.policy.repair_rules import repair_contradictions
from gpu_runbooks.workflows.policy.rules import Contradiction, Place, ladder_contradictions


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
        super().__init__("\n".join([f"the policy has {count}:", *(f"  {each}" for each in self.problems)]))


def load_policy(text: str) -> Policy:
    """Read a policy file. Raises `PolicyError` with all that is wrong in it."""
    written = _read_yaml(text)
    problems = list(written.problems)
    policy: Policy | None = None
    try:
        policy = Policy.model_validate(written.content)
    except ValidationError as error:
        problems += [
            written.problem(_place(detail), _advice(detail))
            for detail in error.errors()
            if not _follows(detail)
        ]
    problems += [_contradiction(written, each) for each in _contradictions(written.content)]
    if problems or policy is None:
        raise PolicyError(problems)
    return policy


# --- YAML with lines -----------------------------------------------------------------------------------


@dataclass
class _Written:
    """Content of a YAML file, with the line of every key and item."""

    content: Any = None
    lines: dict[Place, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, place: Place) -> int:
        """Line of a field, or of the nearest part around it that is there."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def problem(self, place: Place, message: str) -> Problem:
        return Problem(self.line(place), _path(place), message)


BOOLEAN = "tag:yaml.org,2002:bool"


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # One place, one line: an alias would put an error of its use on the line of its anchor.
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not read here: write it out", problem_mark=mark)
        return super().compose_node(parent, index)


def _read_yaml(text: str) -> _Written:
    written = _Written()
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                raise PolicyError([Problem(1, "", "it is empty: it needs mode, pools and validation")])
            written.content = _construct(loader, root, (), written)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise PolicyError([Problem(mark.line + 1 if mark else 1, "", f"not YAML: {reason}")]) from error
    except yaml.YAMLError as error:
        raise PolicyError([Problem(1, "", f"not YAML: {error}")]) from error
    return written


def _construct(loader: _Loader, node: yaml.Node, place: Place, written: _Written) -> Any:
    written.lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_construct(loader, item, (*place, index), written) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        if node.tag == BOOLEAN and node.value.lower() not in {"true", "false"}:
            return node.value  # YAML 1.1 would read `yes`, `no`, `on` and `off` as booleans
        value = loader.construct_object(node)
        return value if isinstance(value, Hashable) else str(value)
    content: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=key_node.start_mark)
        # As written: YAML 1.1 would read the key `on` as true.
        key, line = str(key_node.value), key_node.start_mark.line + 1
        inner = (*place, key)
        if key in content:
            first = written.lines[inner]
            written.problems.append(
                Problem(line, _path(inner), f"written twice, first on line {first}: keep one")
            )
            continue
        written.lines[inner] = line
        content[key] = _construct(loader, value_node, inner, written)
    return content


# --- what would be right -------------------------------------------------------------------------------


def _path(place: Place) -> str:
    path = ""
    for step in place:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")


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
    return f"{detail['msg'].replace('Input should', 'it should')}; not {found}"


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
    pools, faults = (_entries(content, name) for name in ("pools", "faults"))
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
            _readable(DrainRule, _entries(drain, "rules")),
            _readable(WorkloadPods, _entries(drain, "workloads")),
            _readable(Pods, _entries(drain, "essential")),
            fault_rules,
            {str(rule.get("name")) for rule in faults.values() if isinstance(rule, dict)},
        ),
    ]


def _section(content: Any, name: str) -> dict[str, Any]:
    section = content.get(name) if isinstance(content, dict) else None
    return section if isinstance(section, dict) else {}


def _entries(content: Any, name: str) -> dict[int, Any]:
    entries = content.get(name) if isinstance(content, dict) else None
    return dict(enumerate(entries)) if isinstance(entries, list) else {}


def _readable(kind: Any, parts: dict[Any, Any]) -> dict[Any, Any]:
    adapter = TypeAdapter(kind)
    readable = {}
    for key, part in parts.items():
        try:
            readable[key] = adapter.validate_python(part, extra="ignore")
        except ValidationError:
            continue  # its errors are in the list already
    return readable


def _contradiction(written: _Written, found: Contradiction) -> Problem:
    where = f" (the other is on line {written.line(found.elsewhere)})" if found.elsewhere else ""
    return written.problem(found.place, found.message + where)
