"""The SQS queue in which EventBridge lays events: received, deleted, or put off.

A message that is received is hidden from everybody until its time is over, and comes again unless it was
deleted. So nothing is lost by whoever dies, and everything may come twice.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Thread
from typing import Any, TypeVar

from botocore.exceptions import NoRegionError

from gpu_runbooks.activities.aws.connection import READ_SECONDS, config, new_session
from gpu_runbooks.activities.aws.refusals import Refusal, code_of, meaning_of

Answer = TypeVar("Answer")

POLL_SECONDS = 20
"""How long SQS waits for a message before it says that there is none: the longest that it can."""

HIDDEN_SECONDS = 120
"""How long a message that was received is hidden from others. Whoever works longer on it hides it anew."""

AT_ONCE = 10
"""Messages of one receipt: the most that SQS gives."""

ATTEMPTS = 3

NO_QUEUE = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "InvalidAddress"})


class QueueError(Exception):
    """SQS did not do what it was asked. The message is for a person: what, which queue, why, what to do."""


@dataclass(frozen=True)
class Message:
    """A message, as one receipt has it."""

    message_id: str
    receipt: str
    """What this receipt of it is deleted or hidden by."""
    body: str
    receipts: int
    """How often it was received until now, this time included. SQS counts about right."""
    sent: datetime


class EventQueue:
    """One queue. Endpoint and credentials are the environment's, as for any boto3 program; `region.py`
    tells the region.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._client: Any = None

    async def receive(self) -> list[Message]:
        """Wait for messages, up to `POLL_SECONDS`. Raises `QueueError`."""
        answer = await self._ask(
            "receive_message",
            MaxNumberOfMessages=AT_ONCE,
            WaitTimeSeconds=POLL_SECONDS,
            VisibilityTimeout=HIDDEN_SECONDS,
            MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
        )
        return [_message(each) for each in answer.get("Messages", ())]

    async def delete(self, message: Message) -> None:
        """Take a message out of the queue for good. Raises `QueueError`; then it comes again."""
        await self._ask("delete_message", ReceiptHandle=message.receipt)

    async def hide(self, message: Message, seconds: int) -> None:
        """Let a message come again after this time, counted from now. Raises `QueueError`."""
        await self._ask("change_message_visibility", ReceiptHandle=message.receipt, VisibilityTimeout=seconds)

    async def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            if self._client is None:
                self._client = connect()
            answer: dict[str, Any] = getattr(self._client, method)(QueueUrl=self.url, **parameters)
            return answer

        try:
            return await _in_own_thread(ask)
        except Exception as error:
            # Also what boto3 raises as ValueError, such as for an endpoint that is no URL.
            raise QueueError(f"{method} of {self.url}: {error}. {_advice(error)}") from error


def connect() -> Any:
    session, credentials = new_session()
    client = session.client("sqs", config=config(POLL_SECONDS + READ_SECONDS, "adaptive", ATTEMPTS))
    # All three calls may be sent twice: a receipt that nobody saw only hides its messages for a while.
    credentials.attach(client, try_again=True)
    return client


async def _in_own_thread(ask: Callable[[], Answer]) -> Answer:
    """The answer of a call that blocks. Whoever gives up on it leaves the thread alone, which ends with the
    process: a poll never holds up an end.
    """
    promise: Future[Answer] = Future()
    # Marked as running: giving up must not cancel it under the thread that will fill it in.
    promise.set_running_or_notify_cancel()

    def fulfil() -> None:
        try:
            promise.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - whatever it was, it is the answer
            promise.set_exception(error)

    Thread(target=fulfil, name="event-queue", daemon=True).start()
    return await asyncio.wrap_future(promise)


def _message(received: dict[str, Any]) -> Message:
    attributes = received.get("Attributes", {})
    return Message(
        message_id=received["MessageId"],
        receipt=received["ReceiptHandle"],
        body=received["Body"],
        receipts=int(attributes.get("ApproximateReceiveCount", 1)),
        sent=datetime.fromtimestamp(int(attributes.get("SentTimestamp", 0)) / 1000, UTC),
    )


def _advice(error: Exception) -> str:
    code = code_of(error)
    if isinstance(error, NoRegionError):
        return "Set AWS_REGION to the region of the queue"
    if code in NO_QUEUE:
        return "Compare GPU_RUNBOOKS_EVENT_QUEUE with the queue's URL, and AWS_REGION with its region"
    if code.upper().startswith("KMS"):
        return "Permit kms:Decrypt on the queue's key to the intake's IAM role"
    match meaning_of(error):
        case Refusal.FORBIDDEN:
            return "Give the ServiceAccount intake an IAM role with iam/intake.json for this queue"
        case Refusal.EXPIRED:
            return "Renew the intake's credentials, and compare its clock"
        case Refusal.BUSY:
            return "SQS was too busy for it"
        case _ if isinstance(error, ValueError):
            return "Compare AWS_ENDPOINT_URL, AWS_REGION and AWS_DEFAULT_REGION with what boto3 knows"
        case _:
            return "Can the intake reach SQS, in the queue's region (AWS_REGION)?"
