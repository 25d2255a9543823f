"""The storm rule in every order of faults, words of people, silence and time, as `explore` takes it.

Driven is `Fleet`, the pure core of the guard. A witness keeps its own account of what was told, and of what
has to be braked for it. Of the guard it takes only which storms there are for a person to end.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from gpu_runbooks.activities.model.fleet import CaughtUp, FaultSeen, Halt, PoolUnhealthy, StormRule
from gpu_runbooks.workflows.storms import Fleet

NOW = datetime(2026, 1, 1, tzinfo=UTC)
"""It is always now: what is remembered grows older instead."""

RULE = StormRule(nodes=2, within=timedelta(minutes=10), cool_down=timedelta(minutes=15))
POOLS = {"a": "p", "b": "p", "c": "q"}
SIGNATURES = ("xid 79", "xid 48")
ILL = "too much ill of "
AWHILE = timedelta(minutes=7)
"""No part of any time of the rule, so that what is late by less shows."""

HALT = timedelta(minutes=30)

PATIENCE = timedelta(hours=1)
"""How long a paced pool may be silent, as docs/storms.md says."""

TRUSTED = timedelta(hours=1)
"""How long a person's word for a pool counts, as docs/storms.md says."""

Ages = tuple[tuple[str, str, int], ...]
"""What, about whom, and how many seconds ago."""


class Limits(NamedTuple):
    """How often each may happen."""

    faults: int = 4
    ill: int = 1
    words: int = 1
    waits: int = 2


class State(NamedTuple):
    fleet: str
    left: Limits
    seen: Ages = ()
    """Signature and node of what was told and began no storm yet."""
    braking: Ages = ()
    """`all` or a pool, and the reason for which nothing may be granted, since its last sign."""
    slowly: Ages = ()
    """A pool, and the reason that is over but for those who wait."""
    members: Ages = ()
    """Signature and node of what is braked for, or was until those who wait are through."""
    trusted: Ages = ()
    halted: int = -1
    """Seconds since a halt was ordered; -1 without one."""
    met: bool = False
    """Something was braked before."""


class Step(NamedTuple):
    words: str
    state: State
    wrong: str = ""
    best: bool = False
    forced: bool = False


class Guards:
    """Successors of the states of a guard."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def begin(self) -> State:
        """A calm fleet of two pools, whose budgets are known."""
        fleet = Fleet(cluster="test")
        for pool in ("p", "q"):
            fleet.open_budget(pool, NOW)
        return State(_frozen(fleet), self._limits)

    def ended(self, state: State) -> bool:
        """Whether nothing is left to happen, and nothing is braked after all that did."""
        fleet = _thawed(state.fleet)
        calm = not fleet.storms and not fleet.halts
        return calm and (state.met or not state.left.words) and not (state.left.faults or state.left.ill)

    def steps(self, state: State) -> Iterator[Step]:
        """All that may happen next."""
        left = state.left
        if left.faults:
            for node in POOLS:
                for signature in SIGNATURES:
                    yield self._fault(state._replace(left=_less(left, "faults")), node, signature)
        if left.ill:
            for pool in ("p", "q"):
                yield self._ill(state._replace(left=_less(left, "ill")), pool, 4)
            yield self._ill(state._replace(left=_less(left, "ill")), "p", 3)
        if left.words:
            yield from self._words(state._replace(left=_less(left, "words")))
        due = _thawed(state.fleet).due()
        if due is not None:
            yield self._time(
                state, max(due - NOW, timedelta(seconds=1)), "time passes to what is due", best=True
            )
        if left.waits:
            yield self._time(state._replace(left=_less(left, "waits")), AWHILE, "7 minutes pass")
        yield from self._catch_up(state)

    def _fault(self, state: State, node: str, signature: str) -> Step:
        fleet = _thawed(state.fleet)
        fleet.see(FaultSeen(node=node, pool=POOLS[node], signature=signature), RULE, NOW)
        again = any(each[:2] == (signature, node) for each in state.members)
        braking = again or any(why == signature for _, why, _ in state.braking)
        seen = _with(state.seen, (signature, node))
        alike = [each for each in seen if each[0] == signature]
        if braking or len(alike) >= RULE.nodes:
            members = state.members
            for each in alike:
                members = _with(members, each[:2])
            state = state._replace(
                members=members,
                seen=tuple(each for each in state.seen if each[0] != signature),
                braking=_with(state.braking, ("all", signature)),
                slowly=tuple(each for each in state.slowly if each[1] != signature),
            )
        else:
            state = state._replace(seen=seen)
        return _step(f"{node} shows {signature}", state, fleet)

    def _ill(self, state: State, pool: str, ill: int) -> Step:
        fleet = _thawed(state.fleet)
        fleet.see_pool(PoolUnhealthy(pool=pool, unhealthy=ill, nodes=10, rule=RULE), NOW)
        everywhere = any(where == "all" for where, _, _ in state.braking)
        too_many = ill * 10 > RULE.unhealthy_percent
        if too_many and not everywhere and not any(each[0] == pool for each in state.trusted):
            state = state._replace(
                braking=_with(state.braking, (pool, ILL + pool)),
                slowly=tuple(each for each in state.slowly if each[1] != ILL + pool),
            )
        return _step(f"{ill} of 10 nodes of pool {pool} are ill", state, fleet)

    def _words(self, state: State) -> Iterator[Step]:
        fleet = _thawed(state.fleet)
        fleet.halt(Halt(operator="ana", reason="", since=NOW, until=NOW + HALT))
        yield _step("a person halts all", state._replace(halted=0), fleet)
        if state.halted >= 0:
            fleet = _thawed(state.fleet)
            fleet.resume()
            yield _step("a person resumes", state._replace(halted=-1), fleet)
        for number in range(len(_thawed(state.fleet).storms)):
            fleet = _thawed(state.fleet)
            storm = fleet.storms[number]
            fleet.end_storm(storm, "by a person", NOW)
            about = {ILL + storm.pool} if storm.pool else {storm.signature}
            # where the storm of a pool has become one of a signature, both reasons went into it
            about |= {ILL + pool for pool in ("p", "q")} - {ILL + each.pool for each in fleet.storms}
            after = state._replace(
                braking=tuple(each for each in state.braking if each[1] not in about),
                slowly=tuple(each for each in state.slowly if each[1] not in about),
                trusted=_with(state.trusted, (storm.pool, "")) if storm.pool else state.trusted,
            )
            yield _step(f"a person ends the storm of {storm.signature or storm.pool}", after, fleet)

    def _catch_up(self, state: State) -> Iterator[Step]:
        pacing = [storm for storm in _thawed(state.fleet).storms if storm.mode == "pace"]
        if not pacing:
            return
        for pool in ("p", "q"):
            fleet = _thawed(state.fleet)
            fleet.catch_up(CaughtUp(pool=pool, storm=pacing[0].id))
            rest = tuple(each for each in state.slowly if each[0] != pool)
            yield _step(
                f"nobody waits in pool {pool} any more", state._replace(slowly=rest), fleet, best=True
            )
        fleet = _thawed(state.fleet)
        fleet.catch_up(CaughtUp(pool="p", storm="an earlier one"))
        yield _step("pool p says that nobody waited after an earlier storm", state, fleet)

    def _time(self, state: State, passed: timedelta, words: str, *, best: bool = False) -> Step:
        seconds = int(passed.total_seconds())
        fleet = _thawed(state.fleet, older=seconds)
        fleet.pass_time(NOW)
        braking = _older(state.braking, seconds)
        over = [each for each in braking if each[2] >= RULE.cool_down.total_seconds()]
        waits = [(pool, why) for where, why, _ in over for pool in ("p", "q") if where in {"all", pool}]
        slowly = _younger_than(_older(state.slowly, seconds), PATIENCE)
        for one in waits:
            slowly = _with(slowly, one)
        halted = state.halted + seconds if state.halted >= 0 else -1
        ends = halted >= 0 and halted >= HALT.total_seconds()
        state = state._replace(
            seen=_younger_than(_older(state.seen, seconds), RULE.within),
            braking=tuple(each for each in braking if each not in over),
            slowly=slowly,
            trusted=_younger_than(_older(state.trusted, seconds), TRUSTED),
            halted=-1 if ends else halted,
        )
        return _step(words, state, fleet, best=best)


def _step(words: str, state: State, fleet: Fleet, *, best: bool = False) -> Step:
    fleet.pass_time(NOW)
    reasons = {why for _, why, _ in [*state.braking, *state.slowly]}
    state = state._replace(members=tuple(each for each in state.members if each[0] in reasons))
    met = state.met or bool(fleet.storms or fleet.halts)
    state = state._replace(fleet=_frozen(fleet), met=met)
    return Step(words, state, _wrong(state, fleet), best)


def _wrong(state: State, fleet: Fleet) -> str:
    """What rule 10 says against the brakes as they are."""
    for pool in ("p", "q"):
        brake, about = fleet.brake(pool), {"all", pool}
        mode = brake.mode
        called = state.halted >= 0 or any(each[0] in about for each in state.braking)
        if mode == "stop" and not called:
            return f"pool {pool} is stopped, and nothing calls for it"
        if mode == "pace" and brake.every != RULE.pace:
            return f"rule 10: pool {pool} is paced by {brake.every}, and the rule says {RULE.pace}"
        if state.halted >= 0 and mode != "stop":
            return f"rule 10: a halt stands, and pool {pool} is not stopped"
        for where, why, ago in state.braking:
            if where in {"all", pool} and mode != "stop":
                return f"rule 10: {why} was told {ago} s ago, a storm, and pool {pool} is not stopped"
        for where, why, _ in state.slowly:
            if where == pool and mode == "off":
                return f"rule 10: after {why}, pool {pool} grants all at once though some wait"
    return ""


def _with(ages: Ages, what: tuple[str, str]) -> Ages:
    return tuple(sorted([each for each in ages if each[:2] != what] + [(*what, 0)]))


def _older(ages: Ages, seconds: int) -> Ages:
    return tuple((what, who, age + seconds) for what, who, age in ages)


def _younger_than(ages: Ages, limit: timedelta) -> Ages:
    return tuple(each for each in ages if each[2] < limit.total_seconds())


def _less(left: Limits, what: str) -> Limits:
    return left._replace(**{what: getattr(left, what) - 1})


def _frozen(fleet: Fleet) -> str:
    """The state as text, alike for states that differ in nothing but names, records and what is long past."""
    for number, storm in enumerate(fleet.storms, 1):
        storm.id, storm.began, storm.first, storm.cause, storm.explained = f"s{number}", NOW, NOW, "", 0
        storm.again = 0
    small = fleet.model_copy(update={"past": [], "notes": [], "begun": 0})
    return json.dumps(
        small.model_dump(mode="python", exclude_defaults=True), default=_seconds, sort_keys=True
    )


def _seconds(value: Any) -> Any:
    if isinstance(value, datetime):
        return {"ago": int((NOW - value).total_seconds())}
    if isinstance(value, timedelta):
        return {"lasts": value.total_seconds()}
    raise TypeError(type(value).__name__)


def _thawed(text: str, *, older: int = 0) -> Fleet:
    def read(value: Mapping[str, Any]) -> Any:
        if set(value) == {"ago"}:
            return NOW - timedelta(seconds=value["ago"] + older)
        return timedelta(seconds=value["lasts"]) if set(value) == {"lasts"} else value

    return Fleet.model_validate(json.loads(text, object_hook=read))
