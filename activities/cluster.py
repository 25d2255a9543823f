"""The activities of queue `cluster`, put together. What each does is in the module of its name."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.contracts import ClusterActivities
from gpu_runbooks.activities.draining.calls import CALLS_OF_ALL
from gpu_runbooks.activities.draining.drain import DrainCutShort, drain
from gpu_runbooks.activities.evidence.evidence import Evidence
from gpu_runbooks.activities.evidence.examination import examine_node
from gpu_runbooks.activities.gpu_services.services import pause_gpu_services, resume_gpu_services
from gpu_runbooks.activities.heartbeat import beating
from gpu_runbooks.activities.karpenter.node_claims import await_node_claim, delete_node_claim
from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError
from gpu_runbooks.activities.kubernetes.explanation import explained
from gpu_runbooks.activities.model.drain import DrainPods, DrainProgress, DrainResult
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.node import (
    BlockNode,
    BlockResult,
    NodeIdentity,
    NodeObservation,
    ObserveNode,
    UnblockNode,
    UnblockResult,
)
from gpu_runbooks.activities.model.node_task import (
    DeleteNodeTask,
    Examination,
    ExamineNode,
    NodeTaskResult,
    RunNodeTask,
    RunTestPod,
    TestPodResult,
)
from gpu_runbooks.activities.model.notify import NotifyOwner, OwnerNotified
from gpu_runbooks.activities.model.page import Page, Paged
from gpu_runbooks.activities.model.plan import Plan, PlanIncident
from gpu_runbooks.activities.model.repair import (
    AwaitNodeClaim,
    AwaitReboot,
    ClaimReplacement,
    DeleteNodeClaim,
    NodeClaimDeleted,
    NodeClaimGone,
    PausedGpuServices,
    PauseGpuServices,
    RebootProof,
    RemoveNode,
    ReplacementProof,
    ResumedGpuServices,
    ResumeGpuServices,
)
from gpu_runbooks.activities.model.slot import ObservePool, PoolSeen
from gpu_runbooks.activities.nodes.block import block, unblock
from gpu_runbooks.activities.nodes.node import NODES, identity_of, observe
from gpu_runbooks.activities.nodes.node_tasks import delete_node_task, run_node_task
from gpu_runbooks.activities.nodes.own_node import hand_over, refuse_own_node
from gpu_runbooks.activities.nodes.pool import observe_pool
from gpu_runbooks.activities.nodes.reboot_proof import await_reboot
from gpu_runbooks.activities.nodes.removal import remove_node
from gpu_runbooks.activities.nodes.replacement import claim_replacement
from gpu_runbooks.activities.nodes.test_pod import run_test_pod
from gpu_runbooks.activities.notices.notification import notify_owner
from gpu_runbooks.activities.paging.alertmanagers import Alertmanagers
from gpu_runbooks.activities.paging.paging import page

VERIFY_ATTEMPTS = 3
"""Attempts at a write that does not stand, each of twenty tries, before a person is asked."""

Planner = Callable[[Fault, NodeIdentity, Mapping[str, str], str | None], Plan]
"""Policy: fault, node, the node's labels, and a ladder by name or None; refusals are its own."""


def translated(error: KubernetesError) -> ApplicationError:
    """What the API server's refusal means to the workflow, in words for a person."""
    message = explained(error)
    if error.status == 403:
        return errors.refusal(errors.FORBIDDEN, message)
    if error.status == 404 and error.details.get("kind") == "nodes":
        return errors.refusal(errors.NODE_NOT_FOUND, message)
    if error.status in {400, 405, 406, 413, 415, 422}:
        return errors.refusal(errors.REJECTED, message)
    delay = None if error.retry_after is None else timedelta(seconds=error.retry_after)
    return ApplicationError(
        message[: errors.LONGEST_MESSAGE], type=errors.UNAVAILABLE, next_retry_delay=delay
    )


@asynccontextmanager
async def _refusals_translated() -> AsyncIterator[None]:
    try:
        yield
    except KubernetesError as error:
        raise translated(error) from error
    except ApplicationError as error:
        if error.type == errors.NOT_VERIFIED and _attempt() >= VERIFY_ATTEMPTS:
            # Whoever undoes our writes goes on undoing them: that is for a person to find.
            raise errors.refusal(errors.NOT_VERIFIED, error.message) from error
        raise


def _attempt() -> int:
    return activity.info().attempt if activity.in_activity() else 1


def _last_beat() -> object:
    """What the attempt before this one last said of its progress; None where it said nothing."""
    details = activity.info().heartbeat_details if activity.in_activity() else ()
    return details[0] if details else None


def _is_called_off() -> bool:
    """Whether the incident cancelled this activity: not its worker that ends, and no pause."""
    details = activity.cancellation_details() if activity.in_activity() else None
    return bool(details and details.cancel_requested and not (details.worker_shutdown or details.paused))


async def _tell_incident(progress: DrainProgress) -> None:
    """Signal the incident that this activity works for."""
    if activity.in_activity():
        info = activity.info()
        client = activity.client()
        incident = client.get_workflow_handle(str(info.workflow_id), run_id=info.workflow_run_id)
        await incident.signal("drain_progress", progress)


class Cluster(ClusterActivities):
    """Needs a connection with the cluster worker's role, the policy, and the namespace of the NodeTasks."""

    def __init__(
        self,
        kubernetes: Kubernetes,
        plan: Planner,
        namespace: str,
        *,
        own_pod_uid: str = "",
        own_node: str = "",
        evidence: Evidence | None = None,
        alertmanagers: Alertmanagers | None = None,
    ) -> None:
        self._evidence = evidence or Evidence()
        self._alertmanagers = alertmanagers or Alertmanagers()
        self._kubernetes = kubernetes
        self._plan = plan
        self._namespace = namespace
        self._own_pod_uid = own_pod_uid
        self._own_node = own_node
        self._places = asyncio.Semaphore(CALLS_OF_ALL)

    @activity.defn
    async def plan_incident(self, request: PlanIncident) -> Plan:
        async with _refusals_translated(), beating():
            node = await self._kubernetes.request("GET", f"{NODES}/{request.node}")
        labels = node["metadata"].get("labels") or {}
        return self._plan(request.fault, identity_of(node), labels, request.ladder)

    @activity.defn
    async def observe_node(self, request: ObserveNode) -> NodeObservation:
        async with _refusals_translated(), beating():
            node = await self._kubernetes.find(f"{NODES}/{request.name}")
            return observe(node, request.incident, request.run_id, request.conditions)

    @activity.defn
    async def observe_pool(self, request: ObservePool) -> PoolSeen:
        async with _refusals_translated(), beating():
            return await observe_pool(self._kubernetes, request)

    @activity.defn
    async def block_node(self, request: BlockNode) -> BlockResult:
        refuse_own_node(request.identity.name, self._own_node, _attempt())
        async with _refusals_translated(), beating():
            return await block(self._kubernetes, request)

    @activity.defn
    async def unblock_node(self, request: UnblockNode) -> UnblockResult:
        async with _refusals_translated(), beating():
            return await unblock(self._kubernetes, request)

    @activity.defn
    async def notify_owner(self, request: NotifyOwner) -> OwnerNotified:
        async with _refusals_translated(), beating():
            return await notify_owner(self._kubernetes, request)

    @activity.defn
    async def page(self, request: Page) -> Paged:
        async with beating():
            return await page(self._kubernetes, self._alertmanagers, request)

    @activity.defn
    async def drain_pods(self, request: DrainPods) -> DrainResult:
        # The node is blocked by now: if nobody else comes, better drain it all but ourselves than nothing.
        hand_over(request.identity.name, self._own_node, _attempt())
        last_beat = _last_beat()
        async with _refusals_translated(), beating() as beat:
            if last_beat is not None:
                beat(last_beat)  # a beat without it would erase it
            try:
                report = await drain(
                    self._kubernetes,
                    request,
                    own_pod_uid=self._own_pod_uid,
                    beat=beat,
                    on_progress=_tell_incident,
                    places=self._places,
                    last_beat=last_beat,
                )
            except DrainCutShort as cut:
                if not _is_called_off():
                    raise  # this worker ends, another one goes on
                report = await cut.report()
            kept = await self._evidence.keep(
                "restart" if request.restart else "drain",
                {"request": request, "result": report.result, "pods": [pod.as_json() for pod in report.pods]},
                incident=request.incident,
                run_id=request.run_id,
            )
        return report.result.model_copy(update={"evidence": kept})

    @activity.defn
    async def examine_node(self, request: ExamineNode) -> Examination:
        async with _refusals_translated(), beating():
            return await examine_node(self._kubernetes, self._namespace, self._evidence, request)

    @activity.defn
    async def pause_gpu_services(self, request: PauseGpuServices) -> PausedGpuServices:
        async with _refusals_translated(), beating():
            return await pause_gpu_services(self._kubernetes, request)

    @activity.defn
    async def resume_gpu_services(self, request: ResumeGpuServices) -> ResumedGpuServices:
        async with _refusals_translated(), beating():
            return await resume_gpu_services(self._kubernetes, request)

    @activity.defn
    async def run_node_task(self, request: RunNodeTask) -> NodeTaskResult:
        async with _refusals_translated(), beating():
            return await run_node_task(self._kubernetes, self._namespace, request)

    @activity.defn
    async def delete_node_task(self, request: DeleteNodeTask) -> None:
        async with _refusals_translated(), beating():
            await delete_node_task(self._kubernetes, self._namespace, request.task)

    @activity.defn
    async def await_reboot(self, request: AwaitReboot) -> RebootProof:
        since = activity.info().scheduled_time if activity.in_activity() else datetime.now(UTC)
        async with _refusals_translated(), beating():
            return await await_reboot(self._kubernetes, request, since)

    @activity.defn
    async def claim_replacement(self, request: ClaimReplacement) -> ReplacementProof:
        async with _refusals_translated(), beating():
            return await claim_replacement(self._kubernetes, request)

    @activity.defn
    async def delete_node_claim(self, request: DeleteNodeClaim) -> NodeClaimDeleted:
        async with _refusals_translated(), beating() as beat:
            return await delete_node_claim(self._kubernetes, request, beat)

    @activity.defn
    async def await_node_claim(self, request: AwaitNodeClaim) -> NodeClaimGone:
        async with _refusals_translated(), beating():
            return await await_node_claim(self._kubernetes, request)

    @activity.defn
    async def remove_node(self, request: RemoveNode) -> None:
        async with _refusals_translated(), beating():
            await remove_node(self._kubernetes, request)

    @activity.defn
    async def run_test_pod(self, request: RunTestPod) -> TestPodResult:
        async with _refusals_translated(), beating():
            return await run_test_pod(self._kubernetes, request)
