"""Values that a person writes into the policy file: durations, names, codes, and Kubernetes' words."""

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

LONGEST = timedelta(days=365)
"""No wait of ours is longer: a moment further away than the calendar goes cannot be waited for."""

MOST_CHARACTERS = 20
"""Of a duration: a number of more digits is no time."""

DURATION = re.compile(r"(?=\d)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,61}[a-z0-9])?", re.ASCII)

WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
KEY_PREFIX = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*", re.ASCII)
KEY_NAME = re.compile(WORD, re.ASCII)
LABEL_VALUE = re.compile(f"(?:{WORD})?", re.ASCII)
"""Source: the Kubernetes documentation, "Labels and Selectors", "Syntax and character set"."""

KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}", re.ASCII)
NAMESPACES = re.compile(r"[a-z0-9*?\[\]!-]{1,63}", re.ASCII)

STATUSES = ("True", "False", "Unknown")
"""Source: the Kubernetes API reference, `NodeCondition.status`."""

REASON = re.compile(r"[A-Za-z](?:[A-Za-z0-9_,:.-]{0,126}[A-Za-z0-9_])?", re.ASCII)
"""Words that Kubernetes allows in `metav1.Condition.reason`, and two signs more that agents use in theirs."""

INSTANCE_TYPE = re.compile(r"[a-z][a-z0-9-]{0,30}\.[a-z0-9-]{1,30}", re.ASCII)


class Written(BaseModel):
    """Base of what a person writes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def wire_size(part: BaseModel, include: set[str] | None = None) -> int:
    """Bytes of a part, or of some of its fields, as it travels."""
    return len(part.model_dump_json(include=include).encode())


def in_units(time: timedelta) -> str:
    """A duration as the policy file has it, such as 1h30m."""
    rest, parts = int(time.total_seconds()), ""
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, seconds)
        parts += f"{count}{unit}" if count else ""
    return parts or "0s"


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    parts = DURATION.fullmatch(value) if isinstance(value, str) and len(value) <= MOST_CHARACTERS else None
    if parts is None:
        raise ValueError(f"write a duration with units, such as 30s, 10m or 1h30m; not {value!r}")
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    # Counted first: a timedelta holds fewer days than the digits can say.
    if days * 86400 + hours * 3600 + minutes * 60 + seconds > LONGEST.total_seconds():
        raise ValueError(f"write a duration of at most {LONGEST.days}d; not {value!r}")
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def limits(at_least: timedelta = timedelta(0), at_most: timedelta = LONGEST) -> AfterValidator:
    """Limits of a duration, which are told as a person writes durations."""

    def check(value: timedelta) -> timedelta:
        if value < at_least:
            raise ValueError(f"write a duration of at least {in_units(at_least)}; not {in_units(value)}")
        if value > at_most:
            raise ValueError(f"write a duration of at most {in_units(at_most)}; not {in_units(value)}")
        return value

    return AfterValidator(check)


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


def _status(value: Any) -> str:
    # YAML reads an unquoted True as a boolean, and people write it in small letters.
    status = next((each for each in STATUSES if each.lower() == str(value).lower()), None)
    if status is None:
        raise ValueError(f"a condition has one of the statuses {', '.join(STATUSES)}; not {value!r}")
    return status


def _reason(value: str) -> str:
    if not REASON.fullmatch(value):
        raise ValueError(
            f"write a reason as the condition has it, one word such as NvidiaXID79Error; not {value!r}"
        )
    return value


def _line(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError(f"write one line of text; not {value!r}")
    return value.strip()


def _instance_type(value: str) -> str:
    if not INSTANCE_TYPE.fullmatch(value):
        raise ValueError(f"write an EC2 instance type, such as p5.48xlarge; not {value!r}")
    return value


def _schema(pattern: re.Pattern[str], description: str = "") -> WithJsonSchema:
    said = {"description": description} if description else {}
    return WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern.pattern})$", **said})


Flag = Annotated[bool, Field(strict=True)]
"""A bool of YAML; lax reading would take "no" for one as well, and 1."""

Duration = Annotated[timedelta, BeforeValidator(_duration), _schema(DURATION)]
Name = Annotated[str, AfterValidator(_name), _schema(NAME)]
Code = Annotated[
    str,
    BeforeValidator(_code),
    WithJsonSchema({"type": ["string", "integer"], "pattern": r"\S", "minimum": 0}),
]
Text = Annotated[str, BeforeValidator(_boolean_as_text), WithJsonSchema({"type": ["string", "boolean"]})]
Key = Annotated[str, AfterValidator(_key), WithJsonSchema({"type": "string", "maxLength": 317})]
LabelValue = Annotated[
    Text,
    AfterValidator(_label_value),
    WithJsonSchema({"type": ["string", "boolean"], "pattern": f"^{LABEL_VALUE.pattern}$"}),
]
Kind = Annotated[str, AfterValidator(_kind), _schema(KIND)]
Namespaces = Annotated[str, AfterValidator(_namespaces), _schema(NAMESPACES)]
"""Shell pattern of the names of namespaces."""

ConditionStatus = Annotated[str, BeforeValidator(_status), WithJsonSchema({"enum": [*STATUSES, True, False]})]
"""Of a Node condition: True, False or Unknown, with or without quotes."""

Reason = Annotated[str, AfterValidator(_reason), _schema(REASON)]
Line = Annotated[str, Field(max_length=200), AfterValidator(_line)]
"""Text for people, on one line."""

InstanceType = Annotated[str, AfterValidator(_instance_type), _schema(INSTANCE_TYPE)]
