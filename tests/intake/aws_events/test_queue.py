"""The queue itself: missing, refused, without credentials, and at the end."""

import asyncio
from typing import Any

import pytest
from intake.aws_events.world import Intake, MakeInstance, Queue, Wire
from intake.aws_messages import health

from gpu_runbooks.activities.aws import event_queue


class TestQueue:
    async def test_without_a_queue_there_is_no_source(self, intake: Intake, wire: Wire) -> None:
        async with intake.running(event_queue="") as task:
            await task
        assert not wire.made

    async def test_a_queue_that_is_missing_is_asked_again(
        self, intake: Intake, queue: Queue, sqs: Any, wire: Wire, caplog
    ) -> None:
        await asyncio.to_thread(sqs.delete_queue, QueueUrl=queue.url)
        async with intake.running() as task:
            while wire.made["ReceiveMessage"] < 2:
                await asyncio.sleep(0.02)
            assert not task.done()
        assert "Compare GPU_RUNBOOKS_EVENT_QUEUE" in caplog.text

    @pytest.mark.parametrize(
        ("code", "advice"),
        [
            ("AccessDenied", "iam/intake.json"),
            ("KmsAccessDenied", "kms:Decrypt"),
            ("RequestThrottled", "too busy"),
            ("InternalFailure", "Can the intake reach SQS"),
        ],
    )
    async def test_a_refusal_says_what_to_do(
        self, intake: Intake, wire: Wire, caplog, code: str, advice: str
    ) -> None:
        wire.refused["ReceiveMessage"] = [code]
        async with intake.running():
            while wire.made["ReceiveMessage"] < 2:
                await asyncio.sleep(0.02)
        assert advice in caplog.text

    async def test_without_credentials_the_log_says_so(self, intake: Intake, monkeypatch, caplog) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        async with intake.running():
            while "iam/intake.json" not in caplog.text:
                await asyncio.sleep(0.02)

    async def test_without_a_region_the_log_says_so(self, intake: Intake, monkeypatch, caplog) -> None:
        monkeypatch.delenv("AWS_REGION")
        monkeypatch.delenv("AWS_DEFAULT_REGION")
        async with intake.running():
            while "Set AWS_REGION" not in caplog.text:
                await asyncio.sleep(0.02)

    async def test_an_empty_region_is_none(self, intake: Intake, monkeypatch, caplog) -> None:
        monkeypatch.delenv("AWS_REGION")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "")
        async with intake.running() as task:
            while "Set AWS_REGION" not in caplog.text:
                assert not task.done()
                await asyncio.sleep(0.02)

    @pytest.mark.usefixtures("controller")
    async def test_what_no_client_can_be_made_of_ends_no_source_and_may_be_mended(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, moto: str, monkeypatch, caplog
    ) -> None:
        node, instance = await make_instance()
        await queue.send(health(instance))
        monkeypatch.setenv("AWS_ENDPOINT_URL", "no address")
        async with intake.running() as task:
            while "Compare AWS_ENDPOINT_URL" not in caplog.text:
                assert not task.done()
                await asyncio.sleep(0.02)
            monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
            await queue.empty()
        assert await intake.incident(node)

    async def test_a_long_poll_holds_up_no_end(self, intake: Intake, wire: Wire, monkeypatch) -> None:
        """The poll waits for ten seconds, and the end for nothing."""
        monkeypatch.setattr(event_queue, "POLL_SECONDS", 10)
        async with asyncio.timeout(8), intake.running():
            while not wire.made["ReceiveMessage"]:
                await asyncio.sleep(0.02)
