"""Handing on what is bad about each node, until it is taken: one delivery in flight per node.

A node that cannot be delivered, such as while Temporal is away, waits ever longer and holds up no other.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime

from gpu_runbooks.activities.kubernetes.client import KubernetesError
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.nodes.node import identity_of
from gpu_runbooks.workers.intake.bad_nodes import NOW, Bad
from gpu_runbooks.workers.intake.condition_faults import SKEW, Look
from gpu_runbooks.workers.intake.delivered import TemporalUnavailableError
from gpu_runbooks.workers.intake.fleet import KeptNode
from gpu_runbooks.workers.intake.places import Places
from gpu_runbooks.workers.intake.reception import Reception
from gpu_runbooks.workers.intake.reported_conditions import Watched, conditions_of
from gpu_runbooks.workflows.policy.answers import answer_to
from gpu_runbooks.workflows.policy.policy import Policy

AT_ONCE = 16
"""Nodes that are delivered at the same time."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds until a node is tried again; the pause doubles with each time that it is not taken."""

JITTER = 0.2
"""Share of the pause by which it is longer at random."""

ASK_AGAIN = 3600.0
"""Seconds after which a fault that still stands is handed on again. It is known then, or refused, unless its
incident ended without an answer, such as by an error, or what it was refused for is mended."""

log = logging.getLogger(__name__)


class Deliveries:
    """The deliveries of all nodes, as tasks of a group."""

    def __init__(
        self, reception: Reception, group: asyncio.TaskGroup, watched: Callable[[], Watched]
    ) -> None:
        self._reception = reception
        self._group = group
        self._watched = watched
        self._nodes: dict[str, Bad] = {}
        self._places = Places(AT_ONCE)

    def see(self, node: KeptNode, look: Look) -> None:
        """Take in what a node shows. Nothing is kept of one that is well."""
        bad = self._nodes.get(node.uid)
        if bad is None:
            if not look.faults:
                return
            bad = self._nodes[node.uid] = Bad(node.name, node.uid, node.created)
        bad.see(look, node.covered)
        self._hold(bad)
        if bad.work is None or bad.work.done():
            bad.work = self._group.create_task(self._work(bad))

    def forget(self, uid: str) -> None:
        """A Node went: nobody needs to know what was bad about it."""
        if bad := self._nodes.pop(uid, None):
            bad.gone = True
            if bad.work:
                bad.work.cancel()

    def ask_again(self) -> None:
        """Hand on anew what stands, since another policy may have another answer."""
        for bad in self._nodes.values():
            bad.answered.clear()
            self._hold(bad)
            bad.news.set()

    def _hold(self, bad: Bad) -> None:
        clock, now, policy = asyncio.get_running_loop().time(), datetime.now(UTC), self._reception.policy
        bad.held = {
            fault.fingerprint: clock + seconds_held(fault, bad.created, policy, now)
            for fault in bad.faults.values()
            if bad.created is not None and fault.fingerprint in bad.booting
        }

    def cancel(self) -> None:
        """End all deliveries. What was not taken is seen again at the next start."""
        for uid in list(self._nodes):
            self.forget(uid)

    async def _work(self, bad: Bad) -> None:
        """Deliver until nothing is bad about the node."""
        clock = asyncio.get_running_loop().time
        pause = 0.0
        while not bad.gone and (bad.faults or bad.cleared):
            bad.news.clear()
            # That a condition was good goes before that it is bad again, and holds up nothing if it fails.
            fault = bad.due(clock()) if pause or not bad.cleared else None
            if fault is None and not bad.cleared:
                await _first_of(bad.news, bad.seconds_until_due(clock()))
                continue
            async with self._places.one():
                done = await self._settle(bad, fault)
            if done or bad.gone:
                pause = 0.0
                continue
            # News do not cut the pause short: a node that changes all the time would be tried all the time.
            pause = min(max(FIRST_PAUSE, 2 * pause), LONGEST_PAUSE)
            await asyncio.sleep(pause * (1 + random.uniform(0, JITTER)))  # noqa: S311
        if not bad.answered and not bad.taken and self._nodes.get(bad.uid) is bad:
            del self._nodes[bad.uid]

    async def _settle(self, bad: Bad, fault: Fault | None) -> bool:
        """Deliver one thing about a node. False: it has to be tried again."""
        try:
            if fault is None:
                await self._tell_cleared(bad)
                return True
            return await self._deliver(bad, fault)
        except (KubernetesError, TemporalUnavailableError) as error:
            log.info("node %s waits: %s", bad.name, error)
        except Exception:
            # Whatever it is about this node, the others and the other sources go on.
            log.exception("the conditions of node %s could not be handed on", bad.name)
        return False

    async def _tell_cleared(self, bad: Bad) -> None:
        kind, cleared = next(iter(bad.cleared.items()))
        await self._reception.cleared(bad.name, cleared)
        if bad.cleared.get(kind) is cleared:
            del bad.cleared[kind]

    async def _deliver(self, bad: Bad, fault: Fault) -> bool:
        """Look at the live Node, and hand on the fault unless it is over."""
        covered = bad.covered
        node = await self._reception.find_node(bad.name)
        if node is None or node["metadata"]["uid"] != bad.uid:
            bad.faults.clear()  # the watch will show what is there instead
            return True
        if fault.code in conditions_of(node, self._watched()).good:
            bad.faults.pop(fault.fingerprint, None)
            return True
        # It stands in this boot, whatever the one was in which it began.
        now = fault.model_copy(update={"boot_id": identity_of(node).boot_id})
        bad.delivering = fault.code
        try:
            refusal = bad.refusal_of(fault)
            answer = await self._reception.take(fault.code, now, node, known_refusal=refusal)
        finally:
            bad.delivering = ""
        if answer.status == "unavailable":
            return False
        again = asyncio.get_running_loop().time() + ASK_AGAIN * (1 + random.uniform(0, JITTER))  # noqa: S311
        if answer.status in {"refused", "ignored"} and bad.covered != covered:
            again = NOW  # it may be about the labels that the Node had before
        bad.take_answer(fault, answer.status, answer.reason, again)
        return True


def seconds_held(fault: Fault, created: datetime, policy: Policy, now: datetime) -> float:
    """Seconds until a node that never was ready is reported: half of what policy tolerates is over then.

    A node that boots is not ready either, and a fleet that grows would open an incident for each. Pure.
    """
    if created > now + SKEW:
        return 0.0
    return max(0.0, (created + answer_to(policy, fault).toleration / 2 - now).total_seconds())


async def _first_of(news: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        return
