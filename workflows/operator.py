"""What a person may tell an incident: raw JSON in, a decision with who and why out."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gpu_runbooks.activities.errors import BAD_INPUT, refusal
from gpu_runbooks.activities.model.drain import OverrideMethod, PodBlocker, PodOverride
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.policy.fields import Duration
from gpu_runbooks.workflows.severity import REPAIRS

USUAL_PAUSE, SHORTEST_PAUSE, LONGEST_PAUSE = timedelta(hours=24), timedelta(minutes=1), timedelta(days=7)


def _one_line(value: str) -> str:
    if not value.isprintable():
        raise ValueError("write one line, without control characters: it stands in the audit as it is")
    return value


OneLine = Annotated[str, AfterValidator(_one_line)]
"""What a person writes into the audit: with a line break it could look like several entries."""


class Signed(BaseModel):
    """A decision, with who made it and why. Written by a person: an unknown field is a slip."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True, populate_by_name=False)

    example: ClassVar[str] = ""
    """What a right one has beside operator and reason."""

    operator: OneLine = Field(min_length=1, max_length=100)
    reason: OneLine = Field(min_length=1, max_length=500)


class Word(Signed):
    """A decision about an incident."""

    step: str | None = Field(default=None, min_length=1, max_length=100)
    """Token of the step that the person saw, such as `reboot/2`: for another one the word does not count."""
    incident: str | None = Field(default=None, min_length=1, max_length=100)
    """Run id of the incident that the person saw."""


def _repair(value: Any) -> Any:
    if value not in REPAIRS:
        raise ValueError(f"write {', '.join(REPAIRS)}; not {value!r}")
    return value


class Escalation(Word):
    """A decision for a certain repair."""

    example = ', "rung": "replace"'

    rung: Annotated[RungName, BeforeValidator(_repair)]


class RungWord(Word):
    """A decision about a rung: the one that the incident asks about, or one to be left out."""

    example = ', "rung": "reboot"'

    rung: RungName


class Abort(Word):
    """The end of the incident, and what becomes of its block."""

    example = ', "block": "keep"'

    block: Literal["keep", "remove"] = "keep"


class Pause(Word):
    """A time in which nothing is done."""

    example = ', "for": "2h"'

    lasts: Duration = Field(default=USUAL_PAUSE, alias="for", ge=SHORTEST_PAUSE, le=LONGEST_PAUSE)
    """Such as `2h`."""


class DrainOrder(Word):
    """A decision for pods that keep a drain from ending."""

    example = ', "method": "evict", "pods": ["namespace/name"]'

    method: OverrideMethod
    pods: tuple[str, ...] = Field(min_length=1, max_length=100)
    """Each as `namespace/name` or as UID; `all` for every pod that is shown as a blocker."""


Said = TypeVar("Said", bound=Signed)


def read(kind: type[Said], raw: Any) -> Said:
    """Read a person's word. Raises `BadInput` that names each wrong field, with a right example."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        example = f'{{"operator": "who", "reason": "why"{kind.example}}}'
        raise refusal(
            BAD_INPUT, f"bad argument: {wrong_fields(error, kind)}; give --input '{example}'"
        ) from None


def ordered(order: DrainOrder, blockers: Iterable[PodBlocker]) -> tuple[PodOverride, ...]:
    """The order for each pod that it names.

    Raises `BadInput` for a pod that is no blocker: an order is for what a person has seen, nothing else.
    """
    known = {pod.uid: pod for pod in blockers}
    if not known:
        raise refusal(BAD_INPUT, "no pod stands in the way of a drain now: there is nothing to order")
    chosen: dict[str, PodBlocker] = {}
    for name in order.pods:
        found = {
            uid: pod for uid, pod in known.items() if name in {"all", uid, f"{pod.namespace}/{pod.name}"}
        }
        if not found:
            listed = ", ".join(f"{pod.namespace}/{pod.name}" for pod in known.values())
            raise refusal(BAD_INPUT, f"pod {name!r} does not stand in the way; these do: {listed}")
        chosen |= found
    return tuple(
        PodOverride(uid=uid, method=order.method, operator=order.operator, reason=order.reason)
        for uid in chosen
    )


def wrong_fields(error: ValidationError, kind: type[BaseModel]) -> str:
    """Each wrong field of a model with what is wrong, in one line."""
    known = ", ".join(field.alias or name for name, field in kind.model_fields.items())
    parts = []
    for item in error.errors():
        match item["type"]:
            case "extra_forbidden":
                wrong = f"is not known; there are {known}"
            case "literal_error" | "enum":
                wrong = f"must be {item['ctx']['expected']}".replace("'", "")
            case "too_short" | "string_too_short":
                wrong = "must not be empty"
            case "greater_than_equal" | "less_than_equal" if item["loc"] == ("for",):
                wrong = "write a time of at least 1m and at most 7d"
            case "model_type":
                wrong = "write one JSON object"
            case "tuple_type":
                wrong = 'write a list, such as ["all"]'
            case "value_error":
                wrong = item["msg"].removeprefix("Value error, ")
            case _:
                wrong = item["msg"].lower()
        parts.append(f"field {'.'.join(map(str, item['loc']))!r}: {wrong}" if item["loc"] else wrong)
    return "; ".join(parts)
