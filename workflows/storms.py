"""When to stop believing the alarms: the state of the guard of a fleet, and its rules. Pure.

Whatever arrives, the state stays small: of everything that is kept, so much at most.
"""

from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel

from gpu_runbooks.activities.model.fleet import (
    AlertsTruncated,
    Brake,
    CaughtUp,
    FaultSeen,
    Halt,
    PoolUnhealthy,
    StormRule,
)
from gpu_runbooks.activities.model.packing import pack, unpack
from gpu_runbooks.workflows import common_cause
from gpu_runbooks.workflows.heard import Heard
from gpu_runbooks.workflows.storm import Sighting, Storm

MOST_SEEN = 300
"""Sightings that are kept. The signature with the fewest of them makes room."""

MADE_ROOM = 50
"""How many are forgotten at once: a flood is not to cost a sort each time."""

MOST_NODES = 200
"""Nodes of one signature that are waited for at most, whatever a rule says."""

LONGEST_WINDOW = timedelta(hours=24)
MOST_HIDDEN = 1_000_000
MOST_DELIVERIES = 100

DELIVERY_LASTS = timedelta(hours=25)
"""How long it is known what a delivery lacked: Alertmanager repeats what stands within a day."""

MOST_POOLS = 300
MOST_STORMS = 12
"""Storms at once. One more is recorded together with all that follow it."""

FURTHER = "further signatures"
KEPT_PAST = MOST_STORMS
KEPT_NOTES = 10

TRUSTED = timedelta(hours=1)
"""How long a person's word holds that the unhealthy nodes of a pool are no storm."""

LONGEST_WHY = 500


class Fleet(BaseModel):
    """What the guard knows: faults of the last minutes, storms, halts, and the budgets to tell."""

    cluster: str
    seen: dict[str, list[Sighting]] = {}
    """By signature, the last one told at the end."""
    deliveries: dict[str, int] = {}
    """Alerts that were cut off each delivery, by its digest: what is sent again counts once."""
    delivered: dict[str, datetime] = {}
    """When each of them came last."""
    storms: list[Storm] = []
    past: list[Storm] = []
    """The last ones that are over."""
    halts: list[Halt] = []
    budgets: list[str] = []
    trusted: dict[str, datetime] = {}
    """Pools that a person knows better about, until when."""
    begun: int = 0
    notes: list[str] = []
    """What people ordered, the last ones. All of it is in the history."""

    def see(self, fault: FaultSeen, rule: StormRule, now: datetime) -> None:
        """Count a node with a signature."""
        self._take(
            Sighting(
                node=fault.node[:253],
                pool=fault.pool[:63],
                signature=_short(fault.signature),
                traits={key[:40]: value[:100] for key, value in [*fault.traits.items()][:10]},
                at=now,
                until=now + min(rule.within, LONGEST_WINDOW),
            ),
            rule,
        )

    def see_truncated(self, alerts: AlertsTruncated, now: datetime) -> None:
        """Count the alerts that a delivery lacks as so many nodes. Of the same delivery only what is new."""
        delivery, count = alerts.delivery[:64], min(alerts.count, MOST_HIDDEN)
        before = self.deliveries.pop(delivery, 0)
        if self.delivered.pop(delivery, now) <= now - DELIVERY_LASTS:
            before = 0
        self.deliveries = dict([*self.deliveries.items(), (delivery, max(before, count))][-MOST_DELIVERIES:])
        self.delivered = dict([*self.delivered.items(), (delivery, now)][-MOST_DELIVERIES:])
        if count <= before:
            return
        self._take(
            Sighting(
                signature=_short(alerts.signature),
                hidden=count - before,
                at=now,
                until=now + min(alerts.rule.within, LONGEST_WINDOW),
            ),
            alerts.rule,
        )

    def see_pool(self, pool: PoolUnhealthy, now: datetime) -> None:
        """Brake a pool of which more is unhealthy than policy allows."""
        rule, name = pool.rule, pool.pool[:63]
        over = pool.unhealthy * 100 > rule.unhealthy_percent * pool.nodes
        if not over or pool.unhealthy < rule.unhealthy_nodes or self._trusts(name, now):
            return
        if any(storm.mode == "stop" and not storm.pool for storm in self.storms):
            return  # nothing is disrupted anyway, and whoever was paged needs no second page
        storm = self._storm("", name) or self._begin("", rule, now, name)
        storm.stop()
        storm.add(Sighting(pool=name, signature="", at=now, until=now))
        if storm.pool:
            storm.nodes, storm.of = max(storm.nodes, pool.unhealthy), pool.nodes

    def open_budget(self, pool: str, now: datetime) -> None:
        """Know a budget from now on, or hear that it still runs."""
        if pool not in self.budgets:
            self.budgets = [*self.budgets, pool][-MOST_POOLS:]
        for storm in self.storms:
            if storm.mode == "pace" and pool in self._behind(storm):
                storm.heard = now

    def close_budget(self, pool: str) -> None:
        """Forget a budget that does not run any more: nobody waits there."""
        self.budgets = [known for known in self.budgets if known != pool]

    def catch_up(self, word: CaughtUp) -> None:
        """Nobody waits in this pool any more. A word about a storm that does not pace now is stale."""
        if not any(storm.id == word.storm and storm.mode == "pace" for storm in self.storms):
            return
        for storm in self.storms:
            if storm.mode == "pace" and word.pool not in storm.caught_up:
                storm.caught_up = [*storm.caught_up, word.pool][-MOST_POOLS:]

    def halt(self, halt: Halt) -> None:
        """Let nothing be disrupted anywhere until its end."""
        self.halts = [*self.halts, halt]

    def resume(self) -> None:
        """End all halts."""
        self.halts = []

    def end_storm(self, storm: Storm, how: str, now: datetime) -> None:
        """End a storm because a person knows better."""
        if storm.pool:
            self.trusted = {**self.trusted, storm.pool: now + TRUSTED}
        self._end(storm, how, now)

    def note(self, now: datetime, text: str) -> None:
        """Record a line for the auditor."""
        self.notes = [*self.notes, f"{now:%Y-%m-%d %H:%M:%S} UTC: {text}"][-KEPT_NOTES:]

    def sign(self, heard: Heard, identity: str) -> None:
        """Put on record who ordered this."""
        self.notes = heard.signed_notes(self.notes, identity)
        self.halts = [halt.signed(heard.operator, heard.at, identity) for halt in self.halts]

    def pass_time(self, now: datetime) -> None:
        """Do what is due: end halts, pace storms that were quiet, end those that all caught up with."""
        fresh = {key: [each for each in seen if each.until > now] for key, seen in self.seen.items()}
        self.seen = {key: seen for key, seen in fresh.items() if seen}
        self.trusted = {pool: until for pool, until in self.trusted.items() if until > now}
        halted, self.halts = self.halts, [halt for halt in self.halts if halt.until > now]
        for storm in [*self.storms]:
            self._explain(storm)
            if storm.mode == "stop" and storm.quiet_at() <= now:
                storm.pace(now)
            if storm.mode != "pace":
                continue
            if halted:
                storm.pace(now)  # nobody could catch up
            elif not (behind := self._behind(storm)):
                self._end(storm, "it was quiet, and nobody waits any more", now)
            elif storm.patience_ends() <= now:
                late = ", ".join(behind[:5])
                self._end(storm, f"it was quiet; {late} did not say in time that nobody waits", now)

    def due(self) -> datetime | None:
        """When time alone changes something next."""
        storms = (
            storm.quiet_at() if storm.mode == "stop" else storm.patience_ends() for storm in self.storms
        )
        return min([*storms, *(halt.until for halt in self.halts)], default=None)

    def brake(self, pool: str) -> Brake:
        """What grants of a pool have to mind: the strictest of all halts and storms."""
        about = [storm for storm in self.storms if storm.brakes(pool)]
        stopping = [storm for storm in about if storm.mode == "stop"]
        if self.halts or stopping:
            words = [*map(_halted, self.halts), *map(_braked, stopping)]
            storm = "" if self.halts else stopping[0].id
            return Brake(mode="stop", why="; ".join(words)[:LONGEST_WHY], storm=storm)
        trusted = self.trusted.get(pool)
        if not about:
            return Brake(trusted_until=trusted)
        words = [f"after {_braked(storm)}: one node at a time" for storm in about]
        every = max(storm.rule.pace for storm in about)
        return Brake(
            mode="pace",
            why="; ".join(words)[:LONGEST_WHY],
            storm=about[0].id,
            every=every,
            trusted_until=trusted,
        )

    def open_storm(self, storm_id: str) -> Storm | None:
        """The storm of this id, while it is not over."""
        return next((storm for storm in self.storms if storm.id == storm_id), None)

    def _take(self, seen: Sighting, rule: StormRule) -> None:
        storm = self._storm(seen.signature)
        if storm is not None and (storm.mode == "stop" or storm.knows(seen.node)):
            # A node that was taken up again and has the same again shows that the cause is still there.
            storm.stop()
            storm.rule = rule
            storm.add(seen)
            return
        alike = [
            known
            for known in self.seen.pop(seen.signature, [])
            if known.until > seen.at and (not seen.node or known.node != seen.node)
        ]
        alike.append(seen)
        if sum(each.hidden or 1 for each in alike) < min(rule.nodes, MOST_NODES):
            self._make_room(len(alike))
            self.seen[seen.signature] = alike
            return
        storm = storm or self._widened(alike) or self._begin(seen.signature, rule, seen.at)
        storm.stop()
        for each in alike:
            storm.add(each)

    def _make_room(self, sightings: int) -> None:
        """Forget the signatures of the fewest nodes, of those the one that was told the longest ago."""
        total = sightings + sum(map(len, self.seen.values()))
        if total <= MOST_SEEN:
            return
        for key in sorted(self.seen, key=lambda key: len(self.seen[key])):
            total -= len(self.seen.pop(key))
            if total <= MOST_SEEN - MADE_ROOM:
                return

    def _begin(self, signature: str, rule: StormRule, now: datetime, pool: str = "") -> Storm:
        """A new storm, or the one of all those that have no place of their own."""
        if len(self.storms) >= MOST_STORMS - 1:
            signature, pool = FURTHER, ""
            if further := self._storm(FURTHER):
                return further
        self.begun += 1
        storm = Storm(
            id=f"{now:%Y%m%d-%H%M%S}-{self.begun}",
            signature=signature,
            pool=pool,
            rule=rule,
            began=now,
            first=now,
            latest=now,
        )
        self.storms = [*self.storms, storm]
        return storm

    def _widened(self, alike: list[Sighting]) -> Storm | None:
        """The storm of a pool in which these are, now one of their signature: it is the same storm."""
        pools = {seen.pool for seen in alike if seen.pool}
        storm = next((storm for storm in self.storms if storm.pool in pools), None)
        if storm is not None:
            storm.widen(alike[-1].signature)
        return storm

    def _end(self, storm: Storm, how: str, now: datetime) -> None:
        storm.ended, storm.how, storm.known = now, how, []
        self.storms = [known for known in self.storms if known is not storm]
        self.past = [*self.past, storm][-KEPT_PAST:]

    def _explain(self, storm: Storm) -> None:
        """Seek the common cause again where the storm has grown."""
        if storm.pool or (storm.cause and storm.explained == storm.nodes):
            return
        others = [
            each.traits
            for key, seen in self.seen.items()
            for each in seen
            if key != storm.signature and each.node
        ]
        storm.cause = common_cause.suspected(storm.traits, storm.nodes, others)
        storm.explained = storm.nodes

    def _behind(self, storm: Storm) -> list[str]:
        """Pools that did not catch up yet."""
        return [pool for pool in self.budgets if storm.brakes(pool) and pool not in storm.caught_up]

    def _storm(self, signature: str, pool: str = "") -> Storm | None:
        same = (storm for storm in self.storms if (storm.signature, storm.pool) == (signature, pool))
        return next(same, None)

    def _trusts(self, pool: str, now: datetime) -> bool:
        until = self.trusted.get(pool)
        return until is not None and until > now


def packed(fleet: Fleet) -> dict[str, str]:
    """The state for the next run, small enough for a payload also in the worst hour of a fleet."""
    return {"cluster": fleet.cluster, "packed": pack(fleet.model_dump_json(exclude_defaults=True))}


def unpacked(raw: Any) -> Fleet:
    """The state that a run begins with: of the run before, or none. Raises `ValueError`."""
    start = _Start.model_validate(raw)
    if not start.packed:
        return Fleet(cluster=start.cluster)
    return Fleet.model_validate_json(unpack(start.packed))


class _Start(BaseModel):
    cluster: str
    packed: str = ""


def _short(text: str) -> str:
    return text[:200]


def _halted(halt: Halt) -> str:
    return f"halt everywhere by {halt.operator} until {halt.until:%Y-%m-%d %H:%M} UTC: {halt.reason}"


def _braked(storm: Storm) -> str:
    about = f"pool {storm.pool}, too much of it unhealthy" if storm.pool else storm.signature
    return f"storm {storm.id} of {about}"
