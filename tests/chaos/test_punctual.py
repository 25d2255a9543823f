"""Workflows are told no earlier time than that of a timer that has fired."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker, WorkflowInstance

from gpu_runbooks.workers.punctual import PunctualRunner

QUEUE = "punctual"


@workflow.defn
class WaitsUntil:
    """Waits for a time as a loop over the clock does."""

    @workflow.run
    async def run(self) -> None:
        until = workflow.now() + timedelta(seconds=3)
        while workflow.now() < until:
            await workflow.sleep(until - workflow.now())

    @workflow.query
    def anything(self) -> bool:
        return True


class Recorder(WorkflowInstance):
    """Stands for a workflow: keeps the times that it is told, and starts a timer in its first activation."""

    def __init__(self) -> None:
        self.told: list[datetime] = []

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        self.told.append(act.timestamp.ToDatetime(UTC))
        completion = WorkflowActivationCompletion()
        if len(self.told) == 1:
            timer = completion.successful.commands.add().start_timer
            timer.seq = 1
            timer.start_to_fire_timeout.FromTimedelta(timedelta(minutes=5))
        return completion

    def get_serialization_context(self, command_info: Any) -> None:
        raise NotImplementedError

    def get_external_store_context(self, command_info: Any) -> Any:
        raise NotImplementedError

    def get_info(self) -> Any:
        raise NotImplementedError


def activation(at: datetime, *, fired: bool = False) -> WorkflowActivation:
    act = WorkflowActivation()
    act.timestamp.FromDatetime(at)
    job = act.jobs.add()
    if fired:
        job.fire_timer.seq = 1
    else:
        job.query_workflow.query_id = "1"
    return act


@pytest.mark.parametrize(("late", "told"), [(0, 300), (299, 300), (301, 301)])
def test_the_time_of_a_timer_that_fired_has_come(monkeypatch, late, told):
    recorder = Recorder()
    monkeypatch.setattr(UnsandboxedWorkflowRunner, "create_instance", lambda *_: recorder)
    instance = PunctualRunner().create_instance(None)
    began = datetime(2026, 3, 1, tzinfo=UTC)
    instance.activate(activation(began))
    instance.activate(activation(began))  # before it fires, nothing is changed
    instance.activate(activation(began + timedelta(seconds=late), fired=True))
    instance.activate(activation(began))  # and from then on no time is before it
    assert recorder.told == [
        began,
        began,
        began + timedelta(seconds=told),
        began + timedelta(seconds=300),
    ]


async def test_queries_around_a_restart_do_not_make_a_workflow_wait_twice(server: Client):
    """Each history has one timer, and is replayed to the same end."""

    def worker() -> Worker:
        return Worker(server, task_queue=QUEUE, workflows=[WaitsUntil], workflow_runner=PunctualRunner())

    async def ask_until_it_ends(handle: WorkflowHandle[Any, Any]) -> None:
        ended = asyncio.create_task(handle.result())
        while not ended.done():
            await handle.query("anything")
        await ended

    async with worker():
        handles = [
            await server.start_workflow("WaitsUntil", id=f"waits-{number}", task_queue=QUEUE)
            for number in range(15)
        ]
    async with worker():
        async with asyncio.timeout(60):
            await asyncio.gather(*map(ask_until_it_ends, handles))
    replayer = Replayer(workflows=[WaitsUntil], workflow_runner=PunctualRunner())
    for handle in handles:
        history = await handle.fetch_history()
        timers = [e for e in history.events if e.event_type == EventType.EVENT_TYPE_TIMER_STARTED]
        assert len(timers) == 1
        await replayer.replay_workflow(history)
