"""Runs the product's own workflows on the SDK's own event loop, without a server: inputs in, commands out.

A run is never copied. It is made anew from its first input and given the same inputs again, as a worker does
that takes over a workflow from a dead one.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.common import Priority, TypedSearchAttributes
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DefaultFailureConverter
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, RetryState, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeoutError
from temporalio.worker import UnsandboxedWorkflowRunner
from temporalio.worker._workflow_instance import WorkflowInstanceDetails

T0 = datetime(2026, 1, 5, 12, tzinfo=UTC)
"""The clock of every run begins here: a Monday noon."""

NOW = "@now"
"""In the argument of a message: the clock of the run that gets it."""

MOMENT = timedelta(seconds=1)
"""Between one input and the next, so that each has its place in time."""

RUNNER = UnsandboxedWorkflowRunner()
CONVERTER = PydanticPayloadConverter()
FAILURES = DefaultFailureConverter()


@dataclass(frozen=True)
class Answer:
    """What an activity comes back with: a result in JSON, or a failure."""

    seq: int
    result: str = "null"
    failure: str = ""
    """Type of the error; `timeout`, `never-started` and `cancelled` are those of Temporal itself."""
    took: timedelta = timedelta(0)
    opening: bool = False
    """What a run asks for as it begins, each one: answered to it, no run continues as new."""


@dataclass(frozen=True)
class Fire:
    """A timer is due."""

    seq: int


@dataclass(frozen=True)
class Message:
    """A signal, or an update, with its argument in JSON."""

    name: str
    argument: str
    update: bool = False


@dataclass(frozen=True)
class Sent:
    """A signal to another workflow was taken in, or its workflow does not run."""

    seq: int
    delivered: bool


@dataclass(frozen=True)
class Cancel:
    """Cancelled through Temporal."""


Input = Answer | Fire | Message | Sent | Cancel


@dataclass(frozen=True)
class Activity:
    """An activity that was asked for and has not answered."""

    seq: int
    name: str
    request: str
    """In JSON."""
    limit: timedelta | None
    """After it the server ends it; None where nothing does."""


@dataclass(frozen=True)
class Signal:
    """A signal to another workflow that the server has not taken in."""

    seq: int
    to: str
    name: str
    argument: str


@dataclass
class Waiting:
    """What a run waits for once it can do nothing more by itself."""

    now: datetime
    activities: dict[int, Activity] = field(default_factory=dict)
    timers: dict[int, datetime] = field(default_factory=dict)
    """When each is due."""
    signals: dict[int, Signal] = field(default_factory=dict)
    cut_short: set[int] = field(default_factory=set)
    """Activities that were asked to end."""
    unsent: set[int] = field(default_factory=set)
    """Those of them that were asked for at the same moment: they never reach a worker."""
    showed: int = 0
    """Commands that anybody sees, of the whole run: all but timers."""
    refused: str = ""
    """Why the last update was refused."""
    continued: str | None = None
    """Input of the next run, in JSON."""
    ended: str | None = None
    """`completed`, `failed` or `cancelled`, with the result in JSON."""


class StuckError(Exception):
    """A workflow task failed: the server would have it tried again for ever."""


class Run:
    """One run of a workflow class."""

    def __init__(self, kind: type, workflow_id: str, argument: str) -> None:
        definition = workflow._Definition.must_from_class(kind)
        self.waiting = Waiting(now=T0)
        self._instance = _on_a_loop(
            WorkflowInstanceDetails(
                payload_converter_factory=PydanticPayloadConverter,
                failure_converter_class=DefaultFailureConverter,
                interceptor_classes=(),
                defn=definition,
                info=_info(definition.name or "", workflow_id),
                randomness_seed=0,
                extern_functions={},
                disable_eager_activity_execution=True,
                worker_level_failure_exception_types=(),
                patch_activation_callback=None,
                last_completion_result=_NO_RESULT,
                last_failure=None,
            )
        )
        job = WorkflowActivationJob()
        job.initialize_workflow.workflow_type = definition.name or ""
        job.initialize_workflow.workflow_id = workflow_id
        job.initialize_workflow.arguments.append(_payload(argument))
        self._activate(job, suggest=False)  # no run is long as it begins

    def feed(self, what: Input) -> None:
        """Give the run its next input, at the time that belongs to it."""
        waiting = self.waiting
        due = waiting.timers.get(what.seq, waiting.now) if isinstance(what, Fire) else waiting.now
        took = what.took if isinstance(what, Answer) else timedelta(0)
        waiting.now = max(due, waiting.now + max(took, MOMENT))
        waiting.refused = ""
        opening = isinstance(what, Answer) and what.opening
        self._activate(self._job(what), suggest=not opening)

    def close(self) -> None:
        """End the run's coroutines, as a worker that evicts it."""
        self._send([_REMOVE], suggest=False)

    def _job(self, what: Input) -> WorkflowActivationJob:
        job = WorkflowActivationJob()
        match what:
            case Answer():
                asked = self.waiting.activities.pop(what.seq)
                job.resolve_activity.seq = what.seq
                if what.failure == "cancelled":
                    _fail(job.resolve_activity.result.cancelled.failure, what.failure, asked)
                elif what.failure:
                    _fail(job.resolve_activity.result.failed.failure, what.failure, asked)
                else:
                    job.resolve_activity.result.completed.result.CopyFrom(_payload(what.result))
            case Fire():
                del self.waiting.timers[what.seq]
                job.fire_timer.seq = what.seq
            case Message():
                argument = _payload(what.argument.replace(NOW, f"{self.waiting.now:%Y-%m-%dT%H:%M:%SZ}"))
                if what.update:
                    job.do_update.id = job.do_update.protocol_instance_id = "update"
                    job.do_update.name, job.do_update.run_validator = what.name, True
                    job.do_update.input.append(argument)
                else:
                    job.signal_workflow.signal_name = what.name
                    job.signal_workflow.originating_event_id = 1
                    job.signal_workflow.input.append(argument)
            case Sent():
                del self.waiting.signals[what.seq]
                job.resolve_signal_external_workflow.seq = what.seq
                if not what.delivered:
                    error = ApplicationError("workflow execution not found", type="NotFound")
                    FAILURES.to_failure(error, CONVERTER, job.resolve_signal_external_workflow.failure)
            case Cancel():
                job.cancel_workflow.reason = "cancelled by a person"
        return job

    def _activate(self, job: WorkflowActivationJob, *, suggest: bool) -> None:
        known = set(self.waiting.activities)
        for command in self._send([job], suggest=suggest):
            self._take_in(command)
        self.waiting.unsent |= self.waiting.cut_short - known

    def _send(self, jobs: Iterable[WorkflowActivationJob], *, suggest: bool) -> Iterable[WorkflowCommand]:
        activation = WorkflowActivation(run_id="run", jobs=jobs, continue_as_new_suggested=suggest)
        activation.timestamp.FromDatetime(self.waiting.now)
        completion = self._instance.activate(activation)
        if completion.HasField("failed"):
            raise StuckError(completion.failed.failure.message)
        return completion.successful.commands

    def _take_in(self, command: WorkflowCommand) -> None:
        waiting, kind = self.waiting, command.WhichOneof("variant")
        waiting.showed += kind not in {"start_timer", "cancel_timer", "continue_as_new_workflow_execution"}
        match kind:
            case "schedule_activity":
                asked = command.schedule_activity
                limits = [
                    limit.ToTimedelta()
                    for limit in (asked.schedule_to_close_timeout, asked.start_to_close_timeout)
                    if limit.ToTimedelta()
                ]
                waiting.activities[asked.seq] = Activity(
                    asked.seq,
                    asked.activity_type,
                    asked.arguments[0].data.decode(),
                    max(limits) if limits else None,
                )
            case "request_cancel_activity":
                waiting.cut_short.add(command.request_cancel_activity.seq)
            case "start_timer":
                started = command.start_timer
                waiting.timers[started.seq] = waiting.now + started.start_to_fire_timeout.ToTimedelta()
            case "cancel_timer":
                waiting.timers.pop(command.cancel_timer.seq, None)
            case "signal_external_workflow_execution":
                sent = command.signal_external_workflow_execution
                waiting.signals[sent.seq] = Signal(
                    sent.seq,
                    sent.workflow_execution.workflow_id,
                    sent.signal_name,
                    sent.args[0].data.decode() if sent.args else "null",
                )
            case "cancel_signal_workflow":
                waiting.signals.pop(command.cancel_signal_workflow.seq, None)
            case "update_response":
                waiting.refused = command.update_response.rejected.message or waiting.refused
            case "continue_as_new_workflow_execution":
                arguments = command.continue_as_new_workflow_execution.arguments
                waiting.continued = arguments[0].data.decode()
            case "complete_workflow_execution":
                waiting.ended = f"completed {command.complete_workflow_execution.result.data.decode()}"
            case "fail_workflow_execution":
                waiting.ended = f"failed {command.fail_workflow_execution.failure.message}"
            case "cancel_workflow_execution":
                waiting.ended = "cancelled"


def _on_a_loop(details: WorkflowInstanceDetails) -> Any:
    """Make the instance, which wants to be made on some event loop and then runs on its own."""
    asyncio._set_running_loop(_LOOP)
    try:
        return RUNNER.create_instance(details)
    finally:
        asyncio._set_running_loop(None)


class _Loop:
    """Nothing ever runs on it."""


_LOOP: Any = _Loop()

_REMOVE = WorkflowActivationJob()
_REMOVE.remove_from_cache.SetInParent()

_NO_RESULT: Any = None


def _payload(text: str) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=text.encode())


def _fail(into: Any, kind: str, asked: Activity) -> None:
    error = ActivityError(
        "Activity task failed",
        scheduled_event_id=0,
        started_event_id=0,
        identity="",
        activity_type=asked.name,
        activity_id=str(asked.seq),
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    if kind in {"timeout", "never-started"}:
        which = TimeoutType.START_TO_CLOSE if kind == "timeout" else TimeoutType.SCHEDULE_TO_START
        error.__cause__ = ActivityTimeoutError("timed out", type=which, last_heartbeat_details=())
    elif kind == "cancelled":
        error.__cause__ = CancelledError("cancelled")
    else:
        error.__cause__ = ApplicationError(f"refused: {kind}", type=kind, non_retryable=True)
    FAILURES.to_failure(error, CONVERTER, into)


def run_of(workflow_id: str) -> str:
    """Run id of a workflow: each has one alone."""
    return f"run-of-{workflow_id}"


def _info(kind: str, workflow_id: str) -> workflow.Info:
    run = run_of(workflow_id)
    return workflow.Info(
        attempt=1,
        continued_run_id=None,
        cron_schedule=None,
        execution_timeout=None,
        first_execution_run_id=run,
        headers={},
        namespace="default",
        original_execution_run_id=run,
        parent=None,
        root=None,
        priority=Priority.default,
        raw_memo={},
        retry_policy=None,
        run_id=run,
        run_timeout=None,
        search_attributes={},
        start_time=T0,
        task_queue="workflows",
        task_timeout=timedelta(seconds=10),
        typed_search_attributes=TypedSearchAttributes.empty,
        workflow_id=workflow_id,
        workflow_start_time=T0,
        workflow_type=kind,
    )
