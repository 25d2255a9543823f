"""The far sides of the source `aws events`: a queue, the nodes that are known, and Temporal."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError
from intake.conftest import InTemporal
from temporalio.client import Client

from gpu_runbooks.workers.intake import aws_events
from gpu_runbooks.workers.intake.reception import Reception
from gpu_runbooks.workers.settings import Settings

IAM = Path(__file__).parents[3] / "deploy" / "manifests" / "iam" / "intake.json"

STRANGER = "i-0fffffffffffffff0"


BROKEN = "i-0fffffffffffffff1"


MakeNode = Callable[..., Awaitable[str]]


@dataclass
class Nodes:
    """Nodes by instance, as the watch of the fleet knows them."""

    by_instance: dict[str, str] = field(default_factory=dict)
    known: bool = True
    asked: int = 0

    @property
    def ready(self) -> bool:
        self.asked += 1
        return self.known

    def node_of_instance(self, instance_id: str) -> str | None:
        if instance_id == BROKEN:
            raise RuntimeError("an error that nobody foresaw")
        return self.by_instance.get(instance_id)


@dataclass
class Queue:
    """A queue of SQS, as those see it who send to it."""

    sqs: Any
    url: str

    async def send(self, body: Any) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        await asyncio.to_thread(self.sqs.send_message, QueueUrl=self.url, MessageBody=text)

    async def length(self) -> int:
        """Messages in it, hidden ones too."""
        shown = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        answer = await asyncio.to_thread(
            self.sqs.get_queue_attributes, QueueUrl=self.url, AttributeNames=list(shown)
        )
        return sum(int(answer["Attributes"][name]) for name in shown)

    async def empty(self) -> None:
        while await self.length():
            await asyncio.sleep(0.05)


@dataclass
class Wire:
    """Calls that the product's client makes, each counted by operation, and disturbed where a test says."""

    made: Counter[str] = field(default_factory=Counter)
    refused: dict[str, list[str]] = field(default_factory=dict)
    """Codes of refusal by operation; each is used up by one call."""

    def attach(self, client: Any) -> None:
        client.meta.events.register("before-call.sqs", self._before)

    def _before(self, model: Any, **_: Any) -> None:
        self.made[model.name] += 1
        if codes := self.refused.get(model.name):
            raise ClientError({"Error": {"Code": codes.pop(0), "Message": "injected"}}, model.name)


@dataclass
class Intake(InTemporal):
    """The source over its reception, and what it left behind in Temporal."""

    reception: Reception
    settings: Settings
    temporal: Client

    @asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[asyncio.Task[None]]:
        stop = asyncio.Event()
        run = aws_events.run(self.reception, self.settings.model_copy(update=settings), stop)
        task = asyncio.create_task(run)
        try:
            yield task
        finally:
            stop.set()
            await task

    async def take_all(self, queue: Queue, **settings: Any) -> None:
        """Run until the queue is empty."""
        async with self.running(**settings):
            await queue.empty()

    async def begun(self, node: str) -> None:
        while await self.incident(node) is None:
            await asyncio.sleep(0.05)


MakeInstance = Callable[[], Awaitable[tuple[str, str]]]
