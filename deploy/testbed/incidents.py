"""What a person sees of the incidents: read through Temporal alone, as an auditor would."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.service import RPCError

from gpu_runbooks.activities.names import incident_id
from gpu_runbooks.workflows.audit import Status

ASK_SECONDS = 3.0


@dataclass
class Incident:
    """One incident, as far as it has been seen. While no worker can be asked, the last look stays."""

    workflow_id: str
    node: str
    began: datetime | None = None
    ended: datetime | None = None
    status: Status | None = None
    answers: bool = True
    open: bool = True
    acts: list[str] = field(default_factory=list)

    @property
    def took(self) -> timedelta:
        if self.began is None:
            return timedelta(0)
        return (self.ended or datetime.now(UTC)) - self.began

    @property
    def outcome(self) -> str:
        return str(self.status.outcome or "") if self.status else ""


class Incidents:
    """The incidents of some nodes."""

    def __init__(self, client: Client, cluster: str, nodes: Iterable[str]) -> None:
        self._client = client
        self.by_node = {node: Incident(incident_id(cluster, node), node) for node in nodes}

    async def look(self) -> None:
        """Look at all of them once."""
        await asyncio.gather(*(self._look(incident) for incident in self.by_node.values()))

    async def _look(self, incident: Incident) -> None:
        if not incident.open:
            return
        handle = self._client.get_workflow_handle(incident.workflow_id)
        limit = timedelta(seconds=ASK_SECONDS)
        try:
            described = await handle.describe(rpc_timeout=limit)
            incident.began = described.start_time
            ended = described.status is not WorkflowExecutionStatus.RUNNING
            incident.status = await handle.query("status", result_type=Status, rpc_timeout=limit)
        except (RPCError, WorkflowQueryFailedError):  # not begun yet, or no worker to answer
            incident.answers = incident.began is None
            return
        incident.answers = True
        incident.acts = [("" if act.proven else "!") + act.rung for act in incident.status.acts]
        if ended:
            incident.ended, incident.open = described.close_time, False
