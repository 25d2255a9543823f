"""Events of AWS that become faults, and those that stay in the queue until they can."""

import asyncio
import json

import pytest
from intake.aws_events.world import BROKEN, Intake, MakeInstance, Nodes, Queue, Wire
from intake.aws_messages import health, in_sns, interruption
from intake.conftest import CLUSTER
from temporalio.client import Client

from gpu_runbooks.activities.aws import event_queue
from gpu_runbooks.workers.intake import aws_events
from gpu_runbooks.workers.intake.incidents import Incidents
from testbed.ports import free_port


@pytest.mark.usefixtures("controller")
class TestTaken:
    async def test_a_retirement_starts_the_incident_of_its_node_and_leaves_the_queue(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance
    ) -> None:
        node, instance = await make_instance()
        await queue.send(health(instance))

        await intake.take_all(queue)

        incident = await intake.incident(node)
        assert incident is not None
        assert "aws instance-retirement" in (await incident.static_summary() or "")
        assert "not before 2026-03-15 06:00 UTC" in (await incident.static_details() or "")

    async def test_one_event_may_be_about_several_nodes_and_come_through_sns(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance
    ) -> None:
        made = [await make_instance() for _ in range(3)]
        await queue.send(in_sns(health(*(instance for _, instance in made))))

        await intake.take_all(queue)

        assert all([await intake.incident(node) for node, _ in made])

    async def test_repeats_join_nothing_and_another_deadline_does(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance
    ) -> None:
        node, instance = await make_instance()
        first, sooner = health(instance), health(instance, startTime="Mon, 2 Mar 2026 06:00:00 GMT")
        for event in (first, first, first | {"time": "2026-03-02T10:00:00Z"}, sooner, sooner):
            await queue.send(event)

        await intake.take_all(queue)

        assert len(await intake.fingerprints(node)) == 2

    @pytest.mark.usefixtures("nobody_joins")
    async def test_ours_is_found_among_thousands(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance
    ) -> None:
        node, instance = await make_instance()
        others = [f"i-{number:017x}" for number in range(10_000)]
        event = health(resources=[*others, instance])
        del event["detail"]["affectedEntities"]
        assert 200_000 < len(json.dumps(event)) < 262_144
        await queue.send(event)

        await intake.take_all(queue)

        assert await intake.incident(node)

    async def test_a_message_whose_deletion_failed_comes_again_and_is_known(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, wire: Wire, monkeypatch
    ) -> None:
        monkeypatch.setattr(event_queue, "HIDDEN_SECONDS", 1)
        node, instance = await make_instance()
        wire.refused["DeleteMessage"] = ["InternalFailure"]
        await queue.send(interruption(instance))

        await intake.take_all(queue)

        assert wire.made["DeleteMessage"] == 2
        assert len(await intake.fingerprints(node)) == 1


@pytest.mark.usefixtures("controller")
class TestKept:
    async def test_nothing_is_received_before_the_fleet_is_known(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, nodes: Nodes, wire: Wire
    ) -> None:
        node, instance = await make_instance()
        nodes.known = False
        await queue.send(health(instance))
        async with intake.running():
            while nodes.asked < 2:
                await asyncio.sleep(0.05)
            assert not wire.made
            nodes.known = True
            await queue.empty()
        assert await intake.incident(node)

    async def test_a_fault_that_is_not_in_temporal_stays_in_the_queue(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, wire: Wire
    ) -> None:
        node, instance = await make_instance()
        delivering = intake.reception._incidents
        away = await Client.connect(f"127.0.0.1:{free_port()}", lazy=True)
        intake.reception._incidents = Incidents(away, CLUSTER)
        await queue.send(health(instance))

        async with intake.running():
            while wire.made["ChangeMessageVisibility"] < 2:
                await asyncio.sleep(0.05)
            assert await queue.length() == 1
            assert await intake.incident(node) is None
            intake.reception._incidents = delivering
            await queue.empty()

        assert await intake.incident(node)

    async def test_an_instance_may_still_join(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, nodes: Nodes, wire: Wire, monkeypatch
    ) -> None:
        monkeypatch.setattr(aws_events, "JOINING", aws_events.timedelta(seconds=2))
        node, instance = await make_instance()
        del nodes.by_instance[instance]
        await queue.send(health(instance))

        async with intake.running():
            while not wire.made["ChangeMessageVisibility"]:
                await asyncio.sleep(0.02)
            nodes.by_instance[instance] = node
            await queue.empty()

        assert await intake.incident(node)

    async def test_one_message_with_an_error_holds_up_no_other(
        self, intake: Intake, queue: Queue, make_instance: MakeInstance, caplog
    ) -> None:
        node, instance = await make_instance()
        await queue.send(health(BROKEN))
        await queue.send(health(instance))

        async with intake.running() as task:
            await intake.begun(node)
            assert not task.done()
            while await queue.length() > 1:
                await asyncio.sleep(0.05)

        assert await queue.length() == 1
        assert "could not be dealt with" in caplog.text
