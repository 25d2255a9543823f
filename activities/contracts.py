"""The activities by queue: what each does, for the workflows to call and the workers to implement.

Workflows import this module and never an implementation, so no workflow file needs `kubernetes` or `boto3`.
An implementation repeats `@activity.defn` on its methods. Each reads the state first and is safe to run
twice, except `reboot_instance` and `run_node_task` of a reset, whose notes say how a second act is avoided.
"""

from abc import ABC, abstractmethod

from temporalio import activity

from gpu_runbooks.activities.model.drain import DrainPods, DrainResult
from gpu_runbooks.activities.model.fleet import EnsureGuard
from gpu_runbooks.activities.model.ledger import HardwareHistory, RecallHardware
from gpu_runbooks.activities.model.node import (
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
from gpu_runbooks.activities.model.slot import (
    ClosedIncidents,
    EnsureBudget,
    FindClosedIncidents,
    FindHolders,
    Holders,
    ObservePool,
    PoolSeen,
    TellHolders,
)
from gpu_runbooks.activities.model.speakers import FindSpeakers, Speakers


class ClusterActivities(ABC):
    """Queue `cluster`: everything that needs the Kubernetes API."""

    @activity.defn
    @abstractmethod
    async def plan_incident(self, request: PlanIncident) -> Plan:
        """Pin the node's identity and resolve policy for the fault."""

    @activity.defn
    @abstractmethod
    async def observe_node(self, request: ObserveNode) -> NodeObservation:
        """Read the Node: identity, readiness, our block, allocatable devices."""

    @activity.defn
    @abstractmethod
    async def observe_pool(self, request: ObservePool) -> PoolSeen:
        """Count the nodes of a pool, and list those that do no work, whoever is the reason."""

    @activity.defn
    @abstractmethod
    async def block_node(self, request: BlockNode) -> BlockResult:
        """Taint and cordon under the resource version, with our marker, and read back."""

    @activity.defn
    @abstractmethod
    async def unblock_node(self, request: UnblockNode) -> UnblockResult:
        """Remove what our marker says is ours, and nothing else."""

    @activity.defn
    @abstractmethod
    async def notify_owner(self, request: NotifyOwner) -> OwnerNotified:
        """Write the Event of an application's fault to its pods and their owners. Already written is done."""

    @activity.defn
    @abstractmethod
    async def page(self, request: Page) -> Paged:
        """Raise an alert, repeat it, take it back, with an Event on the Node. Nobody reached is no error."""

    @activity.defn
    @abstractmethod
    async def drain_pods(self, request: DrainPods) -> DrainResult:
        """Have pods leave the node, by policy through the Eviction API, and watch until they are gone."""

    @activity.defn
    @abstractmethod
    async def examine_node(self, request: ExamineNode) -> Examination:
        """Gather the evidence before a repair, keep it, and say what the choice of the repair needs."""

    @activity.defn
    @abstractmethod
    async def pause_gpu_services(self, request: PauseGpuServices) -> PausedGpuServices:
        """Have the GPU services that hold handles stopped; what was seen is kept on the Node first."""

    @activity.defn
    @abstractmethod
    async def resume_gpu_services(self, request: ResumeGpuServices) -> ResumedGpuServices:
        """Put back what the pause of this incident changed. Nothing paused is success."""

    @activity.defn
    @abstractmethod
    async def run_node_task(self, request: RunNodeTask) -> NodeTaskResult:
        """Create the NodeTask or adopt it if it is there, and watch it to its end.

        A task that exists is never created anew, so a worker that dies in between causes no second reset. A
        task that only measures is deleted at once.
        """

    @activity.defn
    @abstractmethod
    async def delete_node_task(self, request: DeleteNodeTask) -> None:
        """Delete a NodeTask whose result is in the history. Already gone is success."""

    @activity.defn
    @abstractmethod
    async def await_reboot(self, request: AwaitReboot) -> RebootProof:
        """Wait until the node has a new boot id, is Ready after it, and offers GPUs again."""

    @activity.defn
    @abstractmethod
    async def claim_replacement(self, request: ClaimReplacement) -> ReplacementProof:
        """Wait for a new Node of the pool, claim it by compare-and-swap, block it, wait until Ready."""

    @activity.defn
    @abstractmethod
    async def delete_node_claim(self, request: DeleteNodeClaim) -> NodeClaimDeleted:
        """Delete the NodeClaim of a node once Karpenter's budgets permit it. Already going is success."""

    @activity.defn
    @abstractmethod
    async def await_node_claim(self, request: AwaitNodeClaim) -> NodeClaimGone:
        """Wait until the NodeClaim and its Node are gone, and tell whether Karpenter launches another."""

    @activity.defn
    @abstractmethod
    async def remove_node(self, request: RemoveNode) -> None:
        """Delete the Node object of a terminated machine. Another machine's Node is left, gone is success."""

    @activity.defn
    @abstractmethod
    async def run_test_pod(self, request: RunTestPod) -> TestPodResult:
        """Run the test pod on all GPUs of the node and remove it."""


class CloudActivities(ABC):
    """Queue `cloud`: everything that needs AWS."""

    @activity.defn
    @abstractmethod
    async def reboot_instance(self, request: RebootInstance) -> RebootRequested:
        """Call RebootInstances, once: EC2 has no idempotency token for it.

        The workflow gives it a single attempt; after an unknown outcome it waits for proof.
        """

    @activity.defn
    @abstractmethod
    async def inspect_instance(self, request: InspectInstance) -> InstanceReport:
        """State and scheduled events of an instance, checked to be the node's machine."""

    @activity.defn
    @abstractmethod
    async def run_reboot_command(self, request: RebootInstance) -> RebootRequested:
        """Run the site's own command for a reboot, once, as `reboot_instance` calls EC2."""

    @activity.defn
    @abstractmethod
    async def launch_successor(self, request: LaunchSuccessor) -> SuccessorLaunched:
        """Have the owner of an instance launch one more, and wait until it is in service."""

    @activity.defn
    @abstractmethod
    async def replace_instance(self, request: ReplaceInstance) -> ReplaceRequested:
        """Terminate the instance in its Auto Scaling group, capacity kept. Already going is success."""

    @activity.defn
    @abstractmethod
    async def await_successor(self, request: AwaitSuccessor) -> SuccessorComing:
        """Wait until the group has launched another instance, or shows that it cannot."""

    @activity.defn
    @abstractmethod
    async def confirm_replacement(self, request: ConfirmReplacement) -> ReplacementConfirmed:
        """Confirm: the old instance terminated, the new one running in the group, capacity as before."""


class TemporalActivities(ABC):
    """Queue `temporal`: everything that asks Temporal itself."""

    @activity.defn
    @abstractmethod
    async def ensure_budget(self, request: EnsureBudget) -> None:
        """Signal-with-start the budget of a pool with a slot request."""

    @activity.defn
    @abstractmethod
    async def ensure_guard(self, request: EnsureGuard) -> None:
        """Signal-with-start the guard of the fleet with what it is to know."""

    @activity.defn
    @abstractmethod
    async def find_holders(self, request: FindHolders) -> Holders:
        """Open incidents of a pool that have a slot: a budget that begins anew takes them over."""

    @activity.defn
    @abstractmethod
    async def find_closed_incidents(self, request: FindClosedIncidents) -> ClosedIncidents:
        """Of these holders, those whose incident has ended: their slots are free."""

    @activity.defn
    @abstractmethod
    async def tell_holders(self, request: TellHolders) -> ClosedIncidents:
        """Signal the grant, or the stop, to each of these incidents, and say which of them take no signal."""

    @activity.defn
    @abstractmethod
    async def find_speakers(self, request: FindSpeakers) -> Speakers:
        """Who sent these updates of a run, or started it, as the server saw it."""

    @activity.defn
    @abstractmethod
    async def recall_hardware(self, request: RecallHardware) -> HardwareHistory:
        """What closed incidents did to this hardware, from visibility and their memos."""
