"""How a person approves a rung: `true`, or a section that says how long, and by whom."""

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from gpu_runbooks.workflows.policy.fields import DURATION, Duration, Flag, Written, limits


class ApprovalSection(Written):
    """What an approval is worth."""

    lasts: Annotated[Duration, limits(timedelta(minutes=1))] = timedelta(hours=1)
    """How long it counts; unused by then, it is asked for again."""
    by_other: Flag = False
    """Whether it has to come from somebody else than whoever asked for the repair."""


def _section(value: Any) -> Any:
    if value is False or value is None:
        return None
    if value is True:
        return ApprovalSection()
    if not isinstance(value, dict | ApprovalSection):
        what = "write true, false, or what it is worth, such as {lasts: 1h, by_other: true}"
        raise ValueError(f"{what}; not {value!r}")  # noqa: TRY004
    return value


Approval = Annotated[
    ApprovalSection | None,
    BeforeValidator(_section),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "boolean"},
                {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "lasts": {
                            "type": "string",
                            "pattern": f"^(?:{DURATION.pattern})$",
                            "description": "How long it counts; unused by then, it is asked for again.",
                            "default": "1h",
                        },
                        "by_other": {
                            "type": "boolean",
                            "description": "Whether it has to come from somebody else than whoever asked.",
                            "default": False,
                        },
                    },
                },
            ]
        }
    ),
]
