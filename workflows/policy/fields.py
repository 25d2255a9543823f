"""Values that a person writes into the policy file: durations, names, codes, and Kubernetes' words."""

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

DURATION = re.compile(r"(?=\d)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,61}[a-z0-9])?", re.ASCII)

WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
KEY_PREFIX = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*", re.ASCII)
KEY_NAME = re.compile(WORD, re.ASCII)
LABEL_VALUE = re.compile(f"(?:{WORD})?", re.ASCII)
"""Source: the Kubernetes documentation, "Labels and Selectors", "Syntax and character set"."""

KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}", re.ASCII)
NAMESPACES = re.compile(r"[a-z0-9*?\[\]!-]{1,63}", re.ASCII)


class Written(BaseModel):
    """Base of what a person writes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    parts = DURATION.fullmatch(value) if isinstance(value, str) else None
    if parts is None:
        raise ValueError(f"write a duration with units, such as 30s, 10m or 1h30m; not {value!r}")
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(
            f"write a name of at most 63 small letters, digits, '-', '_' and '.' (it becomes the value of a "
            f"taint or a part of a workflow id); not {value!r}"
        )
    return value


def _code(value: Any) -> str:
    # YAML reads 79 as a number; True would become the code "True".
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"write a code, such as 79 or GpuFellOff; not {value!r}")  # noqa: TRY004
    if not (text := str(value).strip()):
        raise ValueError("write a code, such as 79 or GpuFellOff; it is empty")
    return text


def _boolean_as_text(value: Any) -> Any:
    # Labels and annotations hold text, and everybody writes an unquoted true. Other words that YAML 1.1
    # takes for booleans arrive as they were written.
    return str(value).lower() if isinstance(value, bool) else value


def _key(value: str) -> str:
    prefix, slash, name = value.rpartition("/")
    readable = not slash or (len(prefix) <= 253 and KEY_PREFIX.fullmatch(prefix))
    if not (readable and KEY_NAME.fullmatch(name)):
        raise ValueError(
            "not the name of a label or annotation: at most 63 letters, digits, '-', '_' and '.', with or "
            "without a domain before it, such as karpenter.sh/do-not-disrupt"
        )
    return value


def _label_value(value: str) -> str:
    if not LABEL_VALUE.fullmatch(value):
        raise ValueError(
            f"no label has this value: write at most 63 letters, digits, '-', '_' and '.'; not {value!r}"
        )
    return value


def _kind(value: str) -> str:
    if not KIND.fullmatch(value):
        raise ValueError(f"write a kind as its manifest does, such as PyTorchJob; not {value!r}")
    if value == "ReplicaSet":
        raise ValueError("a ReplicaSet counts as its Deployment: write Deployment")
    return value


def _namespaces(value: str) -> str:
    if not NAMESPACES.fullmatch(value):
        raise ValueError(
            "no namespace has such a name: write small letters, digits and '-', with *, ? or [...] where it "
            f"varies, such as team-*; not {value!r}"
        )
    return value


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Name = Annotated[str, AfterValidator(_name)]
Code = Annotated[str, BeforeValidator(_code)]
Text = Annotated[str, BeforeValidator(_boolean_as_text)]
Key = Annotated[str, AfterValidator(_key)]
LabelValue = Annotated[Text, AfterValidator(_label_value)]
Kind = Annotated[str, AfterValidator(_kind)]
Namespaces = Annotated[str, AfterValidator(_namespaces)]
"""Shell pattern of the names of namespaces."""
