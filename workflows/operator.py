"""What a person may tell an incident: raw JSON in, a decision with who and why out."""

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpu_runbooks.activities.errors import BAD_INPUT, refusal
from gpu_runbooks.activities.model.plan import RungName


class Word(BaseModel):
    """A decision, with who made it and why. Written by a person: an unknown field is a slip."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    operator: str = Field(min_length=1, max_length=100)
    reason: str = Field(min_length=1, max_length=500)


class Escalation(Word):
    """A decision for a certain repair."""

    rung: Literal[RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE]


Said = TypeVar("Said", bound=Word)


def read_word(raw: Any) -> Word:
    """Read `{"operator": ..., "reason": ...}`. Raises `BadInput` that names each wrong field."""
    return _read(Word, raw)


def read_escalation(raw: Any) -> Escalation:
    """Read `{"operator": ..., "reason": ..., "rung": ...}`. Raises `BadInput` likewise."""
    return _read(Escalation, raw)


def _read(kind: type[Said], raw: Any) -> Said:
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise refusal(
            BAD_INPUT,
            f"bad argument: {wrong_fields(error)}; give "
            '--input \'{"operator": "who", "reason": "why"}\', and for escalate_to "rung" as well',
        ) from None


def wrong_fields(error: ValidationError) -> str:
    """Each wrong field with what is wrong, in one line."""
    return "; ".join(
        f"field {'.'.join(map(str, item['loc']))!r}: {item['msg'].lower()}"
        if item["loc"]
        else item["msg"].lower()
        for item in error.errors()
    )
