"""Who may disrupt a node of a pool: the state of a disruption budget. Pure.

A slot is given in two looks at the cluster: `grant` chooses by the first one and holds the slots at once, so
that nobody else can be given them; `confirm` checks them by the second one, and puts back who does not fit
any more. Only confirmed holders are told.
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ValidationError

from gpu_runbooks.activities.model.fleet import Brake, BudgetOpened, CaughtUp, Halt, Ordered, PoolUnhealthy
from gpu_runbooks.activities.model.packing import pack, unpack, written_names
from gpu_runbooks.activities.model.slot import ObservePool, PoolBudget, PoolRules, PoolSeen, SlotRequest
from gpu_runbooks.workflows.heard import Heard
from gpu_runbooks.workflows.pool_use import Missing, busy_nodes, count_missing, in_words, unhealthy_nodes
from gpu_runbooks.workflows.slot_pace import Pace

LONGEST_ID = 1000
"""Bytes of a workflow id that Temporal takes."""

REPLACED_WITHIN = timedelta(hours=1)
"""How long a node that went away counts as one that is to come again. A group that launches at all does so
within minutes; after an hour the pool is smaller on purpose, or a person has been told by other means."""

MOST_KEPT = 15 * 1024
"""Bytes of the state for the next run, packed: some 300 holders and waiters."""

MOST_ASKED = 12 * 1024
"""Bytes of the nodes in one question, packed: a payload holds 16 KiB."""

TOLD_AGAIN = timedelta(hours=1)
"""A pool that stays unhealthy is told to the guard again: it may have been started anew."""

ANNOUNCED_AGAIN = timedelta(minutes=10)
"""So often a budget in use tells the guard that it is there, and hears what brake stands: the guard may have
been started anew."""

KEPT_NOTES = 10

LONGEST_WHY = 500
"""Characters of what holders are told."""


class Limit(Ordered):
    """A person's limit in place of the policy's, for a time."""

    budget: PoolBudget


class Holder(SlotRequest):
    """An incident with a slot."""

    confirmed: bool = False
    """The cluster was looked at again after the slot was held."""
    nodes: int = 0
    """Of the pool when it got the slot; 0 where nobody knows."""
    told: str | None = None
    """The last thing that it was told: empty for the grant, else why it is stopped. None: nothing yet."""


def read_request(raw: Any) -> SlotRequest | None:
    """A slot request from a signal; None for what is none.

    Signals cannot be refused and stay in the history: one that raises would stop its workflow for ever.
    """
    try:
        request = SlotRequest.model_validate(raw)
    except ValidationError:
        return None
    parts = request.incident.split("/")
    right = len(parts) == 3 and parts[0] == "node" and all(parts) and len(request.incident) <= LONGEST_ID
    return request if right and request.run_id else None


class Slots(BaseModel):
    """Holders and waiters of one pool, in order. All operations are idempotent."""

    cluster: str
    pool: str
    rules: PoolRules | None = None
    """By the policy of the youngest incident; unknown for a budget that nobody asked yet."""
    ruled: datetime | None = None
    """When the incident began whose policy counts."""
    complete: bool = False
    """The holders are known. False for a budget that begins: another one may have given slots before it."""
    holders: list[Holder] = []
    waiters: list[SlotRequest] = []
    missing: list[Missing] = []
    """Nodes whose incident gave its slot back, and that may be gone without a successor."""
    halts: list[Halt] = []
    """What people ordered for this pool alone; each ends by itself."""
    brake: Brake = Brake()
    heard: bool = False
    """The guard has said whether there is a brake. A budget that begins may know nothing of a storm yet."""
    pace: Pace = Pace()
    override: Limit | None = None
    nodes: int | None = None
    """Of the pool, by the last look."""
    used: int = 0
    """Nodes that counted as unavailable at the last look."""
    unhealthy: PoolUnhealthy | None = None
    """More of the pool was unhealthy at the last look than policy allows."""
    unhealthy_told: datetime | None = None
    announced: datetime | None = None
    """When the guard was last told that this budget wants to hear of brakes."""
    why: str = ""
    """Why nobody who waits was given a slot at the last look."""
    notes: list[str] = []
    """What people ordered and what expired, the latest last."""

    def request(self, request: SlotRequest) -> None:
        """Queue a request. One of a waiter keeps its place; a holder that asks again is told again.

        The intake that opened an incident tells a slightly other time of its beginning than the incident.
        """
        self._follow(request)
        request = request.model_copy(update={"rules": None})
        if self.holds(request):
            self.holders = [
                each.model_copy(update={"told": None, "turn": request.turn}) if _same(each, request) else each
                for each in self.holders
            ]
        elif any(_same(each, request) for each in self.waiters):
            self.waiters = [
                request.model_copy(update={"since": each.since}) if _same(each, request) else each
                for each in self.waiters
            ]
        else:
            self.waiters.append(request)

    def _follow(self, request: SlotRequest) -> None:
        """Go by the policy that came with a new request, not by an older one that is only said again."""
        known = self.holds(request) or any(_same(each, request) for each in self.waiters)
        younger = self.ruled is None or (request.since is not None and request.since >= self.ruled)
        if request.rules is not None and (self.rules is None or (younger and not known)):
            self.rules, self.ruled = request.rules, request.since

    def take_over(self, holders: Iterable[SlotRequest]) -> None:
        """Begin with the slots that an earlier budget gave away. Those who wait for the answer are told."""
        asked = [waiter for waiter in self.waiters if any(_same(waiter, each) for each in holders)]
        known = [each for each in holders if not self.holds(each)]
        self.holders += [
            Holder(
                **as_request(each).model_dump(),
                confirmed=True,
                told=None if any(_same(each, waiter) for waiter in asked) else "",
            )
            for each in known
        ]
        self.waiters = [waiter for waiter in self.waiters if waiter not in asked]
        self.complete = True

    def give_up(self, request: SlotRequest, now: datetime) -> None:
        """Return a slot, or withdraw a request. Unknown ones are gone already."""
        for holder in self.holders:
            if _same(request, holder) and holder.confirmed:
                self.missing = [each for each in self.missing if each.node != holder.node]
                self.missing.append(
                    Missing(node=holder.node, nodes=holder.nodes, until=now + REPLACED_WITHIN)
                )
                self.pace = self.pace.came_back(holder, now)
        self.holders = [holder for holder in self.holders if not _same(request, holder)]
        self.waiters = [waiter for waiter in self.waiters if not _same(request, waiter)]

    def look(self) -> ObservePool | None:
        """What to ask the cluster; None for a pool of which nobody knows the selector yet."""
        if self.rules is None:
            return None
        names = [each.node for each in self.holders] + [each.node for each in self.missing]
        names += [each.node for each in self.in_turn()]
        asked = _fitting([*dict.fromkeys(names)])
        self.missing = [each.model_copy(update={"looked_for": each.node in asked}) for each in self.missing]
        return ObservePool(pool=self.pool, selector=self.rules.selector, asked=asked)

    def grant(self, seen: PoolSeen, now: datetime) -> list[Holder]:
        """Give free slots to waiters, the most severe first, then the oldest. They are not confirmed yet."""
        self._take_in(seen, now)
        granted, self.why = self._choose(seen, now, self.in_turn())
        self._move(granted)
        return granted

    def confirm(self, seen: PoolSeen, now: datetime) -> list[Holder]:
        """Check the slots that were just given by another look; who does not fit waits again, as before."""
        back = [holder for holder in self.holders if not holder.confirmed]
        self.put_back()
        self._take_in(seen, now)
        fit, why = self._choose(seen, now, back)
        self.why = why or self.why
        confirmed = [holder.model_copy(update={"confirmed": True, "nodes": seen.nodes}) for holder in fit]
        self._move(confirmed)
        self.used = self._used(seen)
        for holder in confirmed:
            self.pace = self.pace.gave(holder, now) if self.brake.mode == "pace" else self.pace
        return confirmed

    def put_back(self) -> None:
        """Whose slot could not be checked waits again, in front of those that came later."""
        back = [holder for holder in self.holders if not holder.confirmed]
        self.holders = [holder for holder in self.holders if holder.confirmed]
        self.waiters = [*(as_request(holder) for holder in back), *self.waiters]

    def limit(self, nodes: int) -> int:
        """Slots of a pool of so many nodes: by a person's word, or by policy."""
        budget = self._budget()
        return budget.limit(nodes) if budget else 0

    def holds(self, request: SlotRequest) -> bool:
        """Whether this incident has a slot."""
        return any(_same(request, holder) for holder in self.holders)

    def stopped(self, now: datetime) -> str:
        """Why nobody may disrupt anything now, those with a slot included; empty where they may."""
        if halts := [halt for halt in self.halts if now < halt.until]:
            words = [f"halted by {halt.operator} until {_time(halt.until)}: {halt.reason}" for halt in halts]
            return "; ".join(words)[:LONGEST_WHY]
        if self.brake.mode == "stop":
            return self.brake.why or "stopped by the guard of the fleet"
        return ""

    def untold(self, now: datetime) -> list[Holder]:
        """Holders that do not know yet how it is: that they have a slot, or why they are stopped."""
        why = self.stopped(now)
        return [holder for holder in self.holders if holder.confirmed and holder.told != why]

    def told(self, holder: SlotRequest, why: str) -> None:
        """A holder is being told this."""
        self.holders = [
            each.model_copy(update={"told": why}) if _same(each, holder) else each for each in self.holders
        ]

    def hear(self, brake: Brake) -> None:
        """What the guard says counts until it says something else. The same again changes nothing."""
        if (brake.mode, brake.storm) != (self.brake.mode, self.brake.storm):
            self.pace = Pace()
            self.unhealthy_told = None if brake.mode == "off" else self.unhealthy_told
        self.brake, self.heard = brake, True

    def expire(self, now: datetime) -> None:
        """End what people ordered for a time that is over, and give up on nodes that did not come again."""
        for halt in self.halts:
            if now >= halt.until:
                self.note(now, f"the halt of {halt.operator} is over")
        self.halts = [halt for halt in self.halts if now < halt.until]
        if self.override is not None and now >= self.override.until:
            self.note(now, f"the limit of {self.override.operator} is over")
            self.override = None
        self.missing = [each for each in self.missing if now < each.until]

    def for_guard(self, now: datetime) -> list[BudgetOpened | PoolUnhealthy | CaughtUp]:
        """What the guard is to be told now; each is said once."""
        words: list[BudgetOpened | PoolUnhealthy | CaughtUp] = []
        braked = self.brake.mode != "off"
        busy = braked or bool(self.holders or self.waiters)
        if self.announced is None or (busy and now >= self.announced + ANNOUNCED_AGAIN):
            self.announced = now
            words.append(BudgetOpened(pool=self.pool))
        if self.brake.mode == "pace" and not self.waiters and all(each.confirmed for each in self.holders):
            words.append(CaughtUp(pool=self.pool, storm=self.brake.storm))
            self.hear(Brake(trusted_until=self.brake.trusted_until))
        due = self.unhealthy_told is None or now >= self.unhealthy_told + TOLD_AGAIN
        if self.unhealthy is not None and not braked and due:
            self.unhealthy_told = now
            words.append(self.unhealthy)
        return words

    def has_news_for_guard(self, now: datetime) -> bool:
        """Whether the guard is to be told something."""
        return bool(self.model_copy().for_guard(now))

    def next_change(self, now: datetime) -> datetime | None:
        """When the clock alone changes what is right. What people ordered may be over already."""
        moments = []
        if self.brake.mode == "pace" and self.waiters and (due := self.pace.due(self.brake.every)):
            moments.append(due)
        if self.brake.mode != "off" and self.announced is not None:
            moments.append(self.announced + ANNOUNCED_AGAIN)
        orders = [each.until for each in (*self.halts, self.override) if each is not None]
        return min([moment for moment in moments if moment > now] + orders, default=None)

    def note(self, now: datetime, text: str) -> None:
        """Record a line for the auditor; the oldest are dropped, they stay in the history."""
        self.notes = [*self.notes, f"{_time(now)} {text}"][-KEPT_NOTES:]

    def sign(self, heard: Heard, identity: str) -> None:
        """Put on record who ordered this."""
        self.notes = heard.signed_notes(self.notes, identity)
        self.halts = [halt.signed(heard.operator, heard.at, identity) for halt in self.halts]
        if self.override is not None:
            self.override = self.override.signed(heard.operator, heard.at, identity)

    def in_turn(self) -> list[SlotRequest]:
        """Waiters in the order in which they are served. Those of an unknown age come last."""
        return sorted(
            self.waiters,
            key=lambda each: (
                -each.severity,
                each.since is None,
                each.since.timestamp() if each.since else 0,
            ),
        )

    def _budget(self) -> PoolBudget | None:
        if self.override is not None:
            return self.override.budget
        return self.rules.budget if self.rules is not None else None

    def _take_in(self, seen: PoolSeen, now: datetime) -> None:
        self.expire(now)
        self.nodes = seen.nodes
        self.holders = [
            each.model_copy(update={"nodes": seen.nodes + (each.node in seen.absent)})
            if each.confirmed and not each.nodes
            else each
            for each in self.holders
        ]
        self.missing = [each for each in self.missing if each.may_be_gone(seen)]
        self.used = self._used(seen)
        many = unhealthy_nodes(seen, [*self.holders, *self.waiters])
        rule = self.rules.storm if self.rules else None
        too_many = rule is not None and (
            many >= rule.unhealthy_nodes and many * 100 > rule.unhealthy_percent * seen.nodes
        )
        self.unhealthy = None
        if too_many and rule is not None:
            self.unhealthy = PoolUnhealthy(pool=self.pool, unhealthy=many, nodes=seen.nodes, rule=rule)
        else:
            self.unhealthy_told = None

    def _used(self, seen: PoolSeen) -> int:
        busy = busy_nodes(seen, self.holders, self.waiters)
        return len(busy) + seen.unlisted + count_missing(self.missing, seen)

    def _choose(
        self, seen: PoolSeen, now: datetime, among: Collection[SlotRequest]
    ) -> tuple[list[Holder], str]:
        """Those of the waiters that fit, in this order, and why the others do not."""
        limit = self.limit(seen.nodes)
        if why := self._why_none(seen, limit, now) if among else "":
            return [], why
        busy = busy_nodes(seen, self.holders, self.waiters)
        others = seen.unlisted + count_missing(self.missing, seen)
        most = self.pace.free(self.brake.every, now) if self.brake.mode == "pace" else len(among)
        chosen: list[Holder] = []
        for waiter in among:
            # The asker does not count: nothing more is disrupted where its node is unavailable already.
            if len(chosen) < most and len(busy - {waiter.node}) + others < limit:
                chosen.append(Holder(**as_request(waiter).model_dump()))
                busy.add(waiter.node)
        if len(chosen) == len(among):
            return chosen, ""
        if len(chosen) == most:
            return chosen, f"one at a time after the storm {self.brake.storm}: {self.pace.in_words()}"
        return chosen, in_words(seen, [*self.holders, *chosen], len(busy) + others, limit)

    def _why_none(self, seen: PoolSeen, limit: int, now: datetime) -> str:
        if stopped := self.stopped(now):
            return stopped
        trusted = self.brake.trusted_until is not None and now < self.brake.trusted_until
        if self.unhealthy is not None and self.brake.mode == "off" and not trusted:
            return (
                f"{self.unhealthy.unhealthy} of {seen.nodes} nodes are unhealthy, more than "
                f"{self.unhealthy.rule.unhealthy_percent} %: the guard of the fleet decides"
            )
        if limit < 1:
            percent = budget.percent if (budget := self._budget()) else 0
            return (
                f"{percent} % of {seen.nodes} nodes is less than one node, so that nobody gets a slot: give "
                "the pool a larger percent or a count, for a while by the update set_limit"
            )
        return ""

    def _move(self, granted: list[Holder]) -> None:
        self.holders += granted
        self.waiters = [each for each in self.waiters if not any(_same(each, one) for one in granted)]


def as_request(one: SlotRequest) -> SlotRequest:
    """What an incident asked for, without what the budget keeps of it."""
    return SlotRequest(**one.model_dump(include=set(SlotRequest.model_fields)))


def packed(slots: Slots) -> dict[str, str]:
    """The state for the next run, as one payload: all holders, and of the waiters the first ones.

    The others ask again within minutes, as all who wait do, and get their old place by their age.
    """
    waiters = slots.in_turn()
    while True:
        kept = slots.model_copy(update={"waiters": waiters})
        packed = pack(kept.model_dump_json(exclude_defaults=True))
        if len(packed) <= MOST_KEPT or not waiters:
            return {"cluster": slots.cluster, "pool": slots.pool, "packed": packed}
        waiters = waiters[: len(waiters) * MOST_KEPT // (len(packed) + MOST_KEPT // 50)]


def unpacked(raw: Any) -> Slots:
    """The state that a run begins with: of the run before, or none. Raises `ValueError`."""
    start = _Start.model_validate(raw)
    if not start.packed:
        return Slots(cluster=start.cluster, pool=start.pool)
    return Slots.model_validate_json(unpack(start.packed))


class _Start(BaseModel):
    cluster: str
    pool: str
    packed: str = ""


def _fitting(names: list[str]) -> tuple[str, ...]:
    """As many of the first names as one question holds, sorted."""
    while (size := len(str(written_names(asked := sorted(names))))) > MOST_ASKED:
        names = names[: len(names) * MOST_ASKED // size]
    return tuple(asked)


def _same(one: SlotRequest, other: SlotRequest) -> bool:
    return (one.incident, one.run_id) == (other.incident, other.run_id)


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
