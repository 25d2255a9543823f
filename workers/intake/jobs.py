"""Which application faults belong to one job: held for a moment, to see whether its other nodes have them.

The hold is before the answer to the source, so that a restart in it loses nothing: the source sends again.
Which job a node works for is never guessed: from the pod that the fault names, or from the one job that has
GPUs of the node.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from gpu_runbooks.activities.draining.pods import full_name
from gpu_runbooks.activities.kubernetes.client import REFUSALS, Kubernetes, KubernetesError
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.job import JobFault, JobReport
from gpu_runbooks.activities.model.notify import KubernetesObject
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.activities.notices.gpu_pods import gpu_pods
from gpu_runbooks.activities.notices.owners import job_of
from gpu_runbooks.workers.intake.delivered import Delivered
from gpu_runbooks.workers.intake.job_records import JobRecords
from gpu_runbooks.workers.intake.places import give_up_place
from gpu_runbooks.workflows.policy.intake import Intake

AT_ONCE = 16
"""Lists of pods at the same time."""

log = logging.getLogger(__name__)


@dataclass
class _Hold:
    """Faults of one code and one job that came at one moment."""

    together: asyncio.Future[bool]
    nodes: set[str] = field(default_factory=set)


class Jobs:
    """Finds the job of a fault, and the faults of a job."""

    def __init__(self, kubernetes: Kubernetes, records: JobRecords) -> None:
        self._kubernetes = kubernetes
        self._records = records
        self._holds: dict[tuple[str, str, str], _Hold] = {}
        self._limit = asyncio.Semaphore(AT_ONCE)

    async def answered(self, fault: Fault) -> Delivered | None:
        """What a record made of this very fault before; None for news."""
        return await self._records.that_knows(fault)

    async def take(self, report: FaultReport, intake: Intake) -> Delivered | None:
        """Hand an application's fault to the record of its job; None where it is its node's alone.

        Raises `TemporalUnavailableError`, and `KubernetesError` where the API server is away.
        """
        fault, node = report.fault, report.plan.identity.name
        job = await self._job_of(node, fault)
        if job is None:
            return None
        if not await self._records.is_open(job):
            hold = self._hold((str(job), fault.source, fault.code), intake)
            hold.nodes.add(node)
            give_up_place()
            together = await asyncio.shield(hold.together)
            if not together and not await self._records.is_open(job):
                return None
        return await self._records.deliver(
            JobReport(
                cluster=report.plan.cluster,
                job=job,
                faults=(JobFault(fault=fault, node=report.plan.identity),),
                treatment=report.plan.treatment,
                enforce=report.plan.enforce,
                policy_digest=report.plan.policy_digest,
            )
        )

    def _hold(self, key: tuple[str, str, str], intake: Intake) -> _Hold:
        """The hold of this moment, which ends by itself."""
        if key not in self._holds:
            loop = asyncio.get_running_loop()
            self._holds[key] = _Hold(loop.create_future())
            loop.call_later(intake.settle.total_seconds(), self._settle, key, intake.job_nodes)
        return self._holds[key]

    def _settle(self, key: tuple[str, str, str], job_nodes: int) -> None:
        hold = self._holds.pop(key)
        hold.together.set_result(len(hold.nodes) >= job_nodes)

    async def _job_of(self, node: str, fault: Fault) -> KubernetesObject | None:
        try:
            async with self._limit:
                pods = await gpu_pods(self._kubernetes, node, fault)
        except KubernetesError as error:
            if error.status not in REFUSALS:
                raise
            log.warning("whose job works on %s is not known, its fault is the node's alone: %s", node, error)
            return None
        if fault.pod and [full_name(pod) for pod in pods] != [fault.pod]:
            return None  # it is not there any more, and another's fault it is not
        jobs = {str(job): job for pod in pods if (job := job_of(pod))}
        bare = any(job_of(pod) is None for pod in pods)
        return next(iter(jobs.values())) if len(jobs) == 1 and not bare else None
