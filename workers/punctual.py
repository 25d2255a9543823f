"""A workflow is never told an earlier time than that for which a timer of its own was set and has fired.

The SDK's core (temporalio 1.35) does so after a restart of its worker: a query has the new worker replay the
history, and when a timer fires before the next workflow task, the activation that says so carries the time of
the workflow task before. A workflow that compares the time with a deadline then waits once more, which no
later replay does: from then on each of its tasks fails with a nondeterminism error, and it never ends. In a
replay the time is right, and nothing is changed.
"""

from typing import Any

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import StorageDriverStoreContext
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.workflow import Info

NOWHERE = StorageDriverStoreContext(target=None)


class PunctualRunner(UnsandboxedWorkflowRunner):
    """Workflows that are told the right time, without the SDK's sandbox.

    It would have to pass all modules of ours through, since to import them anew for each incident takes 20 ms
    of a processor, and looks at nothing that was passed through. What workflows may not read is looked for in
    their source, by tests.
    """

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Punctual(super().create_instance(det))


class _Punctual(WorkflowInstance):
    def __init__(self, inner: WorkflowInstance) -> None:
        self._inner = inner
        self._due: dict[int, int] = {}
        """When each running timer is due, in nanoseconds, by its number."""
        self._latest = 0
        """Of the timers that have fired."""

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        for job in act.jobs:
            if job.HasField("fire_timer"):
                self._latest = max(self._latest, self._due.pop(job.fire_timer.seq, 0))
        if act.HasField("timestamp") and act.timestamp.ToNanoseconds() < self._latest:
            act.timestamp.FromNanoseconds(self._latest)
        completion = self._inner.activate(act)
        for command in completion.successful.commands:
            if command.HasField("start_timer"):
                lasts = command.start_timer.start_to_fire_timeout.ToNanoseconds()
                self._due[command.start_timer.seq] = act.timestamp.ToNanoseconds() + lasts
            elif command.HasField("cancel_timer"):
                self._due.pop(command.cancel_timer.seq, None)
        return completion

    def get_serialization_context(self, command_info: Any) -> None:
        """Our converter asks for none, and would be made anew with each, for every payload."""

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:  # noqa: ARG002
        """As above: no payload of ours is stored elsewhere."""
        return NOWHERE

    def get_info(self) -> Info:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        return self._inner.get_thread_id()
