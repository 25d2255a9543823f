"""Source `aws events`: what EC2 and AWS Health announce, from an SQS queue.

A message leaves the queue only when each of its faults is in Temporal or ignored on purpose. Whatever else
becomes of it, it comes again: faults that were taken already are recognised then.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from gpu_runbooks.activities.aws.event_queue import HIDDEN_SECONDS, EventQueue, Message, QueueError
from gpu_runbooks.activities.kubernetes.client import KubernetesError, Object
from gpu_runbooks.activities.nodes.node import identity_of
from gpu_runbooks.workers.intake.eventbridge import (
    Event,
    EventIgnored,
    EventUnreadable,
    fault_of,
    read_event,
)
from gpu_runbooks.workers.intake.places import Places
from gpu_runbooks.workers.intake.reception import Answer, Reception
from gpu_runbooks.workers.settings import Settings

log = logging.getLogger(__name__)

Result = TypeVar("Result")

SIGNAL = "aws event"
"""What a message is called in the audit as long as nobody knows its code."""

AT_ONCE = 16
"""Faults of one message that are worked on at the same time: it may name each node of the cluster."""

JOINING = timedelta(minutes=10)
"""How long after an event an instance that has no Node may still be one that joins."""

FIRST_DELAY = 30
LONGEST_DELAY = 900
"""Seconds until a message comes again that could not be dealt with; the delay doubles with each receipt.
Twenty receipts take four hours, so that a queue's redrive policy does not act on a short outage."""

LAST_RECEIPT = 50
"""Receipts after which a message that nobody can read is deleted: a queue without a redrive policy would
bring it again for days. One with a policy has moved it away before."""

LONGEST_PAUSE = 300.0
"""Seconds between two attempts at a queue that cannot be read."""

NAMED_IN_AUDIT = 3
"""Instances that an audit line names; of more it has the number."""


class Later(Exception):  # noqa: N818  the message is in order, and so are we
    """Not all of a message could be dealt with: it has to come again, after `seconds` where they count."""

    def __init__(self, why: str, seconds: int = 0) -> None:
        super().__init__(why)
        self.seconds = seconds


async def run(reception: Reception, settings: Settings, stop: asyncio.Event) -> None:
    """Take the events of the queue until `stop` is set. Never ends by what is wrong with the queue: other
    sources live on, and the log says what to do.
    """
    if not settings.event_queue:
        return
    queue = EventQueue(settings.event_queue)
    log.info("events of EC2 and AWS Health come from %s", queue.url)
    pause = 0.0
    while not await _stopped(stop, pause):
        if not reception.fleet.ready:
            pause = 1.0  # whose instances they are cannot be said yet
            continue
        try:
            messages = await _unless(stop, queue.receive())
            pause = 0.0
        except QueueError as error:
            pause = min(max(5.0, 2 * pause), LONGEST_PAUSE)
            log.error("%s. Tried again in %.0f s", error, pause)  # noqa: TRY400 - a trace would say no more
            continue
        work = (handle(reception, queue, message, settings.event_account) for message in messages or ())
        await _unless(stop, _all(*work))


async def handle(reception: Reception, queue: EventQueue, message: Message, account: str = "") -> None:
    """Deal with one message, and delete it, or let it come again. Raises nothing."""
    hiding = asyncio.create_task(_keep_hidden(queue, message))
    try:
        await _take(reception, message, account)
    except Later as later:
        await _put_off(queue, message, str(later), later.seconds)
        return
    except EventUnreadable as unreadable:
        reception.told(Answer(SIGNAL, "refused", reason=f"{_which(message)}: {unreadable}"))
        if message.receipts < LAST_RECEIPT:
            await _put_off(queue, message, "for the queue's redrive policy")
            return
        log.error("%s is deleted: nobody could read it", _which(message))  # noqa: TRY400 - the reason is above
    except Exception:
        # Whatever it is about this message, the others and the other sources go on.
        log.exception("%s could not be dealt with", _which(message))
        await _put_off(queue, message, "after an error")
        return
    finally:
        hiding.cancel()
        await asyncio.gather(hiding, return_exceptions=True)
    try:
        await queue.delete(message)
    except QueueError as error:
        log.warning("%s is dealt with and stays in the queue, so it comes again: %s", _which(message), error)


async def _take(reception: Reception, message: Message, account: str) -> None:
    """Take all that a message says. Raises `EventUnreadable`, and `Later` where something is left."""
    try:
        event = read_event(message.body)
        if account and event.account != account:
            raise EventIgnored(f"{event.code} is about account {event.account}, not about {account}")
    except EventIgnored as ignored:
        reception.told(Answer(SIGNAL, "ignored", reason=f"message {message.message_id}: {ignored}"))
        return
    received = datetime.now(UTC)
    nodes: dict[str, str] = {}
    strange: list[str] = []
    for instance in event.instances:
        if name := reception.fleet.node_of_instance(instance):
            nodes[instance] = name
        else:
            strange.append(instance)
    if left := await _take_all(reception, event, nodes, received):
        raise Later(f"{len(left)} faults are not in Temporal; {left[0]}")
    if strange and (wait := message.sent + JOINING - received) > timedelta(0):
        what = f"{event.code} of {_some(strange)}, which may still join the cluster"
        raise Later(what, round(wait.total_seconds()) + 1)
    if strange or event.others or not event.instances:
        reason = f"of {_some(strange)}, no Node of this cluster" if strange else "no Node of this cluster"
        others = f"; {event.others} other things are no instances of account and region" * bool(event.others)
        reason = f"message {message.message_id}: {reason}{others}"
        reception.told(Answer(event.code, "ignored", reason=reason))


async def _take_all(
    reception: Reception, event: Event, nodes: Mapping[str, str], received: datetime
) -> list[str]:
    """Take the faults of these instances, each with the name of its Node; why some have to come again."""
    places = Places(AT_ONCE)
    left: list[str] = []

    async def take(instance: str, name: str) -> None:
        async with places.one():
            if len(left) < AT_ONCE:  # after so many, Temporal is away: the others would only wait for it too
                left.extend(await _take_one(reception, event, instance, name, received))

    async with asyncio.TaskGroup() as group:
        for each in nodes.items():
            group.create_task(take(*each))
    return left


async def _take_one(
    reception: Reception, event: Event, instance: str, name: str, received: datetime
) -> list[str]:
    """Take the fault of one instance; why it has to come again, nothing when it is dealt with."""
    try:
        node = await reception.find_node(name)
    except KubernetesError as error:
        return [f"node {name} cannot be asked for: {error}"]
    if node is None or not _is_machine(node, instance, event.region):
        reason = f"the Node is not instance {instance} of {event.region} any more"
        reception.told(Answer(event.code, "ignored", name, reason))
        return []
    answer = await reception.take(event.code, fault_of(event, instance, received), node)
    return [answer.reason] if answer.status == "unavailable" else []


def _is_machine(node: Object, instance: str, region: str) -> bool:
    """Whether the live Node is this very instance. The zone in its provider id tells the region."""
    identity = identity_of(node)
    zone = re.fullmatch(rf"{re.escape(region)}([a-z]|-[a-z0-9-]+)", identity.zone)
    return identity.instance_id == instance and zone is not None


async def _keep_hidden(queue: EventQueue, message: Message) -> None:
    """Hide a message from others for as long as somebody works on it."""
    while True:
        await asyncio.sleep(HIDDEN_SECONDS / 2)
        with contextlib.suppress(QueueError):  # then it comes twice, and is recognised
            await queue.hide(message, HIDDEN_SECONDS)


async def _put_off(queue: EventQueue, message: Message, why: str, seconds: int = 0) -> None:
    delay = seconds or min(FIRST_DELAY * 2 ** min(message.receipts - 1, 10), LONGEST_DELAY)
    log.info("%s comes again in %d s: %s", _which(message), delay, why)
    with contextlib.suppress(QueueError):  # then it comes again when its time is over
        await queue.hide(message, delay)


def _which(message: Message) -> str:
    """A message in words of ours. Its body is anybody's, so the audit has its digest only."""
    digest = hashlib.sha256(message.body.encode(errors="surrogatepass")).hexdigest()
    return f"message {message.message_id} (receipt {message.receipts}, sha256:{digest})"


def _some(instances: list[str]) -> str:
    more = len(instances) - NAMED_IN_AUDIT
    return ", ".join(instances[:NAMED_IN_AUDIT]) + (f" and {more} more" if more > 0 else "")


async def _all(*work: Coroutine[Any, Any, None]) -> None:
    await asyncio.gather(*work)


async def _stopped(stop: asyncio.Event, seconds: float) -> bool:
    """Wait for this long, or until `stop` is set; whether it is."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
    return stop.is_set()


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of some work, or None when `stop` was set first: then the work is cancelled."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for each in (working, stopping):
            each.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
