"""Stand-ins for the activities: a small world with one pool of nodes that does what a test scripts.

They are registered under the names of the real ones; the workflows under test are the real ones.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from incident.plans import identity, plan
from temporalio import activity
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.contracts import CloudActivities, ClusterActivities
from gpu_runbooks.activities.model.drain import (
    DrainPods,
    DrainProgress,
    DrainResult,
    EvidenceReference,
    PodBlocker,
)
from gpu_runbooks.activities.model.node import (
    BlockMarker,
    BlockNode,
    BlockResult,
    NodeObservation,
    ObserveNode,
    UnblockNode,
    UnblockResult,
)
from gpu_runbooks.activities.model.node_task import (
    DeleteNodeTask,
    Examination,
    ExamineNode,
    GpuFacts,
    HardwareFacts,
    NodeTaskKind,
    NodeTaskResult,
    ResetOutcome,
    RunNodeTask,
    RunTestPod,
    TestPodResult,
)
from gpu_runbooks.activities.model.notify import NotifyOwner, OwnerNotified
from gpu_runbooks.activities.model.page import Page, Paged
from gpu_runbooks.activities.model.plan import PlanIncident
from gpu_runbooks.activities.model.repair import (
    AwaitNodeClaim,
    AwaitReboot,
    AwaitSuccessor,
    ClaimReplacement,
    ConfirmReplacement,
    DeleteNodeClaim,
    InspectInstance,
    InstanceReport,
    LaunchSuccessor,
    NodeClaimDeleted,
    NodeClaimGone,
    PausedGpuServices,
    PauseGpuServices,
    RebootInstance,
    RebootProof,
    RebootRequested,
    RemoveNode,
    ReplaceInstance,
    ReplacementConfirmed,
    ReplacementProof,
    ReplaceRequested,
    ResumedGpuServices,
    ResumeGpuServices,
    SuccessorComing,
    SuccessorLaunched,
)
from gpu_runbooks.activities.model.slot import ObservePool, PoolSeen

EVIDENCE = EvidenceReference(digest="sha256:abc", location="file:///evidence/drain.json", size=10)
NOT_KEPT = EvidenceReference(digest="sha256:abc", location="", size=10, problem="the bucket is away")


class World(ClusterActivities, CloudActivities):
    """What each activity answers is an attribute; what was asked is in `calls`, in order."""

    def __init__(self, **script: Any) -> None:
        self.calls: list[str] = []
        self.node = identity()
        self.marker: BlockMarker | None = None
        self.reasons: list[tuple[str, ...]] = []
        """Of the marker, after each block."""
        self.opted_out = False
        """The node carries the label of owners who want nothing done to it."""
        self.back = True
        """What was away is there again, where a test makes something be away."""
        self.ladder = "reset"
        self.plan_changes: dict[str, Any] = {}
        self.notices: list[NotifyOwner] = []
        self.pages: list[Page] = []
        self.page_problem = ""
        """Why nobody is reached by a page."""
        self.owners: tuple[str, ...] = ("Job team-blue/train", "Pod team-blue/train-0")
        """Objects that get the Event of a notice."""
        self.drains: list[str] = []
        """Outcomes of the coming drains, `drained` when used up; one that `waits` goes on until cancelled."""
        self.blockers: tuple[PodBlocker, ...] = ()
        """What stands in the way of a drain that is blocked or waits."""
        self.stopped_drains = 0
        self.drain_requests: list[DrainPods] = []
        self.holders: tuple[str, ...] | None = ("uid-hung",)
        """Pods that hold GPU-1, or None where the agent cannot say."""
        self.examinations: list[Examination] = []
        """Results of the coming examinations."""
        self.examined: list[ExamineNode] = []
        self.alone: bool | None = None
        """Whether GPU-1 can be reset by itself: then its pods are `holders`."""
        self.mig = False
        """Whether MIG is on: then no GPU tells of its row remaps."""
        self.pauses: list[str] = []
        """Outcomes of the coming pauses of the GPU services, `nothing` when used up."""
        self.paused = False
        self.resets: list[str] = []
        """Outcomes of the coming resets, of the task or `reset` itself; `succeeded` when used up."""
        self.reset_requests: list[RunNodeTask] = []
        self.instance = InstanceReport(state="running")
        self.node_claims: list[NodeClaimGone] = []
        self.karpenter = False
        self.successors: list[SuccessorComing] = []
        self.launches: list[SuccessorLaunched] = []
        self.pod_requests: list[RunTestPod] = []
        self.reboots: list[str] = []
        """`proven`, `unproven`, `refused`, `forbidden`, `not sent` or `unknown` (the call itself fails)."""
        self.reboot_takes_it_away = False
        self.replacements: list[str] = []
        self.confirmations: list[bool] = []
        self.pods: list[TestPodResult | str] = []
        """Results of the coming test pods, or `forbidden`."""
        self.validations: list[bool] = []
        self.pause: dict[str, asyncio.Event] = {}
        self.conditions: dict[str, str] = {}
        """Status by type, as the node shows it."""
        self.ladder_of: dict[str, str] = {}
        """Ladder that policy gives, by the code of the fault."""
        self.pool = PoolSeen(nodes=1000)
        self.looks = 0
        """How often somebody looked at the pool."""
        self.on_call: Callable[[str], None] = lambda _: None
        for name, value in script.items():
            setattr(self, name, list(value) if isinstance(value, list) else value)

    async def _called(self, call: str) -> None:
        self.calls.append(call)
        self.on_call(call)
        if call in self.pause:
            while not self.pause[call].is_set():
                activity.heartbeat()
                await asyncio.sleep(0.05)

    def node_has_block(self) -> bool:
        return self.marker is not None

    @property
    def acts(self) -> list[str]:
        """What was done to the node, without the looking."""
        looking = {
            "observe",
            "plan",
            "delete_task",
            "measure",
            "examine",
            "inspect",
            "remove_node",
            "await_successor",
            "page",
        }
        return [call for call in self.calls if call not in looking]

    @activity.defn
    async def plan_incident(self, request: PlanIncident):
        await self._called("plan")
        if request.node != self.node.name:
            raise errors.refusal(errors.NODE_NOT_FOUND, f"no node is named {request.node}")
        ladder = request.ladder or self.ladder_of.get(request.fault.code, self.ladder)
        return plan(ladder, identity=self.node, **self.plan_changes)

    @activity.defn
    async def observe_node(self, request: ObserveNode):
        await self._called("observe")
        blocked = self.marker is not None and self.marker.incident == request.incident
        return NodeObservation(
            identity=self.node,
            ready="True",
            blocked=blocked,
            marker=self.marker,
            gpus=8,
            efa_interfaces=32,
            karpenter=self.karpenter,
            opted_out=self.opted_out,
            conditions={
                kind: status for kind, status in self.conditions.items() if kind in request.conditions
            },
        )

    @activity.defn
    async def observe_pool(self, request: ObservePool):  # noqa: ARG002
        self.looks += 1
        return self.pool

    @activity.defn
    async def block_node(self, request: BlockNode):
        await self._called("block")
        if request.identity.provider_id != self.node.provider_id:
            raise errors.refusal(errors.NODE_CHANGED, "another machine")
        standing = self.marker
        if self.opted_out and standing is None and not request.take_opted_out:
            raise errors.refusal(errors.OPTED_OUT, "its label opt-out is true")
        if standing is None and request.only_adopt:
            raise errors.refusal(errors.NOT_BLOCKED, f"node {self.node.name} has no block of ours")
        if standing is not None and standing.incident != request.incident:
            raise errors.refusal(errors.BLOCKED_BY_OTHER, f"blocked by {standing.incident}")
        if (
            standing is not None
            and standing.held
            and standing.run_id != request.run_id
            and not request.take_held
        ):
            raise errors.refusal(errors.HELD, f"held: {', '.join(standing.reasons)}")
        reasons = dict.fromkeys((*(standing.reasons if standing else ()), request.reason))
        self.marker = BlockMarker(
            incident=request.incident,
            run_id=request.run_id,
            reasons=tuple(reasons),
            since=standing.since if standing else request.since,
            was_unschedulable=False,
            held=request.hold or (standing is not None and standing.held),
        )
        self.reasons.append(self.marker.reasons)
        return BlockResult(marker=self.marker, adopted=standing is not None)

    @activity.defn
    async def unblock_node(self, request: UnblockNode):  # noqa: ARG002
        await self._called("unblock")
        self.marker = None
        return UnblockResult(removed=("taint", "cordon", "marker"), kept=())

    @activity.defn
    async def page(self, request: Page):
        await self._called("page")
        self.pages.append(request)
        if self.page_problem:
            return Paged(problem=self.page_problem)
        return Paged(reached=("alertmanager", "event") if not request.over else ("alertmanager",))

    @activity.defn
    async def notify_owner(self, request: NotifyOwner):
        self.notices.append(request)
        await self._called("notify")
        left_out = "" if self.owners else "no pod with GPUs was there"
        return OwnerNotified(objects=self.owners, total=len(self.owners), left_out=left_out)

    @activity.defn
    async def drain_pods(self, request: DrainPods):
        self.drain_requests.append(request)
        whole = request.only is None
        await self._called("drain" if whole else "restart" if request.restart else "drain_gpu")
        outcome = self.drains.pop(0) if self.drains else "drained"
        if outcome == "waits":
            await self._report_progress(request)
            try:
                while True:
                    activity.heartbeat()
                    await asyncio.sleep(0.05)
            finally:
                self.stopped_drains += 1
        if outcome == "drained":
            return DrainResult(outcome=outcome, gone=3, evicted=3, evidence=EVIDENCE)
        left = self.blockers if outcome == "blocked" else ()
        return DrainResult(outcome=outcome, blockers=left, blocked_total=len(left))

    async def _report_progress(self, request: DrainPods) -> None:
        info = activity.info()
        incident = activity.client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)
        progress = DrainProgress(started=request.started, remaining=1, gone=2, blockers=self.blockers)
        await incident.signal("drain_progress", progress)

    @activity.defn
    async def run_node_task(self, request: RunNodeTask):
        if request.kind is NodeTaskKind.RESET_GPU:
            self.reset_requests.append(request)
            await self._called("reset")
            return self._reset(request)
        if request.kind is NodeTaskKind.REBOOT:
            await self._called("reboot_by_agent")
            self.node = self.node.model_copy(update={"boot_id": f"{self.node.boot_id}+"})
            return NodeTaskResult(task=f"reboot-{request.attempt}", outcome="succeeded")
        await self._called("validate" if self.node_has_block() else "measure")
        healthy = self.validations.pop(0) if self.validations else True
        facts = self._facts(healthy=healthy)
        return NodeTaskResult(task=f"validate-{request.attempt}", outcome="succeeded", facts=facts)

    def _facts(self, *, healthy: bool) -> HardwareFacts:
        gpu = GpuFacts(
            index=0,
            uuid="GPU-1",
            pod_uids=self.holders,
            host_processes=0,
            allocated_pod_uids=self.holders,
            reset_alone=self.alone,
            mig_enabled=self.mig,
            recovery_action=0 if healthy else 2,
            ecc_uncorrected=0,
            remap_pending=None if self.mig else False,
            remap_failed=None if self.mig else False,
            nvlinks=18,
            nvlinks_active=18,
        )
        return HardwareFacts(gpus=(gpu,) * 8, efa_interfaces=32, boot_id=self.node.boot_id)

    def _reset(self, request: RunNodeTask) -> NodeTaskResult:
        outcome = self.resets.pop(0) if self.resets else "succeeded"
        task = f"reset-{request.attempt}"
        if outcome in set(ResetOutcome):
            done = outcome == ResetOutcome.DONE
            return NodeTaskResult(
                task=task, outcome="succeeded" if done else "failed", message=outcome, reset=outcome
            )
        return NodeTaskResult(task=task, outcome=outcome, message="reset")

    @activity.defn
    async def examine_node(self, request: ExamineNode):
        self.examined.append(request)
        await self._called("examine")
        if self.examinations:
            return self.examinations.pop(0)
        return Examination(facts=self._facts(healthy=False), evidence=EVIDENCE)

    @activity.defn
    async def pause_gpu_services(self, request: PauseGpuServices):  # noqa: ARG002
        outcome = self.pauses.pop(0) if self.pauses else "nothing"
        if outcome != "nothing":
            await self._called(f"pause {outcome}")
        self.paused = outcome in {"paused", "failed"}
        return PausedGpuServices(outcome=outcome, message="a driver upgrade is under way")

    @activity.defn
    async def resume_gpu_services(self, request: ResumeGpuServices):  # noqa: ARG002
        await self._called("resume")
        self.paused = False
        return ResumedGpuServices(restored=("device-plugin",))

    @activity.defn
    async def delete_node_task(self, request: DeleteNodeTask):  # noqa: ARG002
        await self._called("delete_task")

    @activity.defn
    async def inspect_instance(self, request: InspectInstance):  # noqa: ARG002
        await self._called("inspect")
        return self.instance

    @activity.defn
    async def run_reboot_command(self, request: RebootInstance):
        await self._called("reboot_command")
        self.node = self.node.model_copy(update={"boot_id": f"{self.node.boot_id}+"})
        return RebootRequested(instance_id=request.identity.instance_id, requested_at="2026-01-01T00:00:00Z")

    @activity.defn
    async def launch_successor(self, request: LaunchSuccessor):  # noqa: ARG002
        await self._called("launch")
        if self.launches:
            return self.launches.pop(0)
        return SuccessorLaunched(launched=True, group="asg", desired_capacity=8, instance_id="i-n2")

    @activity.defn
    async def delete_node_claim(self, request: DeleteNodeClaim):
        await self._called("delete_claim")
        return NodeClaimDeleted(
            node_claim="p5-x1",
            uid="uid-claim",
            node_pool="p5",
            static=False,
            requested_at=request.deadline,
        )

    @activity.defn
    async def await_node_claim(self, request: AwaitNodeClaim):  # noqa: ARG002
        await self._called("await_claim")
        gone = self.node_claims.pop(0) if self.node_claims else NodeClaimGone(gone=True, successor=True)
        if gone.gone:
            self.node, self.marker = identity("n2", provider_id="kwok://n2", instance_id=""), None
        return gone

    @activity.defn
    async def remove_node(self, request: RemoveNode):  # noqa: ARG002
        await self._called("remove_node")

    @activity.defn
    async def reboot_instance(self, request: RebootInstance):
        await self._called("reboot")
        outcome = self.reboots.pop(0) if self.reboots else "proven"
        if outcome == "refused":
            raise errors.refusal(errors.INSTANCE_NOT_RUNNING, "the instance is stopped")
        if outcome == "not sent":
            raise ApplicationError("nothing was rebooted: throttled", type=errors.NOT_SENT)
        if outcome == "forbidden":
            raise errors.refusal(errors.FORBIDDEN, "not permitted to call RebootInstances")
        if outcome != "unproven":
            self.node = self.node.model_copy(update={"boot_id": f"{self.node.boot_id}+"})
        if outcome == "unknown":
            raise ApplicationError("read timeout", type="Unknown")
        return RebootRequested(instance_id=request.identity.instance_id, requested_at="2026-01-01T00:00:00Z")

    @activity.defn
    async def await_reboot(self, request: AwaitReboot):
        await self._called("await_reboot")
        if self.reboot_takes_it_away:
            self.node, self.marker = identity("n1-gone"), None
            return RebootProof(proven=False, gone=True, message="the Node went away")
        if self.node.boot_id == request.identity.boot_id:
            return RebootProof(proven=False, message="the boot id did not change")
        return RebootProof(proven=True, boot_id=self.node.boot_id)

    @activity.defn
    async def replace_instance(self, request: ReplaceInstance):
        await self._called("replace")
        outcome = self.replacements.pop(0) if self.replacements else "proven"
        if outcome == "refused":
            raise errors.refusal(errors.NO_OWNER, "no Auto Scaling group owns the instance")
        self.node = identity("n2")
        self.marker = None
        return ReplaceRequested(
            instance_id=request.identity.instance_id,
            group="asg",
            desired_capacity=8,
            state="shutting-down",
            requested_at="2026-01-01T00:00:00Z",
        )

    @activity.defn
    async def await_successor(self, request: AwaitSuccessor):  # noqa: ARG002
        await self._called("await_successor")
        return self.successors.pop(0) if self.successors else SuccessorComing(coming=True)

    @activity.defn
    async def claim_replacement(self, request: ClaimReplacement):
        await self._called("claim")
        self.marker = BlockMarker(
            incident=request.incident,
            run_id=request.run_id,
            reasons=(request.reason,),
            since=request.launched_after,
            was_unschedulable=False,
        )
        return ReplacementProof(proven=True, identity=self.node)

    @activity.defn
    async def confirm_replacement(self, request: ConfirmReplacement):  # noqa: ARG002
        await self._called("confirm")
        confirmed = self.confirmations.pop(0) if self.confirmations else True
        return ReplacementConfirmed(confirmed=confirmed, message="" if confirmed else "it still runs")

    @activity.defn
    async def run_test_pod(self, request: RunTestPod):
        self.pod_requests.append(request)
        await self._called("test_pod")
        answer = self.pods.pop(0) if self.pods else None
        if answer == "forbidden":
            raise errors.refusal(errors.FORBIDDEN, "pods is forbidden: exceeded quota")
        if answer is not None:
            return answer
        return TestPodResult(outcome="succeeded", pod=f"test-{request.attempt}")

    def cluster(self) -> list[Callable[..., Any]]:
        return [
            self.plan_incident,
            self.observe_node,
            self.observe_pool,
            self.block_node,
            self.unblock_node,
            self.notify_owner,
            self.page,
            self.drain_pods,
            self.examine_node,
            self.pause_gpu_services,
            self.resume_gpu_services,
            self.run_node_task,
            self.delete_node_task,
            self.await_reboot,
            self.claim_replacement,
            self.delete_node_claim,
            self.await_node_claim,
            self.remove_node,
            self.run_test_pod,
        ]

    def cloud(self) -> list[Callable[..., Any]]:
        return [
            self.inspect_instance,
            self.reboot_instance,
            self.run_reboot_command,
            self.launch_successor,
            self.replace_instance,
            self.await_successor,
            self.confirm_replacement,
        ]


LOOKING = frozenset(
    {
        "observe",
        "plan",
        "delete_task",
        "measure",
        "examine",
        "inspect",
        "remove_node",
        "await_successor",
        "page",
    }
)
"""Calls that do nothing to a node that is there."""
