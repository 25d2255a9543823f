"""Drain of a node: have its pods leave as policy says, by the Eviction API, and watch until they are gone.

Finalizers are never stripped, and nothing is deleted but by an operator's order. An accepted eviction is a
beginning: the drain has ended when the node, listed anew, has no pod left that had to leave.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpu_runbooks.activities.draining.calls import CALLS_OF_ALL, DrainCalls
from gpu_runbooks.activities.draining.checkpoint import withdraw_all
from gpu_runbooks.activities.draining.memory import remembered
from gpu_runbooks.activities.draining.outlook import grace_ends, in_the_way, stuck_on_silent_node
from gpu_runbooks.activities.draining.pods import is_terminating, moment, state_in_words
from gpu_runbooks.activities.draining.progress import ProgressPace
from gpu_runbooks.activities.draining.report import DrainReport, Outcome, heartbeat_of, progress_of, report_of
from gpu_runbooks.activities.draining.state import ODD, DrainState
from gpu_runbooks.activities.heartbeat import Beat
from gpu_runbooks.activities.kubernetes.client import REFUSALS, Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.kubernetes.listing import by_uid
from gpu_runbooks.activities.model.drain import LONGEST_GRACE, DrainPods, DrainProgress
from gpu_runbooks.activities.model.node import NodeObservation
from gpu_runbooks.activities.nodes.node import NODES, observe, ready_condition, require_same_machine

PODS = "/api/v1/pods"

LOOK_INTERVAL = 1.0
"""Seconds after which the drain looks at its state even without news."""

NODE_UNSEEN = timedelta(seconds=60)
"""Without a look at our block for so long, nothing more is begun."""

LIST_PAUSE = timedelta(seconds=2)
"""Time between two lists of a node that is to be proven empty, unless the watch has news."""

OnProgress = Callable[[DrainProgress], Awaitable[None]]

logger = logging.getLogger(__name__)


async def _tell_nobody(_: DrainProgress) -> None:
    return


async def drain(
    kubernetes: Kubernetes,
    request: DrainPods,
    *,
    own_pod_uid: str = "",
    beat: Beat = lambda _: None,
    on_progress: OnProgress = _tell_nobody,
    places: asyncio.Semaphore | None = None,
    last_beat: object = None,
) -> DrainReport:
    """Drain the node under this incident's block, or have `only` some of its pods leave, or restart those.

    Only `drained` says that the node is empty, or that those pods are gone. `cancelled`: the block is not, or
    no longer, on the node. `blocked`: pods are left at the deadline or on a silent node, with their reasons.
    `failed`: we may not do what a drain has to.

    Grace periods that still run at the deadline are waited for, `LONGEST_GRACE` beyond it at most.

    Drains that share `places` share the limit of calls in flight. `last_beat`: the last that a worker which
    died gave to `beat` in this drain; it goes on from there.

    Raises `ApplicationError` NODE_CHANGED for another machine; `KubernetesError`; `DrainCutShort`, never a
    result, when it is cancelled.
    """
    node = await kubernetes.request("GET", f"{NODES}/{request.identity.name}")
    require_same_machine(node, request.identity)
    state = DrainState(request, own_pod_uid, remembered(last_beat))
    run = _Drain(kubernetes, state, node, beat, on_progress, places or asyncio.Semaphore(CALLS_OF_ALL))
    async with run.calls:
        following = [asyncio.create_task(run.follow_node()), asyncio.create_task(run.follow_pods())]
        try:
            report = await run.to_the_end(following)
            await run.withdraw()
            return report
        except asyncio.CancelledError as error:
            raise DrainCutShort(run) from error
        finally:
            tasks = [*following, *run.telling]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class DrainCutShort(asyncio.CancelledError):
    """The drain was cancelled in the middle."""

    def __init__(self, run: "_Drain") -> None:
        super().__init__()
        self._run = run

    async def report(self) -> DrainReport:
        """What was done until then, for a drain that nobody resumes. Takes requests to pods back."""
        await self._run.withdraw()
        return self._run.report("cancelled", "cut short by a person's word")


@dataclass(frozen=True)
class _Clock:
    """The time of day, which a step of the system's clock does not move during a drain."""

    began: datetime
    ticks: float

    @classmethod
    def start(cls) -> "_Clock":
        return cls(datetime.now(UTC), asyncio.get_running_loop().time())

    def now(self) -> datetime:
        return self.began + timedelta(seconds=asyncio.get_running_loop().time() - self.ticks)


class _Drain:
    """One drain: what it has seen, and the calls that it has in flight."""

    def __init__(
        self,
        kubernetes: Kubernetes,
        state: DrainState,
        node: Object,
        beat: Beat,
        on_progress: OnProgress,
        places: asyncio.Semaphore,
    ) -> None:
        self._kubernetes = kubernetes
        self._request = request = state.request
        self._beat = beat
        self._on_progress = on_progress
        self._state = state
        self._pace = ProgressPace(state.memory.words, asyncio.get_running_loop().time())
        self._pods: dict[str, Object] | None = None
        """Live, once it was listed; looked at once for many events."""
        self._news = asyncio.Event()
        self._clock = _Clock.start()
        self._selector = f"spec.nodeName={request.identity.name}"
        self._list_due = self._clock.began
        self.calls = DrainCalls(kubernetes, self._state, self._clock.now, self._news, places)
        self.telling: set[asyncio.Task[None]] = set()
        self._node_seen = self._clock.began
        self._see_node(node)

    # --- the world -----------------------------------------------------------------------------------

    async def follow_node(self) -> None:
        """Keep an eye on our block and on the kubelet."""
        selector = f"metadata.name={self._request.identity.name}"
        async with aclosing(self._kubernetes.follow(NODES, field_selector=selector)) as states:
            async for nodes in states:
                try:
                    self._see_node(nodes.get(self._request.identity.uid))
                except ODD:
                    logger.exception("node %s cannot be understood", self._request.identity.name)
                self._node_seen = self._clock.now()
                self._news.set()

    async def follow_pods(self) -> None:
        """Keep up with the pods of the node: those that go, and those that still land on it."""
        async with aclosing(self._kubernetes.follow(PODS, field_selector=self._selector)) as states:
            async for pods in states:
                self._pods = pods
                self._list_due = self._clock.began
                self._news.set()

    def _see_node(self, node: Object | None) -> None:
        self._node: NodeObservation = observe(node, self._request.incident, self._request.run_id)
        since = ready_condition(node).get("lastTransitionTime") if node else None
        try:
            self._state.see_node(self._node.ready, moment(since) if since else None)
        except ValueError:
            self._state.see_node(self._node.ready, None)

    async def _is_empty(self, now: datetime) -> bool:
        """List anew: a pod may have been bound just before the cordon. No answer is not empty."""
        self._list_due = now + LIST_PAUSE
        try:
            listing = await self._kubernetes.list_objects(PODS, field_selector=self._selector)
        except KubernetesError as error:
            if error.status in REFUSALS:
                raise
            return False
        self._pods = by_uid(listing.items)  # newer than a watch that may be dead
        self._state.see(self._pods, self._clock.now())
        self._state.unreadable = listing.unreadable
        return not self._state.targets and not listing.unreadable and await self._is_ours()

    async def _is_ours(self) -> bool:
        """Look anew whether our block stands: an empty node that takes new pods is not drained."""
        try:
            node = await self._kubernetes.find(f"{NODES}/{self._request.identity.name}")
        except KubernetesError as error:
            if error.status in REFUSALS:
                raise
            return False
        same = node is not None and node["metadata"]["uid"] == self._request.identity.uid
        self._see_node(node if same else None)
        self._news.set()
        return self._node.identity is not None and (self._request.restart or self._node.blocked)

    # --- the loop ------------------------------------------------------------------------------------

    async def to_the_end(self, following: list[asyncio.Task[None]]) -> DrainReport:
        for task in following:
            task.add_done_callback(lambda _: self._news.set())
        next_look = self._clock.began
        while True:
            self._news.clear()
            for task in following:
                if task.done():
                    task.result()
            if self.calls.error is not None:
                raise self.calls.error
            now = self._clock.now()
            if self._pods is not None:
                self._state.see(self._pods, now)
            if now >= next_look:
                self._state.review(now)
            ended = await self._ended(now)
            if ended is not None:
                return ended
            if now - self._node_seen <= NODE_UNSEEN:
                self.calls.start(self._state.due(now))
            if now >= next_look:
                self._tell()
                next_look = now + timedelta(seconds=LOOK_INTERVAL)
            await self._wait_for_news(now)

    async def _ended(self, now: datetime) -> DrainReport | None:
        """The report, once there is one."""
        state = self._state
        if self._node.identity is None:
            return self.report("cancelled", "the Node is gone")
        if not self._request.restart and not self._node.blocked:
            return self.report("cancelled", "our block is not on the node: someone removed it")
        if self._node.opted_out:
            return self.report("cancelled", "the node's owners want nothing done to it: its label says so")
        if state.forbidden:
            return self.report("failed", state.forbidden)
        settled = now >= max(state.settled, self._list_due)
        if state.seen and not state.targets and settled and await self._is_empty(now):
            return self.report("drained")
        if stuck_on_silent_node(state, now):
            return self.report(
                "blocked",
                f"the node is {state_in_words(self._node.ready)}, and no pod that is left can go without it: "
                "have the machine rebooted or replaced, nobody else can prove that its containers ended",
            )
        if now < self._request.deadline:
            return None
        if not state.seen:
            return self.report("blocked", "the node's pods could not be listed before the deadline")
        grace = grace_ends(state, self._request.deadline + LONGEST_GRACE)
        if grace is not None and now < grace:
            return None
        return self.report("blocked", f"{len(state.targets)} pods are left at the deadline")

    async def _wait_for_news(self, now: datetime) -> None:
        wake = min(now + timedelta(seconds=LOOK_INTERVAL), self._state.next_look(now))
        if now < self._request.deadline:
            wake = min(wake, self._request.deadline)
        if self._state.seen and not self._state.targets:
            wake = min(wake, max(self._state.settled, self._list_due))
        try:
            async with asyncio.timeout(max(0.0, (wake - self._clock.now()).total_seconds())):
                await self._news.wait()
        except TimeoutError:
            return

    def _tell(self) -> None:
        state, clock = self._state, asyncio.get_running_loop().time()
        due = self._pace.due(in_the_way(state), clock, (state.remaining, state.attempts()))
        self._beat(heartbeat_of(state, self._pace.words))
        if due:
            task = asyncio.create_task(self._tell_incident(progress_of(state)))
            self.telling.add(task)
            task.add_done_callback(self.telling.discard)

    async def _tell_incident(self, progress: DrainProgress) -> None:
        try:
            await self._on_progress(progress)
        except Exception:
            logger.exception("the incident could not be told of the drain of %s", self._request.identity.name)

    async def withdraw(self) -> None:
        """Take back what pods were asked for and did not answer: nothing follows it."""
        asked = [target.pod for target in self._state.asked_by_annotation() if not is_terminating(target.pod)]
        await withdraw_all(self._kubernetes, asked)

    def report(self, outcome: Outcome, message: str = "") -> DrainReport:
        self._state.review(self._clock.now())
        return report_of(self._state, outcome, message)
