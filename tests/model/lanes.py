"""A lane: one incident with its node. Which moves it has, where each leads, what the witness says to it."""

import json
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple

from incident.plans import fault
from model.machines import Change, Machine
from model.running import NOW, T0, Answer, Cancel, Fire, Message, Sent, StuckError, run_of
from model.witness import act_of, check_act, check_end, check_record, check_unblock
from model.world import CONDITION, LADDER_OF, LADDERS, RANK, Node, choices, plan_of

from gpu_runbooks.activities.model.fault import Entity, FaultSource
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.activities.names import budget_id, incident_id
from gpu_runbooks.workers.intake.openings import incident_of
from gpu_runbooks.workflows.node_remediation import NodeRemediation
from gpu_runbooks.workflows.slot_request import slot_request

CLUSTER, POOL = "test", "p5"
BUDGET = budget_id(CLUSTER, POOL)

TOLERATED = timedelta(minutes=10)

PERSON = {"operator": "ana", "reason": "because"}

WORDS: dict[str, dict[str, Any]] = {
    "retry": PERSON,
    "escalate_to reboot": PERSON | {"rung": "reboot"},
    "escalate_to replace": PERSON | {"rung": "replace"},
    "skip_rung reboot": PERSON | {"rung": "reboot"},
    "return_anyway": PERSON,
}
"""What people answer when asked, by update and what it is about; abort beside, as often as they like."""

UNASKED: dict[str, dict[str, Any]] = {"pause": PERSON | {"for": "1h"}, "resume": PERSON}
"""What they say at any moment."""


PREPARING = frozenset({"inspect_instance", "pause_gpu_services", "replace_instance", "delete_node_claim"})
"""Activities that are of an act already: a stop that comes now is about the next one."""


class Lane(NamedTuple):
    """One state of a lane."""

    run: int
    """State of the incident's workflow; -1 once it has ended."""
    node: Node
    troubles: int = 0
    faults: int = 0
    words: int = 0
    outcome: str = ""


@dataclass(frozen=True)
class Limits:
    """How much may go wrong in one lane, and how often people speak."""

    troubles: int = 1
    faults: int = 1
    words: int = 1


@dataclass(frozen=True)
class Move:
    """One thing that may happen to a lane."""

    words: str
    lane: int
    wrong: str = ""
    """The rule that it breaks."""
    begins: str = ""
    """The act that begins with it."""
    asks_budget: str = ""
    """Request that a start of the budget hands to it."""
    passes: bool = False
    """Nothing but time passes."""
    best: bool = False
    """What happens when all goes well."""
    forced: bool = False
    """Somebody ends the incident, or the node, who was not asked to: nothing may depend on that."""


@dataclass
class Lanes:
    """All states of one lane that were met so far."""

    node: str
    limits: Limits
    known: list[Lane] = field(default_factory=list)
    intake_asks: list[str] = field(default_factory=list)
    """For each incident that began: the request that the intake sends for it, if it does."""
    numbers: dict[Lane, int] = field(default_factory=dict)
    _moves: dict[int, tuple[Move, ...]] = field(default_factory=dict)
    _told: dict[tuple[int, str, str], Move] = field(default_factory=dict)
    _sent: dict[tuple[int, bool], Move] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.id = incident_id(CLUSTER, self.node)
        self.machine = Machine(NodeRemediation, self.id, _forget)

    def begin(self, first: str, *, by_intake: bool = False) -> int:
        """An incident in its first state, opened for a fault of this code."""
        node = Node(self.node)
        report = _report(first, node, "first", tolerated=first == CONDITION)
        start = json.loads(json.dumps({"report": report}).replace(NOW, f"{T0:%Y-%m-%dT%H:%M:%SZ}"))
        opens = incident_of(CLUSTER, self.id, FaultReport.model_validate(start["report"]), T0)
        asked = by_intake and opens.slot_asked
        if asked:
            opens.run_id = run_of(self.id)
            start["slot_asked"] = True
        run = self.machine.begin(json.dumps(start))
        self.intake_asks.append(slot_request(opens).model_dump_json() if asked else "")
        if first == CONDITION:
            return self.number(Lane(run, node._replace(flaps=True)))
        return self.number(Lane(run, node._replace(owed=LADDERS.get(LADDER_OF[first], 0))))

    def nobody(self) -> int:
        """A node that has no incident."""
        self.intake_asks.append("")
        return self.number(Lane(-1, Node(self.node, sick=False)))

    def number(self, lane: Lane) -> int:
        """Number of a state."""
        known = self.numbers.get(lane)
        if known is None:
            known = self.numbers[lane] = len(self.known)
            self.known.append(lane)
        return known

    def signal(self, number: int) -> tuple[str, str, str] | None:
        """The first signal that waits to be taken in: to whom, its name, its argument."""
        lane = self.known[number]
        if lane.run < 0:
            return None
        signals = self.machine.states[lane.run].waiting.signals
        first = next(iter(signals.values()), None)
        return (first.to, first.name, first.argument) if first else None

    def sent(self, number: int, *, delivered: bool) -> Move:
        """The server took the first signal in, or there is nobody to take it."""
        known = self._sent.get((number, delivered))
        if known is None:
            lane = self.known[number]
            seq = next(iter(self.machine.states[lane.run].waiting.signals))
            known = self._feed("", lane, Sent(seq, delivered), lane.node)
            self._sent[number, delivered] = known
        return known

    def tell(self, number: int, name: str, argument: str) -> Move:
        """The incident hears a signal of its budget."""
        known = self._told.get((number, name, argument))
        if known is None:
            lane = self.known[number]
            node = lane.node
            if name == "disruption_stopped":
                node = node._replace(stopped=True)
            elif name == "slot_granted":
                node = node._replace(stopped=False)
            known = self._feed(f"hears {name}", lane, Message(name, argument), node)
            self._told[number, name, argument] = known
        return known

    def moves(self, number: int) -> tuple[Move, ...]:
        """All that may happen to a lane by itself, by its node, and by people; the best first."""
        known = self._moves.get(number)
        if known is None:
            known = self._moves[number] = tuple(self._find(self.known[number]))
        return known

    def _find(self, lane: Lane) -> list[Move]:
        if lane.run < 0:
            return []
        return [
            move
            for move in (*self._answers(lane), *self._times(lane), *self._people(lane), *self._mishaps(lane))
            if move is not None
        ]

    def _answers(self, lane: Lane) -> list[Move]:
        waiting, found = self.machine.states[lane.run].waiting, []
        for activity in waiting.activities.values():
            if activity.limit is None:
                found.append(Move(f"waits for {activity.name}", self.number(lane), "rule 6: without a limit"))
            first = True
            ways = choices(
                activity,
                lane.node,
                cut_short=activity.seq in waiting.cut_short,
                unsent=activity.seq in waiting.unsent,
            )
            for choice in ways:
                if lane.troubles + choice.trouble > self.limits.troubles:
                    continue
                node = choice.node
                if choice.answer.took:
                    node = node._replace(seen=None)
                after = lane._replace(troubles=lane.troubles + choice.trouble)
                if act_of(activity) in RANK and not choice.answer.failure:
                    node = node._replace(emptied="", seen=None)
                found.append(
                    self._feed(
                        choice.words, after, choice.answer, node, asks_budget=choice.asks_budget, best=first
                    )
                )
                first = False
        return found

    def _times(self, lane: Lane) -> list[Move]:
        waiting = self.machine.states[lane.run].waiting
        if not (waiting.timers or waiting.activities or waiting.signals):
            return [Move("waits", self.number(lane), "rule 6: the incident waits, and nothing will wake it")]
        if not waiting.timers:
            return []
        seq = min(waiting.timers, key=lambda each: (waiting.timers[each], each))
        move = self._feed("time passes", lane, Fire(seq), lane.node._replace(seen=None), passes=True)
        return [move]

    def _people(self, lane: Lane) -> list[Move]:
        abort = Message("abort", json.dumps(PERSON), update=True)
        found = [self._feed("a person says abort", lane, abort, lane.node)]
        if found[0] is not None:
            found[0] = replace(found[0], forced=not self.machine.states[lane.run].asks)
        if lane.words >= self.limits.words:
            return [move for move in found if move is not None]
        after = lane._replace(words=lane.words + 1)
        asked = WORDS if self.machine.states[lane.run].asks else {}
        for words, said in (asked | UNASKED).items():
            node = lane.node
            if words == "retry":
                node = node._replace(owed=0)  # whoever says it has mended what a repair was owed for
            elif words == "return_anyway":
                node = node._replace(vouched=True)
            message = Message(words.split()[0], json.dumps(said), update=True)
            found.append(self._feed(f"a person says {words}", after, message, node))
        if lane.node.blocked:
            free = lane.node._replace(blocked=False)
            given = self.number(after._replace(node=free))
            found.append(Move("a person runs kubectl uncordon", given, forced=True))
        cancelled = self._feed("a person cancels the workflow", after, Cancel(), lane.node)
        if cancelled is not None:
            found.append(replace(cancelled, forced=True))
        return [move for move in found if move is not None]

    def _mishaps(self, lane: Lane) -> list[Move]:
        """Faults that join, and what others do to the node."""
        node, found = lane.node, []
        if lane.faults < self.limits.faults:
            after = lane._replace(faults=lane.faults + 1)
            codes = ("95", "119", "79", "13")
            found += [self._fault(code, after, node, tolerated=False) for code in codes]
            found.append(self._fault(CONDITION, after, node, tolerated=True))
        if node.flaps:
            argument = json.dumps({"type": CONDITION, "uid": node.identity()["uid"], "at": NOW})
            clear = node._replace(flaps=False)
            found.append(
                self._feed("the condition is good again", lane, Message("condition_cleared", argument), clear)
            )
        if lane.troubles < self.limits.troubles and node.present:
            after = lane._replace(troubles=lane.troubles + 1)
            booted = node.rebooted()._replace(seen=node.seen, owed=0)
            again = node._replace(registered=node.registered + 1, blocked=False)
            away = node._replace(present=False, blocked=False)
            found += [
                Move("somebody reboots the node", self.number(after._replace(node=booted)), forced=True),
                Move("the node registers again", self.number(after._replace(node=again)), forced=True),
                Move("the machine goes away", self.number(after._replace(node=away)), forced=True),
            ]
        return found

    def _fault(self, code: str, lane: Lane, node: Node, *, tolerated: bool) -> Move | None:
        rank = LADDERS.get(LADDER_OF[code], 0)
        report = _report(code, node, f"joined-{lane.faults}", tolerated=tolerated)
        if tolerated:
            node = node._replace(flaps=True)
        elif rank:
            node = node._replace(sick=True, valid=False, measured=False, owed=max(node.owed, rank))
        message = Message("report_fault", json.dumps(report), update=True)
        return self._feed(
            f"a fault joins that calls for {LADDER_OF[code]}" + (", tolerated" if tolerated else ""),
            lane,
            message,
            node,
        )

    def _feed(
        self,
        words: str,
        lane: Lane,
        what: Any,
        node: Node,
        *,
        asks_budget: str = "",
        passes: bool = False,
        best: bool = False,
    ) -> Move | None:
        state = self.machine.states[lane.run]
        try:
            change = self.machine.feed(lane.run, what)
        except StuckError as error:
            return Move(words, self.number(lane), f"a workflow task fails for ever: {error}")
        if change.refused:
            return None
        wrong, begins, node = self._witness(state.data, change, node)
        after = self.machine.states[change.state]
        lane = lane._replace(run=change.state)
        halfway = isinstance(what, Answer) and state.waiting.activities[what.seq].name in PREPARING
        began = [
            activity
            for seq, activity in after.waiting.activities.items()
            if (change.before is not None or seq not in state.waiting.activities)
            and seq not in after.waiting.unsent
        ]
        for activity in began:
            if (rung := act_of(activity)) and not wrong:
                known = node._replace(stopped=node.stopped and not halfway)
                wrong, begins = check_act(activity, rung, known), rung
            if activity.name == "unblock_node" and not wrong:
                wrong = check_unblock(node)
            if begins:
                node = node._replace(disrupted=True)
        if passes and not change.showed and not wrong:
            wrong = "rule 6: a wait ends, and nothing follows from it"
        if after.waiting.ended is not None:
            outcome = _outcome(after.waiting.ended, what)
            wrong = wrong or check_end(outcome, node)
            if not node.blocked:
                node = node._replace(disrupted=False)
            lane = Lane(-1, Node(node.name, blocked=node.blocked, disrupted=node.disrupted), outcome=outcome)
            return Move(words, self.number(lane), wrong, "", asks_budget, passes, best)
        return Move(words, self.number(lane._replace(node=node)), wrong, begins, asks_budget, passes, best)

    def _witness(self, data: dict[str, Any], change: Change, node: Node) -> tuple[str, str, Node]:
        """What the acts on record say, once a step is over."""
        if change.before is None:
            return "", "", node
        had = data["incident"]["acts"] if "incident" in data else []
        has = change.before["incident"]["acts"]
        wrong = check_record(had, has, node)
        for act in has[len(had) :]:
            rank = RANK.get(act["rung"], 0)
            if rank and act["proven"] and node.owed <= rank:
                node = node._replace(owed=0)
            if rank:
                node = node._replace(valid=False, measured=False)
        return wrong, "", node._replace(proofs=frozenset())


def _outcome(ended: str, what: Any) -> str:
    kind, _, result = ended.partition(" ")
    if kind == "completed":
        return str(json.loads(result)["outcome"])
    return "cancelled" if kind == "cancelled" else "failed"


def _report(code: str, node: Node, fingerprint: str, *, tolerated: bool) -> dict[str, Any]:
    seen = fault(code, at=T0, fingerprint=fingerprint)
    if tolerated:
        seen = seen.model_copy(
            update={
                "source": FaultSource.CONDITION,
                "entity": Entity(),
                "status": "True",
                "good_status": "False",
            }
        )
    made = plan_of(LADDER_OF[code], node)
    if tolerated:
        made["treatment"]["toleration"] = "PT10M"
    return {"fault": seen.model_dump(mode="json") | {"first_seen": NOW, "last_seen": NOW}, "plan": made}


def _forget(data: dict[str, Any]) -> None:
    """Take out of an incident what only people read."""
    incident = data["incident"]
    incident["notes"] = []
    for act in incident["acts"]:
        act["proof"] = act["evidence"] = ""
