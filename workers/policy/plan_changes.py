"""What differs between two plans for one fault, in the words of the policy file. Pure."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from gpu_runbooks.activities.model.plan import ChangeFreeze, Plan, Rung
from gpu_runbooks.workflows.policy.fields import in_units

ABOUT_THE_NODE = frozenset({"cluster", "identity", "traits", "opted_out", "policy_digest"})
"""Parts of a plan that are no answer of policy."""

AROUND = frozenset(
    {
        *("budget", "owners", "pool_selector", "test_pod", "probation", "storm", "freezes"),
        *("operator_reminder", "operator_deadline", "after_deadline"),
    }
)
"""Parts of a plan that are the pool's, whatever the fault: told once, not fault by fault."""

LONGEST_VALUE = 60


def plan_changes(old: Plan, new: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is done differently about the fault, and what differs around it, for the whole pool.

    Compares every part of a plan, those that a later version adds too.
    """
    changes: list[str] = []
    around: list[str] = []
    for name in Plan.model_fields:
        if name in ABOUT_THE_NODE or getattr(old, name) == getattr(new, name):
            continue
        if name == "treatment":
            changes += _treatment(old, new)
        elif name in AROUND:
            around += [
                f"pool {new.pool}: {each}" for each in _changed(name, getattr(old, name), getattr(new, name))
            ]
        else:
            changes += _changed(name, getattr(old, name), getattr(new, name))
    return tuple(changes), tuple(around)


def _treatment(old: Plan, new: Plan) -> Iterator[str]:
    before, after = old.treatment, new.treatment
    for name in type(before).model_fields:
        if name != "rungs" and getattr(before, name) != getattr(after, name):
            yield from _changed(name, getattr(before, name), getattr(after, name))
    if [rung.name for rung in before.rungs] != [rung.name for rung in after.rungs]:
        yield f"rungs: {_names(before.rungs, after.rungs)} -> {_names(after.rungs, before.rungs)}"
    others_by_name = {rung.name: rung for rung in after.rungs}
    for rung in before.rungs:
        other = others_by_name.get(rung.name)
        if other is not None and other != rung:
            yield from _changed(str(rung.name), rung, other)


def _names(rungs: tuple[Rung, ...], others: tuple[Rung, ...]) -> str:
    """The rungs of one ladder, with what a person has to do with those that the other one lacks."""
    known = {rung.name for rung in others}

    def said(rung: Rung) -> str:
        if rung.name in known or not (rung.approval or rung.observe):
            return rung.name
        return f"{rung.name} ({'asks for approval' if rung.approval else 'observed only'})"

    return ", ".join(map(said, rungs)) or "nothing"


def _changed(name: str, old: Any, new: Any) -> Iterator[str]:
    """Each field that differs, by its path."""
    if type(old) is type(new) and hasattr(old, "model_fields_set"):
        for field in type(old).model_fields:
            if getattr(old, field) != getattr(new, field):
                yield from _changed(f"{name}.{field}", getattr(old, field), getattr(new, field))
        return
    before, after = _value(old), _value(new)
    yield f"{name}: {before} -> {after}" if before != after else f"{name}: changed"


def _value(value: Any) -> str:
    if isinstance(value, timedelta):
        return in_units(value)
    if value is None:
        return "nothing"
    if isinstance(value, tuple):
        return _shortened(", ".join(map(_value, value)) or "nothing")
    if isinstance(value, ChangeFreeze):
        return f"{value.why} ({value.begins:%Y-%m-%d %H:%M} to {value.ends:%Y-%m-%d %H:%M} UTC)"
    text = str(value).lower() if isinstance(value, bool) else str(value) or "nothing"
    return _shortened(text)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
