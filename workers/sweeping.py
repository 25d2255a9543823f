"""What the sweep needs of policy and intake: which conditions nobody took up in time, and how one is."""

from datetime import UTC, datetime, timedelta

from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.sweep import BadCondition, TakenUp
from gpu_runbooks.activities.nodes.node import identity_of
from gpu_runbooks.activities.sweep.cluster import ClusterSweep
from gpu_runbooks.workers.intake.condition_faults import Clocks
from gpu_runbooks.workers.intake.incidents import Incidents
from gpu_runbooks.workers.intake.reception import Reception
from gpu_runbooks.workers.intake.reported_conditions import conditions_of, moment
from gpu_runbooks.workers.policy.policy_file import PolicyFile
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workflows.policy.node_conditions import watched_conditions

MARGIN = timedelta(minutes=5)
"""Beyond the toleration of policy. The intake opens the incident of a condition as soon as it sees it."""

MOST_BAD = 5
"""Conditions of one node that are told."""

NOTE = "**Found by the sweep**: no intake had handed it on."


class BadConditions:
    """Conditions of Nodes, as the intake reads them and with the fingerprints that it gives them."""

    def __init__(self, policy_file: PolicyFile, reception: Reception) -> None:
        self._policy_file = policy_file
        self._reception = reception

    def overdue(self, node: Object, now: datetime) -> tuple[BadCondition, ...]:
        """Conditions that are bad for longer than policy tolerates. None where nothing would be done."""
        return tuple(
            BadCondition(type=fault.code, status=fault.status, since=fault.first_seen)
            for fault in self._faults(node, now)
            if self._is_overdue(fault, node, now)
        )[:MOST_BAD]

    async def take_up(self, node: Object, kind: str) -> TakenUp:
        """Have the intake's own code open the incident, or say why there is to be none."""
        fault = next((each for each in self._faults(node, datetime.now(UTC)) if each.code == kind), None)
        if fault is None:
            return TakenUp(status="over", reason="the condition is not bad any more")
        now = fault.model_copy(update={"boot_id": identity_of(node).boot_id})
        answer = await self._reception.take(fault.code, now, node, NOTE)
        return TakenUp(status=answer.status, reason=answer.reason[:500])

    def _faults(self, node: Object, now: datetime) -> tuple[Fault, ...]:
        conditions = conditions_of(node, watched_conditions(self._policy_file.policy))
        if not conditions.bad:
            return ()
        metadata = node["metadata"]
        clocks = Clocks(metadata["uid"], moment(metadata.get("creationTimestamp")))
        return clocks.look(conditions, now).faults

    def _is_overdue(self, fault: Fault, node: Object, now: datetime) -> bool:
        labels = node["metadata"].get("labels") or {}
        try:
            plan = self._policy_file.plan(fault, identity_of(node), labels)
        except ApplicationError:
            return False  # in no pool, or otherwise not to be touched
        if plan.opted_out:
            return False  # as its owners want it
        return now - fault.first_seen > plan.treatment.toleration + MARGIN


def cluster_sweep(
    kubernetes: Kubernetes, client: Client, policy_file: PolicyFile, settings: Settings
) -> ClusterSweep:
    """The sweep's activities of queue `cluster`."""
    incidents = Incidents(client, settings.cluster)
    conditions = BadConditions(policy_file, Reception(kubernetes, incidents, policy_file).of_source("sweep"))
    return ClusterSweep(
        kubernetes,
        settings.namespace,
        settings.test_namespace,
        conditions.overdue,
        conditions.take_up,
    )
