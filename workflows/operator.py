"""What a person may tell an incident: raw JSON in, a decision with who and why out."""

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gpu_runbooks.activities.errors import BAD_INPUT, refusal
from gpu_runbooks.activities.model.drain import OverrideMethod, PodBlocker, PodOverride
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.severity import REPAIRS


class Word(BaseModel):
    """A decision, with who made it and why. Written by a person: an unknown field is a slip."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    operator: str = Field(min_length=1, max_length=100)
    reason: str = Field(min_length=1, max_length=500)


def _repair(value: Any) -> Any:
    if value not in REPAIRS:
        raise ValueError(f"write {', '.join(REPAIRS)}; not {value!r}")
    return value


class Escalation(Word):
    """A decision for a certain repair."""

    rung: Annotated[RungName, BeforeValidator(_repair)]


class Approval(Word):
    """A decision for the rung that the incident asks about."""

    rung: RungName


class DrainOrder(Word):
    """A decision for pods that keep a drain from ending."""

    method: OverrideMethod
    pods: tuple[str, ...] = Field(min_length=1, max_length=100)
    """Each as `namespace/name` or as UID; `all` for every pod that is shown as a blocker."""


Said = TypeVar("Said", bound=Word)


def read_word(raw: Any) -> Word:
    """Read `{"operator": ..., "reason": ...}`. Raises `BadInput` that names each wrong field."""
    return _read(Word, raw)


def read_escalation(raw: Any) -> Escalation:
    """Read `{"operator": ..., "reason": ..., "rung": ...}`. Raises `BadInput` likewise."""
    return _read(Escalation, raw)


def read_approval(raw: Any) -> Approval:
    """Read `{"operator": ..., "reason": ..., "rung": ...}`. Raises `BadInput` likewise."""
    return _read(Approval, raw)


def read_drain_order(raw: Any) -> DrainOrder:
    """Read `{"operator": ..., "reason": ..., "method": ..., "pods": [...]}`. Raises `BadInput` likewise."""
    return _read(DrainOrder, raw)


def refuse_impossible(rung: RungName, incident: Incident) -> None:
    """Raise `BadInput` for a repair that cannot be the next one: another would be done in its place."""
    ladder = incident.plan.treatment
    repairs = [known.name for known in ladder.rungs if known.name in REPAIRS]
    if rung not in repairs:
        has = f"has the repairs {', '.join(repairs)}, not {rung}" if repairs else "has no repair"
        raise refusal(
            BAD_INPUT,
            f"ladder {ladder.ladder} {has}: abort this incident and start one with a ladder that has it",
        )
    if incident.gone and rung is not RungName.REPLACE:
        raise refusal(
            BAD_INPUT, f"the machine of node {incident.target.name} is gone, and nothing is left for {rung}"
        )
    floors = [act.rung for act in incident.acts if act.rung in REPAIRS]
    floor = max(floors, key=REPAIRS.index, default=rung)
    if REPAIRS.index(rung) < REPAIRS.index(floor):
        raise refusal(
            BAD_INPUT,
            f"this incident is at {floor} already and does nothing milder any more: abort it and start a "
            f"runbook that does {rung}",
        )


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


def _read(kind: type[Said], raw: Any) -> Said:
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise refusal(
            BAD_INPUT,
            f"bad argument: {wrong_fields(error, kind)}; give "
            '--input \'{"operator": "who", "reason": "why"}\', for approve and escalate_to "rung" as well, '
            'for override_drain "method" (evict, delete, abandon) and "pods" (["namespace/name"] or ["all"])',
        ) from None


def wrong_fields(error: ValidationError, kind: type[BaseModel]) -> str:
    """Each wrong field of a model with what is wrong, in one line."""
    known = ", ".join(kind.model_fields)
    parts = []
    for item in error.errors():
        match item["type"]:
            case "extra_forbidden":
                wrong = f"is not known; there are {known}"
            case "literal_error" | "enum":
                wrong = f"must be {item['ctx']['expected']}".replace("'", "")
            case "too_short" | "string_too_short":
                wrong = "must not be empty"
            case "tuple_type":
                wrong = 'write a list, such as ["all"]'
            case _:
                wrong = item["msg"].lower().removeprefix("value error, ")
        parts.append(f"field {'.'.join(map(str, item['loc']))!r}: {wrong}" if item["loc"] else wrong)
    return "; ".join(parts)
