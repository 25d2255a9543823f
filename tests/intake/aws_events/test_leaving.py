"""Events of AWS that are nobody's fault, and those that cannot be read."""

import asyncio
import json
import logging
from typing import Any

import pytest
from intake.aws_events.world import IAM, STRANGER, Intake, MakeInstance, Nodes, Queue, Wire
from intake.aws_messages import ACCOUNT, health

from gpu_runbooks.workers.intake import aws_events


@pytest.mark.usefixtures("controller", "nobody_joins")
class TestIgnored:
    async def test_the_instances_of_others_are_ignored_on_purpose(
        self, intake: Intake, queue: Queue, caplog
    ) -> None:
        caplog.set_level(logging.INFO)
        await queue.send(health(STRANGER, "vol-0123456789abcdef0"))
        await intake.take_all(queue)
        (line,) = [each.getMessage() for each in caplog.records if "'ignored'" in each.getMessage()]
        assert STRANGER in line
        assert "no Node of this cluster" in line

    async def test_a_node_that_is_another_machine_now_is_left_alone(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, nodes: Nodes
    ) -> None:
        node, _ = await make_instance()
        nodes.by_instance[STRANGER] = node
        await queue.send(health(STRANGER))
        await intake.take_all(queue)
        assert await intake.incident(node) is None

    @pytest.mark.parametrize(
        ("account", "fields"),
        [
            ("444455556666", {}),
            (ACCOUNT, {"eventRegion": "us-east-1"}),
            ("", {"eventRegion": "us-west-20"}),
            (ACCOUNT, {"statusCode": "closed"}),
        ],
    )
    async def test_another_account_or_region_and_what_is_over(
        self,
        intake: Intake,
        queue: Queue,
        make_instance: MakeInstance,
        account: str,
        fields: dict[str, str],
    ) -> None:
        node, instance = await make_instance()
        await queue.send(health(instance, **fields))
        await intake.take_all(queue, event_account=account)
        assert await intake.incident(node) is None


class TestUnreadable:
    async def test_it_is_left_to_the_redrive_policy_of_the_queue(
        self, intake: Intake, queue: Queue, sqs: Any, caplog
    ) -> None:
        caplog.set_level(logging.INFO)
        dead = Queue(sqs, sqs.create_queue(QueueName="dead")["QueueUrl"])
        arn = sqs.get_queue_attributes(QueueUrl=dead.url, AttributeNames=["QueueArn"])["Attributes"]
        policy = json.dumps({"deadLetterTargetArn": arn["QueueArn"], "maxReceiveCount": "2"})
        sqs.set_queue_attributes(QueueUrl=queue.url, Attributes={"RedrivePolicy": policy})
        await queue.send("AQICAHhTHE-SECRET")

        async with intake.running():
            while not await dead.length():
                await asyncio.sleep(0.05)

        refused = [each.getMessage() for each in caplog.records if "'refused'" in each.getMessage()]
        assert "no JSON" in refused[0]
        assert "sha256:" in refused[0]
        assert "THE-SECRET" not in caplog.text

    async def test_without_one_it_is_deleted_in_the_end(
        self, intake: Intake, queue: Queue, wire: Wire, monkeypatch
    ) -> None:
        monkeypatch.setattr(aws_events, "LAST_RECEIPT", 2)
        await queue.send({"source": "aws.health"})
        async with intake.running():
            while not wire.made["DeleteMessage"] or await queue.length():
                await asyncio.sleep(0.02)
        assert wire.made["ChangeMessageVisibility"] == 1
        (statement,) = json.loads(IAM.read_text())["Statement"]
        assert {f"sqs:{operation}" for operation in wire.made} == set(statement["Action"])
