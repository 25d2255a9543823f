"""States of a workflow as numbers: what it holds and waits for, and where each input takes it.

Every run continues as new after each step, so that a state between steps is the input of the next run, in
JSON: nothing survives that would not survive a continuation. Within a step it is what the run has in memory,
and two runs with the same memory are one state, which keeps the inputs of the first of them.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any

from model.insides import insides
from model.running import T0, Input, Run, Waiting

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")

AGES = tuple(timedelta(minutes=age) for age in (240, 120, 60, 20, 10, 5, 1, 0))
"""What a wait of the product may be long, most first: between them, only the order of two moments counts."""

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class State:
    """One state of one workflow."""

    begun_with: str
    inputs: tuple[Input, ...]
    waiting: Waiting
    data: dict[str, Any]
    """What the run began with, read."""
    asks: bool
    """The incident asks a person."""


@dataclass(frozen=True)
class Change:
    """Where an input takes a workflow."""

    state: int
    refused: str
    """Why the update was refused; the state is the old one then."""
    before: dict[str, Any] | None
    """What the run held as it continued as new, notes and proofs included; None where it did not."""
    showed: bool
    """Whether anybody could see that something happened."""


class Machine:
    """A workflow class under one id, with all its states that were met so far."""

    def __init__(self, kind: type, workflow_id: str, forget: Callable[[dict[str, Any]], None]) -> None:
        self.kind, self.workflow_id, self._forget = kind, workflow_id, forget
        self.states: list[State] = []
        self._begun: dict[str, int] = {}
        self._within: dict[bytes, int] = {}
        self._begun_with_notes: dict[str, bool] = {}
        self._changes: dict[tuple[int, Input], Change] = {}
        self.runs = 0

    def begin(self, argument: str) -> int:
        """The state of a run that begins with this input."""
        known = self._begun.get(argument)
        if known is not None:
            return known
        run = self._run(argument, ())
        number = self._begun[argument] = self._intern(argument, (), run, json.loads(argument))
        self._begun_with_notes[argument] = _notes(run) > 0
        run.close()
        return number

    def feed(self, number: int, what: Input) -> Change:
        """Where an input takes a state."""
        known = self._changes.get((number, what))
        if known is None:
            known = self._changes[number, what] = self._feed(self.states[number], number, what)
        return known

    def _feed(self, state: State, number: int, what: Input) -> Change:
        run = self._run(state.begun_with, state.inputs)
        shown, noted = run.waiting.showed, _notes(run)
        run.feed(what)
        waiting = run.waiting
        if waiting.refused:
            run.close()
            return Change(number, waiting.refused, None, showed=False)
        if waiting.continued is None:
            after = self._intern(state.begun_with, (*state.inputs, what), run, state.data)
            showed = waiting.showed > shown or _notes(run) > noted
            run.close()
            return Change(after, "", None, showed)
        showed = waiting.showed > shown or _notes(run) > noted
        before = json.loads(waiting.continued)
        argument = self._argument(run)
        after = self.begin(argument)
        began = self._begun_with_notes[argument] or self.states[after].waiting.showed > 0
        return Change(after, "", before, showed or began)

    def _run(self, argument: str, inputs: tuple[Input, ...]) -> Run:
        self.runs += 1
        run = Run(self.kind, self.workflow_id, argument)
        for each in inputs:
            run.feed(each)
        return run

    def _argument(self, run: Run) -> str:
        """What a run that has continued as new hands to the next."""
        data = json.loads(run.waiting.continued or "")
        self._forget(data)
        run.close()
        return _from_now(json.dumps(data, sort_keys=True), run.waiting.now)

    def _intern(self, argument: str, inputs: tuple[Input, ...], run: Run, data: dict[str, Any]) -> int:
        text = run.waiting.ended or insides(run, inputs, self._forget)
        acts = json.dumps(data["incident"]["acts"]) if "incident" in data else ""
        digest = blake2b((_from_now(text, run.waiting.now) + acts).encode(), digest_size=16).digest()
        known = self._within.get(digest)
        if known is None:
            known = self._within[digest] = len(self.states)
            self.states.append(State(argument, inputs, run.waiting, data, _asks(run)))
        return known


def _asks(run: Run) -> bool:
    incident = getattr(run._instance._object, "_incident", None)
    return incident is not None and incident.question is not None


def _notes(run: Run) -> int:
    """Lines that an incident has in its audit."""
    incident = getattr(run._instance._object, "_incident", None)
    return len(incident.notes) if incident is not None else 0


def _from_now(text: str, now: datetime) -> str:
    """The same text with all its moments moved so that now is where every run begins.

    What came before keeps its order and roughly its age, what is to come its distance in minutes: how long
    anything outside takes is nobody's to know, so a moment more or less is another run that may be.
    """
    found = {stamp: _read(stamp) for stamp in set(STAMP.findall(text))}
    moved: dict[datetime, datetime] = {}
    age = timedelta(0)
    for moment in sorted({each for each in found.values() if each <= now}, reverse=True):
        whole = next(known for known in AGES if now - moment >= known)
        age = whole if not moved or whole > age else age + timedelta(seconds=1)
        moved[moment] = T0 - age
    for moment in found.values():
        if moment > now:
            moved[moment] = T0 - (now - moment) // MINUTE * MINUTE
    return STAMP.sub(lambda match: f"{moved[found[match[0]]]:%Y-%m-%dT%H:%M:%SZ}", text)


def _read(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp).astimezone(UTC)
