"""Queue `temporal`: what only Temporal itself can answer."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
)
from temporalio.common import Priority, SearchAttributeKey, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.activities import names
from gpu_runbooks.activities.contracts import TemporalActivities
from gpu_runbooks.activities.heartbeat import beating
from gpu_runbooks.activities.history.ledger import recall_hardware
from gpu_runbooks.activities.history.speakers import find_speakers
from gpu_runbooks.activities.model.fleet import EnsureGuard
from gpu_runbooks.activities.model.ledger import HardwareHistory, RecallHardware
from gpu_runbooks.activities.model.slot import (
    ClosedIncidents,
    EnsureBudget,
    FindClosedIncidents,
    FindHolders,
    Holders,
    SlotRequest,
    Stop,
    TellHolders,
)
from gpu_runbooks.activities.model.speakers import FindSpeakers, Speakers
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, budget_id, fleet_id

RUNBOOK_PHASE = SearchAttributeKey.for_keyword("RunbookPhase")

WITH_SLOT = tuple(runbook for runbook in names.RUNBOOKS if runbook != "ReturnNode")
"""Runbooks that disturb a node. Giving one back needs no slot."""

WITHOUT_SLOT = frozenset({"open", "tolerating", "notifying", "probation", "closed"})
"""Phases of an incident in which it holds no slot. In another one it says itself whether it does: one that is
paused, asks a person, validates or gives back may do so without, and one that waits may just have got one."""

WAITS = "waiting-for-slot"

ANSWERS_WITHIN = timedelta(seconds=5)
"""For an incident that is asked whether it holds a slot. Without an answer its phase decides."""

ASKED_AT_ONCE = 20

TAKES_NO_SIGNAL = frozenset({RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION})
"""Answers for a workflow that is over, and for one that had as many signals as the server allows."""

OF_ALL = Priority(priority_key=1)
"""Of workflows that many incidents wait for, with their activities: in a burst these come before theirs."""

GUARD_DETAILS = (
    "Counts the faults of all nodes. Many nodes with one signature in a short time are a **storm**: the "
    "detector or the driver is suspected, not the nodes, and no pool disrupts a node until it is over. Halts "
    "everywhere, which people order by the update `halt`, stand here as well."
)


class Temporal(TemporalActivities):
    """The activities of queue `temporal`, over one client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def activities(self) -> list[Callable[..., Any]]:
        """Those of the queue."""
        return [
            self.ensure_budget,
            self.tell_holders,
            self.ensure_guard,
            self.find_holders,
            self.find_closed_incidents,
            self.recall_hardware,
            self.find_speakers,
        ]

    @activity.defn
    async def ensure_budget(self, request: EnsureBudget) -> None:
        """Signal-with-start the budget of a pool with a slot request."""
        await self._client.start_workflow(
            "DisruptionBudget",
            {"cluster": request.cluster, "pool": request.pool},
            id=budget_id(request.cluster, request.pool),
            task_queue=REMEDIATION_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal="request_slot",
            start_signal_args=[request.request],
            static_summary=f"disruption budget of pool {request.pool} in {request.cluster}",
            priority=OF_ALL,
        )

    @activity.defn
    async def ensure_guard(self, request: EnsureGuard) -> None:
        await self._client.start_workflow(
            "FleetGuard",
            {"cluster": request.cluster},
            id=fleet_id(request.cluster),
            task_queue=REMEDIATION_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=request.signal,
            start_signal_args=[request.argument],
            static_summary=f"storm brake and halts of cluster {request.cluster}",
            static_details=GUARD_DETAILS,
            priority=OF_ALL,
        )

    @activity.defn
    async def find_holders(self, request: FindHolders) -> Holders:
        """Open incidents of a pool that hold a slot, by what each says of itself."""
        query = (
            f"WorkflowType IN {WITH_SLOT} AND ExecutionStatus = 'Running' "
            f"AND RunbookCluster = '{request.cluster}' AND RunbookPool = '{request.pool}'"
        )
        phases = {
            run.id: phase
            async for run in self._client.list_workflows(query)
            if (phase := run.typed_search_attributes.get(RUNBOOK_PHASE, "open")) not in WITHOUT_SLOT
        }
        places = asyncio.Semaphore(ASKED_AT_ONCE)
        async with beating():
            holders = await asyncio.gather(
                *(self._holder(incident, places, phase != WAITS) for incident, phase in phases.items())
            )
        return Holders(holders=tuple(holder for holder in holders if holder is not None))

    @activity.defn
    async def find_closed_incidents(self, request: FindClosedIncidents) -> ClosedIncidents:
        """Of these holders, those whose incident has ended: their slots are free.

        An incident that cannot be asked counts as open: a slot is never freed on a guess.
        """
        async with beating():
            closed = await asyncio.gather(*(self._is_closed(holder) for holder in request.incidents))
        return ClosedIncidents(
            closed=tuple(holder for holder, over in zip(request.incidents, closed, strict=True) if over)
        )

    @activity.defn
    async def tell_holders(self, request: TellHolders) -> ClosedIncidents:
        """Signal each of these incidents, again where a first attempt has done so: they know what they heard.

        Those that take no signal have no use for a slot. One that could not be asked has it all tried again.
        """
        places = asyncio.Semaphore(ASKED_AT_ONCE)
        heard = await asyncio.gather(*(self._tell(each, request.stopped, places) for each in request.holders))
        return ClosedIncidents(
            closed=tuple(holder for holder, hears in zip(request.holders, heard, strict=True) if not hears)
        )

    @activity.defn
    async def find_speakers(self, request: FindSpeakers) -> Speakers:
        return await find_speakers(self._client, request)

    @activity.defn
    async def recall_hardware(self, request: RecallHardware) -> HardwareHistory:
        return await recall_hardware(self._client, request)

    async def _holder(
        self, incident: str, places: asyncio.Semaphore, without_answer: bool
    ) -> SlotRequest | None:
        """The request that this incident must have made; None where it holds no slot.

        A list lacks the first run id, which the raw description has also for a status without a name.
        """
        handle = self._client.get_workflow_handle(incident)
        execution = WorkflowExecution(workflow_id=incident)
        async with places:
            try:
                status = await handle.query("status", rpc_timeout=ANSWERS_WITHIN)
                held = bool(status["slot_held"])
            except (RPCError, RPCTimeoutOrCancelledError, WorkflowQueryFailedError, ValueError):
                held = without_answer
            if not held:
                return None
            found = await self._client.workflow_service.describe_workflow_execution(
                DescribeWorkflowExecutionRequest(namespace=self._client.namespace, execution=execution)
            )
        first_run = found.workflow_execution_info.first_run_id
        return SlotRequest(incident=incident, run_id=first_run, node=incident.rpartition("/")[2])

    async def _tell(self, holder: SlotRequest, stopped: str, places: asyncio.Semaphore) -> bool:
        """Whether the incident takes signals."""
        incident = self._client.get_workflow_handle(holder.incident)
        async with places:
            try:
                if stopped:
                    word = Stop(run_id=holder.run_id, why=stopped)
                    await incident.signal("disruption_stopped", word, rpc_timeout=ANSWERS_WITHIN)
                else:
                    await incident.signal("slot_granted", holder, rpc_timeout=ANSWERS_WITHIN)
            except RPCError as error:
                if error.status not in TAKES_NO_SIGNAL:
                    raise
                return False
        return True

    async def _is_closed(self, holder: SlotRequest) -> bool:
        try:
            incident = self._client.get_workflow_handle(holder.incident)
            found = await incident.describe(rpc_timeout=ANSWERS_WITHIN)
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        except ValueError:  # a status that the SDK has no name for, such as that of a paused workflow
            return False
        if found.raw_info.first_run_id != holder.run_id:
            return True  # a later incident has the id by now
        return found.status is not WorkflowExecutionStatus.RUNNING
