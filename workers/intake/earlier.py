"""How often a fault was seen before at the same place of the same GPU: what policy suspects the hardware by.

Asked of the node's own incidents, so that a restart of the intake forgets nothing: of their results, of those
that are open, and of a memo where one ended without a result. What is too young for Temporal's list is
remembered here. Faults that went to the record of a job do not count: the job explains them.
"""

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from pydantic import TypeAdapter, ValidationError
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.seen import Seen, seen_of
from gpu_runbooks.activities.names import incident_id
from gpu_runbooks.workers.intake.closed_incidents import READ_TIMEOUT
from gpu_runbooks.workers.intake.delivered import UNREACHABLE, TemporalUnavailableError
from gpu_runbooks.workers.intake.openings import SEEN
from gpu_runbooks.workflows.policy.answers import counts_repeats
from gpu_runbooks.workflows.policy.policy import Policy

BURST = timedelta(minutes=3)
"""Faults so close are one event: a crash writes several lines, and several sources tell of each. As
NVSentinel groups them."""

MOST_INCIDENTS = 20
"""Incidents of a node that are asked, latest first."""

REMEMBERED = timedelta(minutes=1)
"""Temporal's list of workflows lags by a second or so."""

MOST_REMEMBERED = 10_000

LIST = TypeAdapter(list[Seen])
FAULTS = TypeAdapter(list[Fault])

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Sighting:
    machine: str
    """Provider id: a PCI address is one of a machine."""
    seen: Seen


class Earlier:
    """Earlier faults of the nodes of one cluster, over one client."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._client = client
        self._cluster = cluster
        self._latest: deque[tuple[float, str, _Sighting]] = deque(maxlen=MOST_REMEMBERED)

    async def counted(self, fault: Fault, node: NodeIdentity, policy: Policy) -> Fault:
        """The fault with `before` as its rule counts. Raises `TemporalUnavailableError`."""
        rule = counts_repeats(policy, fault)
        if rule is None or seen_of(fault) is None or (rule.by == "place" and not is_of_hardware(fault.place)):
            return fault
        try:
            sightings = [*self._remembered(node.name), *await self._recorded(fault, node, rule.within)]
        except UNREACHABLE as error:
            raise TemporalUnavailableError(f"earlier faults of {node.name}: {error!r}") from error
        onsets = {
            each.seen.fingerprint: each.seen.first_seen
            for each in sightings
            if is_same_place(each.seen, fault, by=rule.by, machine=each.machine == node.provider_id)
            and BURST < abs(each.seen.first_seen - fault.first_seen) <= rule.within
        }
        return fault.model_copy(update={"before": events(onsets.values())})

    def note(self, fault: Fault, node: NodeIdentity) -> None:
        """Remember a fault that an incident of the node has now."""
        seen = seen_of(fault)
        if seen is not None:
            self._latest.append((monotonic(), node.name, _Sighting(node.provider_id, seen)))

    def _remembered(self, node: str) -> list[_Sighting]:
        oldest = monotonic() - REMEMBERED.total_seconds()
        while self._latest and self._latest[0][0] < oldest:
            self._latest.popleft()
        return [sighting for _, name, sighting in self._latest if name == node]

    async def _recorded(self, fault: Fault, node: NodeIdentity, within: timedelta) -> list[_Sighting]:
        workflow_id = incident_id(self._cluster, node.name)
        query = (
            f"WorkflowId = '{workflow_id}' AND "
            f"(CloseTime IS NULL OR CloseTime >= '{(fault.first_seen - within).isoformat()}')"
        )
        runs: dict[str, WorkflowExecution] = {}
        try:
            latest = await self._client.get_workflow_handle(workflow_id).describe(rpc_timeout=READ_TIMEOUT)
            runs[latest.run_id] = latest
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        async for run in self._client.list_workflows(query, limit=MOST_INCIDENTS, rpc_timeout=READ_TIMEOUT):
            runs.setdefault(run.run_id, run)
        return [sighting for run in runs.values() for sighting in await self._of(run, node)]

    async def _of(self, run: WorkflowExecution, node: NodeIdentity) -> list[_Sighting]:
        """What one incident saw, and of which machine; of the node's own where nothing else is known."""
        handle: Any = self._client.get_workflow_handle(run.id, run_id=run.run_id)
        if run.status is WorkflowExecutionStatus.COMPLETED:
            result = await handle.result(follow_runs=False, rpc_timeout=READ_TIMEOUT)
            told = result if isinstance(result, dict) else {}
            machine = str(told.get("provider_id", ""))
            return [_Sighting(machine, seen) for seen in _read(told.get("seen"))]
        if run.status is WorkflowExecutionStatus.RUNNING:
            try:
                status = await handle.query("status", rpc_timeout=READ_TIMEOUT)
                faults = FAULTS.validate_python((status or {}).get("faults") or [])
                return [_Sighting(node.provider_id, seen) for each in faults if (seen := seen_of(each))]
            except (RPCError, WorkflowQueryFailedError) as error:
                log.info("%s does not tell its faults, only the first counts: %r", run.id, error)
        memo = (await run.memo()).get(SEEN)
        return [_Sighting(node.provider_id, seen) for seen in _read([memo])] if memo else []


def _read(listed: Any) -> list[Seen]:
    try:
        return LIST.validate_python(listed or [])
    except ValidationError:
        return []  # of a version that wrote something else


def is_of_hardware(place: str) -> bool:
    """Whether a place is one of the hardware: a MIG instance is what a workload was given. Pure."""
    return bool(place) and not place.startswith("MIG")


def is_same_place(seen: Seen, fault: Fault, *, by: str, machine: bool) -> bool:
    """Whether both are of one code and one GPU, and of one place of it where the rule says so. Pure.

    An exporter names a GPU by its UUID, a log by its PCI address, which is one of a machine.
    """
    if (seen.source, seen.code) != (fault.source, fault.code):
        return False
    uuid, address = fault.entity.uuid, fault.entity.pci_address
    gpu = (uuid is not None and seen.uuid == uuid) or (
        machine and address is not None and seen.pci_address == address
    )
    return gpu and (by == "gpu" or seen.place == fault.place)


def events(onsets: Iterable[datetime]) -> int:
    """How many events these onsets are: those of one burst are one. Pure."""
    count, last = 0, None
    for onset in sorted(onsets):
        if last is None or onset - last > BURST:
            count, last = count + 1, onset
    return count
