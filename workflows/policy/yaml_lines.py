"""YAML with the line of every key and item, read as a person means it.

Less than YAML 1.1 is read: no aliases (each error has one line), no tags, and only plain words for numbers
and booleans. `22:00`, `010`, `yes` and `2026-01-01` stay as they were written; YAML 1.1 would take them for
1320, 8, true and a date. Size and depth are bounded before anything is built.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

Place = tuple[str | int, ...]
"""Path of a field in the file: `("ladders", "reset", 1, "rung")`."""

LARGEST = 256 * 1024
"""Bytes of a file. A policy for a thousand nodes has ten thousand; a ConfigMap holds a million."""

DEEPEST = 20
"""Levels of nesting. The deepest field of a policy is on the eighth."""

WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,17})", re.ASCII)
DECIMAL = re.compile(r"[+-]?[0-9]{1,17}\.[0-9]{1,17}", re.ASCII)
NOTHING = "tag:yaml.org,2002:null"
BOOLEAN = "tag:yaml.org,2002:bool"
INTEGER = "tag:yaml.org,2002:int"
FRACTION = "tag:yaml.org,2002:float"


class NotYamlError(ValueError):
    """The text cannot be read at all."""

    def __init__(self, line: int, message: str) -> None:
        self.line = line
        super().__init__(message)


@dataclass
class WithLines:
    """Content of a YAML file, with the line of every key and item."""

    content: Any = None
    lines: dict[Place, int] = field(default_factory=dict)
    twice: list[tuple[int, Place]] = field(default_factory=list)
    """Keys that stand a second time, with the line of the second."""

    def line(self, place: Place) -> int:
        """Line of a field, or of the nearest part around it that is there."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def decode(content: bytes) -> str:
    """Text of a file. Raises `NotYamlError` for one that is too large or not UTF-8."""
    if len(content) > LARGEST:
        raise NotYamlError(1, f"larger than {LARGEST // 1024} KiB: no policy needs so much")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise NotYamlError(
            line, f"not UTF-8: byte 0x{content[error.start]:02x} is no text: save it as UTF-8"
        ) from error


def read_yaml(text: str) -> WithLines:
    """Read one document. Raises `NotYamlError`; an empty one has the content None."""
    read = WithLines()
    if len(text) > LARGEST:
        raise NotYamlError(1, f"larger than {LARGEST // 1024} KiB: no policy needs so much")
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is not None:
                read.content = _construct(root, (), read)
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise NotYamlError(
            line, f"not YAML: the character {_code_point(error.character)} is no text"
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        tab = ": indent with spaces" if "'\\t'" in reason else ""
        raise NotYamlError(mark.line + 1 if mark else 1, f"not YAML: {reason}{tab}") from error
    except yaml.YAMLError as error:
        raise NotYamlError(1, f"not YAML: {error}") from error
    return read


class _Loader(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            # One place, one line: an alias would put an error of its use on the line of its anchor.
            raise _marked("aliases are not read here: write it out", event)
        if getattr(event, "tag", None) is not None:
            raise _marked("tags are not read here: drop it, and put text in quotes", event)
        if self.depth >= DEEPEST:
            raise _marked(f"it is nested deeper than {DEEPEST} levels", event)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _marked(problem: str, event: yaml.Event) -> yaml.MarkedYAMLError:
    mark = event.start_mark
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark if isinstance(mark, yaml.Mark) else None)


def _code_point(character: Any) -> str:
    return f"U+{ord(character) if isinstance(character, str) else int(character):04X}"


def _construct(node: yaml.Node, place: Place, read: WithLines) -> Any:
    read.lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_construct(item, (*place, index), read) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return _scalar(node)
    content: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=key_node.start_mark)
        # As written: YAML 1.1 would read the key `on` as true.
        key, line = str(key_node.value), key_node.start_mark.line + 1
        inner = (*place, key)
        if key in content:
            read.twice.append((line, inner))
            continue
        read.lines[inner] = line
        content[key] = _construct(value_node, inner, read)
    return content


def _scalar(node: yaml.Node) -> Any:
    text = str(node.value)
    if node.tag == NOTHING:
        return None
    if node.tag == BOOLEAN and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if node.tag == INTEGER and WHOLE.fullmatch(text):
        return int(text)
    if node.tag == FRACTION and DECIMAL.fullmatch(text):
        return float(text)
    return text
