"""Drain of a node: evict through the Eviction API, and watch until the pods are gone.

Pods are never deleted and finalizers never stripped. An accepted eviction is a beginning: the drain has ended
when the node, listed anew, has no pod left that had to leave.
"""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Literal

from gpu_runbooks.activities.budgets import Budgets
from gpu_runbooks.activities.drain_state import DrainState, Target
from gpu_runbooks.activities.eviction import Answer, Verdict, classify, eviction_of
from gpu_runbooks.activities.heartbeat import Beat
from gpu_runbooks.activities.kubernetes import REFUSALS, Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.model.drain import DrainPods, DrainResult
from gpu_runbooks.activities.model.node import NodeObservation
from gpu_runbooks.activities.nodes import NODES, observe, require_same_machine
from gpu_runbooks.activities.waiting import seconds_until

PODS = "/api/v1/pods"

EVICTIONS_AT_ONCE = 16
"""Calls in flight. A pod that has to wait holds none."""

LOOK_INTERVAL = 1.0
"""Seconds after which the drain looks at its state even without news."""


async def drain(
    kubernetes: Kubernetes, request: DrainPods, *, own_pod_uid: str = "", beat: Beat = lambda _: None
) -> DrainResult:
    """Drain the node under this incident's block. Only `drained` says that the node is empty.

    `cancelled`: the block is not, or no longer, on the node. `blocked`: pods are left at the deadline, with
    their reasons. `failed`: we may not evict.

    Raises `ApplicationError` NODE_CHANGED for another machine; `KubernetesError`.
    """
    node = await kubernetes.request("GET", f"{NODES}/{request.identity.name}")
    require_same_machine(node, request.identity)
    run = _Drain(kubernetes, request, node, own_pod_uid, beat)
    following = [asyncio.create_task(run.follow_node()), asyncio.create_task(run.follow_pods())]
    try:
        return await run.to_the_end(following)
    finally:
        tasks = [*following, *run.asking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Drain:
    """One drain: what it has seen, and the calls that it has in flight."""

    def __init__(
        self, kubernetes: Kubernetes, request: DrainPods, node: Object, own_pod_uid: str, beat: Beat
    ) -> None:
        self._kubernetes = kubernetes
        self._request = request
        self._node: Object | None = node
        self._beat = beat
        self._budgets = Budgets(kubernetes)
        self._state = DrainState(own_pod_uid)
        self._pods: dict[str, Object] | None = None
        """Live, once it was listed; looked at once for many events."""
        self._news = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._selector = f"spec.nodeName={request.identity.name}"
        self._error: BaseException | None = None
        self.asking: set[asyncio.Task[None]] = set()

    async def follow_node(self) -> None:
        """Keep an eye on our block and on the kubelet."""
        selector = f"metadata.name={self._request.identity.name}"
        async with aclosing(self._kubernetes.follow(NODES, field_selector=selector)) as states:
            async for nodes in states:
                self._node = nodes.get(self._request.identity.uid)
                self._news.set()

    async def follow_pods(self) -> None:
        """Keep up with the pods of the node: those that go, and those that still land on it."""
        async with aclosing(self._kubernetes.follow(PODS, field_selector=self._selector)) as states:
            async for pods in states:
                self._pods = pods
                self._news.set()

    async def to_the_end(self, following: list[asyncio.Task[None]]) -> DrainResult:
        for task in following:
            task.add_done_callback(lambda _: self._news.set())
        next_beat = self._clock()
        while True:
            self._news.clear()
            for task in following:
                if task.done():
                    task.result()
            if self._error is not None:
                raise self._error
            if self._pods is not None:
                self._state.see(self._pods.values(), datetime.now(UTC))
            ended = await self._ended()
            if ended is not None:
                return ended
            self._ask()
            if self._clock() >= next_beat:
                self._beat(self._progress())
                next_beat = self._clock() + LOOK_INTERVAL
            await self._wait_for_news()

    async def _ended(self) -> DrainResult | None:
        """The result, once there is one."""
        state, node = self._state, self._observed()
        if node.identity is None:
            return self._result("cancelled", "the Node is gone")
        if not node.blocked:
            return self._result(
                "cancelled", "the block of this incident is not on the node: someone removed it"
            )
        if state.forbidden:
            return self._result(
                "failed", f"the role lacks verb `create` on `pods/eviction`: {state.forbidden}. Add it"
            )
        if state.seen and not state.targets and await self._is_empty():
            return self._result("drained", self._lost_data())
        if seconds_until(self._request.deadline) > 0:
            return None
        if not state.seen:
            return self._result("blocked", "the node's pods could not be listed before the deadline")
        return self._result("blocked", f"{len(state.targets)} pods are left at the deadline")

    async def _is_empty(self) -> bool:
        """List anew: a pod may have been bound just before the cordon. No answer is not empty."""
        try:
            pods = await self._kubernetes.items(PODS, field_selector=self._selector)
        except KubernetesError as error:
            if error.status in REFUSALS:
                raise
            return False
        self._state.see(pods, datetime.now(UTC))
        return not self._state.targets

    def _ask(self) -> None:
        """Start evictions, as many as there are free hands."""
        free = EVICTIONS_AT_ONCE - len(self.asking)
        for target in self._state.due(self._clock())[:free]:
            target.asking = True
            target.attempts += 1
            task = asyncio.create_task(self._evict(target))
            self.asking.add(task)
            task.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self.asking.discard(task)
        self._news.set()
        if not task.cancelled() and (error := task.exception()):
            self._error = error

    async def _evict(self, target: Target) -> None:
        metadata = target.pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction"
        try:
            await self._kubernetes.request("POST", path, body=eviction_of(target.pod))
            answer = Answer(Verdict.ACCEPTED)
        except KubernetesError as error:
            answer = classify(error)
        budgets: tuple[str, ...] = ()
        if answer.verdict in {Verdict.BUDGET, Verdict.TWO_BUDGETS}:
            budgets = await self._budgets.names_for(target.pod)
        self._state.answered(target, answer, budgets, self._clock())

    async def _wait_for_news(self) -> None:
        seconds = min(LOOK_INTERVAL, max(0.0, seconds_until(self._request.deadline)))
        if len(self.asking) < EVICTIONS_AT_ONCE:
            seconds = min(seconds, self._state.seconds_to_next(self._clock()))
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return

    def _observed(self) -> NodeObservation:
        return observe(self._node, self._request.incident)

    def _lost_data(self) -> str:
        names = sorted(self._state.with_empty_dir.values())
        if not names:
            return ""
        more = ", ..." if len(names) > 10 else ""
        return f"{len(names)} pods lost their emptyDir volumes: {', '.join(names[:10])}{more}"

    def _progress(self) -> dict[str, object]:
        blockers = self._state.blockers(self._observed().ready, datetime.now(UTC))
        return {
            "remaining": len(self._state.targets),
            "gone": len(self._state.gone),
            "waiting for": {f"{pod.namespace}/{pod.name}": pod.message for pod in blockers},
        }

    def _result(
        self, outcome: Literal["drained", "blocked", "cancelled", "failed"], message: str
    ) -> DrainResult:
        state = self._state
        return DrainResult(
            outcome=outcome,
            gone=len(state.gone),
            skipped=len(state.skipped),
            blockers=state.blockers(self._observed().ready, datetime.now(UTC)),
            blocked_total=len(state.targets),
            message=message,
        )
