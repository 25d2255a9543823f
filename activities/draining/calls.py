"""The calls that a drain makes for its pods: evict, delete by order, ask to checkpoint.

Calls to the API server and calls to pods are counted apart, and a pod that has to wait holds no place.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Self

import aiohttp

from gpu_runbooks.activities.draining.budgets import Budgets, BudgetsFound
from gpu_runbooks.activities.draining.checkpoint import ask_by_annotation, ask_by_http
from gpu_runbooks.activities.draining.eviction import (
    LOOK_AT_BUDGETS,
    Answer,
    Verdict,
    classify,
    deletion_of,
    eviction_of,
    pause,
)
from gpu_runbooks.activities.draining.obstacles import NOT_LOOKED_UP, obstacle_of
from gpu_runbooks.activities.draining.pods import is_ready
from gpu_runbooks.activities.draining.state import DrainState
from gpu_runbooks.activities.draining.target import Act, Target
from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.model.drain import PodRule

CALLS_AT_ONCE = 32
"""Calls of one drain to the API server."""

CALLS_OF_ALL = 64
"""Calls of all drains of a worker that are in flight: more make no drain faster, and others are throttled."""

ASKS_AT_ONCE = 32
"""Calls to pods in flight: a pod that does not answer keeps no eviction waiting."""


class DrainCalls:
    """Calls in flight of one drain. Close it (`async with`) and none goes on."""

    def __init__(
        self,
        kubernetes: Kubernetes,
        state: DrainState,
        now: Callable[[], datetime],
        news: asyncio.Event,
        places: asyncio.Semaphore,
    ) -> None:
        self._kubernetes = kubernetes
        self._state = state
        self._now = now
        self._news = news
        self._places = places
        self._budgets = Budgets(kubernetes)
        self._calls: set[asyncio.Task[None]] = set()
        self._asks: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None
        self.error: BaseException | None = None
        """What a call raised that is no answer of the API server: a fault of ours."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._calls, *self._asks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stack.aclose()

    def start(self, due: list[Target]) -> None:
        """Start the acts that are due, as far as there are free hands."""
        for target in due:
            asks = target.step.act is Act.ASK_CHECKPOINT
            running, most = (self._asks, ASKS_AT_ONCE) if asks else (self._calls, CALLS_AT_ONCE)
            if len(running) >= most:
                continue
            task = asyncio.create_task(self._perform(self._state.begin(target), target))
            running.add(task)
            task.add_done_callback(running.discard)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._news.set()
        if not task.cancelled() and (error := task.exception()):
            self.error = error

    def _perform(self, act: Act, target: Target) -> Coroutine[None, None, None]:
        match act:
            case Act.EVICT:
                return self._evict(target)
            case Act.DELETE:
                return self._delete(target)
            case Act.ASK_CHECKPOINT:
                return self._ask(target)
            case Act.LOOK_AT_BUDGETS:
                return self._look_at_budgets(target)

    async def _evict(self, target: Target) -> None:
        await self._ask_to_leave(target, "POST", f"{_path(target.pod)}/eviction", eviction_of(target.pod))

    async def _delete(self, target: Target) -> None:
        await self._ask_to_leave(target, "DELETE", _path(target.pod), deletion_of(target.pod))

    async def _ask_to_leave(self, target: Target, method: str, path: str, body: Object) -> None:
        try:
            async with self._places:
                await self._kubernetes.request(method, path, body=body)
            answer = Answer(Verdict.ACCEPTED)
        except KubernetesError as error:
            answer = classify(error)
        budgets = await self._budgets_of(target.pod, answer)
        now, chance = self._now(), random.random()  # noqa: S311 - spreads calls, guards nothing
        self._state.answered(target, answer, obstacle_of(answer, target.pod, budgets), now, chance)

    async def _look_at_budgets(self, target: Target) -> None:
        # pods of a namespace take turns within a minute: one list for all of them
        async with self._places:
            found = await self._budgets.of(target.pod, valid=0.9 * LOOK_AT_BUDGETS)
        self._state.budgets_seen(target, found, self._now())

    async def _budgets_of(self, pod: Object, answer: Answer) -> BudgetsFound:
        """The pod's budgets, where the answer does not say enough of them."""
        unnamed = answer.verdict in {Verdict.BUDGET, Verdict.BUDGET_NOT_OBSERVED} and not answer.names
        unhealthy = answer.verdict is Verdict.BUDGET and not is_ready(pod)
        if answer.verdict is Verdict.TWO_BUDGETS or unnamed or unhealthy:
            return await self._budgets.of(pod)
        return NOT_LOOKED_UP

    async def _ask(self, target: Target) -> None:
        rule = target.rule
        if rule is not None and rule.checkpoint_port is not None:
            await self._ask_by_http(target, rule)
        else:
            await self._ask_by_annotation(target)

    async def _ask_by_annotation(self, target: Target) -> None:
        try:
            await ask_by_annotation(self._kubernetes, target.pod, self._state.token)
        except KubernetesError as error:
            answer = classify(error)
            if answer.verdict is Verdict.FORBIDDEN:
                self._state.forbidden = answer.message
            words = f"it cannot be asked: {obstacle_of(answer, target.pod).message}"
            again = pause(answer, 1) or 0.0
            self._state.checkpoint_asked(target, words, again, self._now(), reached=False)
        else:
            # the watch brings the annotation, and then its answer
            self._state.checkpoint_asked(target, "asked", 5.0, self._now(), reached=True)

    async def _ask_by_http(self, target: Target, rule: PodRule) -> None:
        if self._session is None:
            self._session = await self._stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        state = self._state
        answer = await ask_by_http(
            self._session, target.pod, rule, state.request.incident, state.token, state.end_of(rule)
        )
        now = self._now()
        if answer.saved:
            self._state.checkpoint_done(target, now)
        else:
            self._state.checkpoint_asked(target, answer.words, answer.again, now, reached=answer.reached)


def _path(pod: Object) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
