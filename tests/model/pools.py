"""Two incidents, the budget of their pool, and the messages between them: the product of all their states.

Messages between workflows wait in order, for as long as they like; Temporal loses none, so none is lost
here but those to a workflow that does not run. Each workflow is the product's own.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from model.lanes import BUDGET, CLUSTER, POOL, Lanes, Limits, Move
from model.machines import Machine
from model.running import Activity, Answer, Fire, Message, StuckError, run_of

from gpu_runbooks.workflows.disruption_budget import DisruptionBudget

NODES = ("n1", "n2")
AGE = ("2026-01-01T01:00:00+01:00", "2026-01-01T02:00:00+01:00")
"""When each incident began, as its budget hears it: the first one is the older."""

LIMIT = 1
"""Nodes of the pool that may be disrupted at once."""

SAID = {"ensure_guard": "null", "page": '{"reached": []}'}
"""Answers to what the budget asks for beside its decisions: given at once."""


class Pool(NamedTuple):
    """One state of all."""

    lanes: tuple[int, int]
    budget: int = -1
    """State of the budget's workflow; -1 while none runs."""
    to_budget: tuple[int, ...] = ()
    to_lanes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    granted: tuple[bool, bool] = (False, False)
    """A grant is on its way or was heard, and the slot was not given back."""
    unasked: tuple[bool, bool] = (False, False)
    """The intake that opened the incident has yet to ask for its slot; it may never come to it."""
    turns: tuple[int, int] = (0, 0)
    """How often each gave its slot or its request back: an earlier grant that comes now is void."""
    braked: bool = False
    """The budget heard of a storm that is not over."""
    budget_ends: int = 0
    brakes: int = 0
    repeats: int = 0


@dataclass(frozen=True)
class Worlds:
    """How the two incidents begin, and what may go wrong around them."""

    intake: bool = False
    """An intake opens them, and asks for their slots; else a person does."""
    budget_ends: int = 0
    """How often somebody terminates the budget."""
    brakes: int = 0
    repeats: int = 0
    """How often a message comes twice."""


@dataclass(frozen=True)
class Step:
    words: str
    state: Pool
    wrong: str = ""
    best: bool = False
    forced: bool = False


class Pools:
    """Successors of the states of a pool. Both lanes are one table: an incident knows only its own node."""

    def __init__(self, first: tuple[str, ...], limits: Limits, worlds: Worlds) -> None:
        self.worlds = worlds
        self.tables = Lanes(NODES[0], limits)
        self.begun = [self.tables.begin(code, by_intake=worlds.intake) for code in first]
        if len(self.begun) == 1:
            self.begun.append(self.tables.nobody())
        self.budget = Machine(DisruptionBudget, BUDGET, lambda slots: slots.update(notes=[]))
        self._messages: list[tuple[str, str]] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def begin(self) -> Pool:
        """Both incidents have just opened."""
        first, second = map(bool, self.tables.intake_asks)
        state = Pool((self.begun[0], self.begun[1]), unasked=(first, second))
        for lane in (0, 1):
            state, _ = self._settle(state, lane)
        return state

    def steps(self, state: Pool) -> Iterator[Step]:
        """All that may happen next."""
        yield from self._of_budget(state)
        for lane in (0, 1):
            yield from self._of_lane(state, lane)
        yield from self._of_others(state)

    def ended(self, state: Pool) -> bool:
        """Whether both incidents are over."""
        return all(self.tables.known[number].run < 0 for number in state.lanes)

    def _of_lane(self, state: Pool, lane: int) -> Iterator[Step]:
        for move in self.tables.moves(state.lanes[lane]):
            yield self._after(state, lane, move)
        box = state.to_lanes[lane]
        if box:
            name, argument = self._messages[box[0]]
            rest = state._replace(to_lanes=_put(state.to_lanes, lane, box[1:]))
            if self.tables.known[state.lanes[lane]].run < 0:
                yield Step(f"{NODES[lane]}: {name} finds nobody", rest, best=True)
            else:
                move = self.tables.tell(state.lanes[lane], name, argument)
                yield self._after(rest, lane, move, best=True)

    def _after(self, state: Pool, lane: int, move: Move, *, best: bool = False) -> Step:
        wrong = move.wrong or self._act(state, lane, move)
        after = state._replace(lanes=_put(state.lanes, lane, move.lane))
        if move.asks_budget:
            request = json.dumps(json.loads(move.asks_budget)["request"])
            after = self._mail(self._with_budget(after), lane, "request_slot", request)
        after, later = self._settle(after, lane)
        return Step(f"{NODES[lane]}: {move.words}", after, wrong or later, best or move.best, move.forced)

    def _act(self, state: Pool, lane: int, move: Move) -> str:
        """What rules 2 and 10 say against an act that begins now."""
        if not move.begins:
            return ""
        if not state.granted[lane]:
            return f"rule 2: {move.begins} begins without a slot"
        if self.tables.known[state.lanes[lane]].node.disrupted:
            return ""
        others = sum(
            self.tables.known[number].node.disrupted
            for each, number in enumerate(state.lanes)
            if each != lane
        )
        if others >= LIMIT:
            return f"rule 10: {move.begins} begins while {others} other node is disrupted, and {LIMIT} may be"
        return ""

    def _settle(self, state: Pool, lane: int) -> tuple[Pool, str]:
        """Have the server take in what the incident sends; and what rule it breaks as it goes on."""
        wrong = ""
        while (signal := self.tables.signal(state.lanes[lane])) is not None:
            to, name, argument = signal
            delivered = to != BUDGET or state.budget >= 0
            if to == BUDGET:
                if delivered:
                    state = self._mail(state, lane, name, argument)
                if name == "return_slot":
                    turns = _put(state.turns, lane, json.loads(argument)["turn"])
                    state = state._replace(granted=_put(state.granted, lane, False), turns=turns)
            sent = self.tables.sent(state.lanes[lane], delivered=delivered)
            wrong = wrong or sent.wrong or self._act(state, lane, sent)
            state = state._replace(lanes=_put(state.lanes, lane, sent.lane))
        return state, wrong

    def _with_budget(self, state: Pool) -> Pool:
        """The budget is started where none runs."""
        if state.budget >= 0:
            return state
        first = json.dumps({"cluster": CLUSTER, "pool": POOL})
        return self._set_off(state._replace(budget=self.budget.begin(first)))

    def _mail(self, state: Pool, lane: int, name: str, argument: str) -> Pool:
        request = json.loads(argument.replace(NODES[0], NODES[lane]))
        request["since"] = AGE[lane]
        number = self._message(name, json.dumps(request, sort_keys=True))
        if number in state.to_budget:
            return state  # it says nothing that the one before it does not say
        return state._replace(to_budget=(*state.to_budget, number))

    def _message(self, name: str, argument: str) -> int:
        key = (name, argument)
        if key not in self._numbers:
            self._numbers[key] = len(self._messages)
            self._messages.append(key)
        return self._numbers[key]

    def _of_budget(self, state: Pool) -> Iterator[Step]:
        if state.budget < 0:
            return
        if state.to_budget:
            name, argument = self._messages[state.to_budget[0]]
            rest = state._replace(to_budget=state.to_budget[1:])
            if name == "brake":
                rest = rest._replace(braked=json.loads(argument)["mode"] == "stop")
            heard = Message(name, argument)
            yield self._budget(f"budget: hears {name}{_of(argument)}", rest, heard, best=True)
        waiting = self.budget.states[state.budget].waiting
        for activity in waiting.activities.values():
            answer = self._answer(state, activity)
            yield self._budget(f"budget: {activity.name}", state, Answer(activity.seq, answer), best=True)
        if waiting.timers:
            seq = min(waiting.timers, key=lambda each: (waiting.timers[each], each))
            yield self._budget("budget: time passes", state, Fire(seq))

    def _budget(self, words: str, state: Pool, what: Any, *, best: bool = False) -> Step:
        try:
            change = self.budget.feed(state.budget, what)
        except StuckError as error:
            return Step(words, state, f"a workflow task fails for ever: {error}")
        after = self._set_off(state._replace(budget=change.state))
        wrong = ""
        for lane in (0, 1):
            if after.granted[lane] and not state.granted[lane]:
                if state.braked:
                    wrong = f"rule 10: the budget grants {NODES[lane]} a slot under a storm"
                if all(after.granted):
                    wrong = f"rule 10: the budget grants {NODES[lane]} a second slot of {LIMIT}"
        if self.budget.states[after.budget].waiting.ended is not None:
            wrong = f"the budget ends: {self.budget.states[after.budget].waiting.ended}"
        return Step(words, after, wrong, best)

    def _set_off(self, state: Pool) -> Pool:
        """Have the server take in what the budget sends, and answer what decides nothing."""
        while True:
            waiting = self.budget.states[state.budget].waiting
            telling = next(
                (each for each in waiting.activities.values() if each.name == "tell_holders"), None
            )
            quiet = next((each for each in waiting.activities.values() if each.name in SAID), None)
            if telling is not None:
                state, closed = self._tell(state, json.loads(telling.request))
                what: Any = Answer(telling.seq, json.dumps({"closed": closed}))
            elif quiet is not None:
                begun = self.budget.states[state.budget].inputs
                opening = all(isinstance(each, Answer) and each.opening for each in begun)
                what = Answer(quiet.seq, SAID[quiet.name], opening=opening)
            else:
                return state
            state = state._replace(budget=self.budget.feed(state.budget, what).state)

    def _tell(self, state: Pool, request: dict[str, Any]) -> tuple[Pool, list[dict[str, Any]]]:
        """Put what the budget tells its holders into their boxes. Those that are over take nothing."""
        closed = []
        for holder in request["holders"]:
            lane = NODES.index(holder["node"])
            if self.tables.known[state.lanes[lane]].run < 0:
                closed.append(holder)
                continue
            if request["stopped"]:
                name, said = "disruption_stopped", {"run_id": holder["run_id"], "why": request["stopped"]}
            else:
                name, said = "slot_granted", holder
            number = self._message(name, json.dumps(said, sort_keys=True).replace(NODES[lane], NODES[0]))
            box = state.to_lanes[lane]
            if not box or box[-1] != number:
                state = state._replace(to_lanes=_put(state.to_lanes, lane, (*box, number)))
            if not request["stopped"] and holder["turn"] == state.turns[lane]:
                state = state._replace(granted=_put(state.granted, lane, True))
        return state, closed

    def _answer(self, state: Pool, activity: Activity) -> str:
        """What the cluster and Temporal truly show."""
        request = json.loads(activity.request)
        lanes = [self.tables.known[number] for number in state.lanes]
        match activity.name:
            case "find_holders":
                held = [_request(each) for each in (0, 1) if state.granted[each]]
                return json.dumps({"holders": held})
            case "find_closed_incidents":
                over = {f"node/{CLUSTER}/{NODES[each]}" for each in (0, 1) if lanes[each].run < 0}
                closed = [one for one in request["incidents"] if one["incident"] in over]
                return json.dumps({"closed": closed})
            case "observe_pool":
                out = [
                    {
                        "name": NODES[each],
                        "ready": True,
                        "cordoned": True,
                        "ours": True,
                        "run_id": _request(each)["run_id"],
                    }
                    for each in (0, 1)
                    if lanes[each].node.blocked and NODES[each] not in request["asked"]
                ]
                absent = [
                    NODES[each]
                    for each in (0, 1)
                    if not lanes[each].node.present and NODES[each] in request["asked"]
                ]
                there = sum(lane.node.present for lane in lanes)
                return json.dumps({"nodes": there, "unavailable": out, "absent": absent})
        raise LookupError(f"tests/model/pools.py does not say what activity {activity.name} answers")

    def _of_others(self, state: Pool) -> Iterator[Step]:
        for each in (0, 1):
            lane = self.tables.known[state.lanes[each]]
            if lane.run < 0 and lane.node.blocked:
                free = lane._replace(node=lane.node._replace(blocked=False, disrupted=False))
                lanes = _put(state.lanes, each, self.tables.number(free))
                yield Step(f"{NODES[each]}: a person gives the node back", state._replace(lanes=lanes))
        for each in (0, 1):
            if state.unasked[each]:
                asked = self._with_budget(state._replace(unasked=_put(state.unasked, each, False)))
                asked = self._mail(asked, each, "request_slot", self.tables.intake_asks[each])
                yield Step(f"the intake asks for the slot of {NODES[each]}", asked, best=True)
        if state.budget < 0:
            return
        if state.budget_ends < self.worlds.budget_ends:
            without = state._replace(budget=-1, to_budget=(), braked=False, budget_ends=state.budget_ends + 1)
            yield Step("somebody terminates the budget", without, forced=True)
        if state.brakes < 2 * self.worlds.brakes:
            mode = "off" if state.brakes % 2 else "stop"
            brake = json.dumps({"mode": mode, "why": "a storm", "storm": "s1" if mode == "stop" else ""})
            number = self._message("brake", brake)
            yield Step(
                "the guard says that a storm is over" if mode == "off" else "the guard tells of a storm",
                state._replace(to_budget=(*state.to_budget, number), brakes=state.brakes + 1),
                best=mode == "off",
            )
        if state.repeats < self.worlds.repeats:
            for lane in (0, 1):
                box = state.to_lanes[lane]
                if box:
                    twice = _put(state.to_lanes, lane, (*box, box[0]))
                    yield Step(
                        f"a message to {NODES[lane]} comes twice",
                        state._replace(to_lanes=twice, repeats=state.repeats + 1),
                    )


def _request(lane: int) -> dict[str, str]:
    incident = f"node/{CLUSTER}/{NODES[lane]}"
    return {"incident": incident, "run_id": run_of(incident), "node": NODES[lane]}


def _of(argument: str) -> str:
    said = json.loads(argument)
    return f" of {said['node']}" if "node" in said else f" {said.get('mode', '')}"


def _put(pair: tuple[Any, Any], lane: int, value: Any) -> tuple[Any, Any]:
    return (value, pair[1]) if lane == 0 else (pair[0], value)
