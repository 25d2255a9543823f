"""What a run that waits holds in its memory, as text: two runs with the same text go on alike.

Its workflow object, each place where it waits with the local names there, and what it has asked for. Numbers
that Temporal gives to commands are left out: only their order counts.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from model.running import Answer, Input, Run
from pydantic import BaseModel

from gpu_runbooks import workflows

PRODUCT = next(iter(workflows.__path__))


def insides(run: Run, inputs: tuple[Input, ...], forget: Any) -> str:
    """The memory of a run that was given these inputs."""
    instance, waiting = run._instance, run.waiting
    subject = instance._object
    holds = {name: _plain(value, None) for name, value in sorted(vars(subject).items()) if name != "_raw"}
    incident = getattr(subject, "_incident", None)
    if incident is not None:
        forget({"incident": holds["_incident"]})
    tasks = [list(_places(task.get_coro(), incident)) for task in instance._tasks]
    asked = [
        [each.name, each.request, each.seq in waiting.cut_short, each.seq in waiting.unsent]
        for each in waiting.activities.values()
    ]
    sent = [[each.to, each.name, each.argument] for each in waiting.signals.values()]
    due = sorted(_stamp(each) for each in waiting.timers.values())
    opening = all(isinstance(each, Answer) and each.opening for each in inputs)
    places = sorted(json.dumps(task, sort_keys=True) for task in tasks)
    return json.dumps([holds, places, asked, sent, due, opening], sort_keys=True)


def _places(waits: Any, incident: Any) -> Iterator[list[Any]]:
    """Where a coroutine waits, the outermost call first."""
    while (frame := getattr(waits, "cr_frame", None)) is not None:
        here: dict[str, Any] = {}
        if frame.f_code.co_filename.startswith(PRODUCT):
            here = {name: _plain(value, incident) for name, value in frame.f_locals.items() if name != "raw"}
        yield [frame.f_code.co_qualname, frame.f_lasti, here]
        waits = waits.cr_await


def _plain(value: Any, incident: Any) -> Any:
    if value is incident and incident is not None:
        return "incident"
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, datetime):
        return _stamp(value)
    if value is None or isinstance(value, str | int | bool | float):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(each, incident) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each, incident) for each in value]
    return type(value).__name__


def _stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
