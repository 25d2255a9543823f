"""What a node is asked to do through its agent or a test pod, and what it measured."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from gpu_runbooks.activities.model.drain import EvidenceReference
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import TestPodTemplate
from gpu_runbooks.activities.model.wire import Wire


class NodeTaskKind(StrEnum):
    RESET_GPU = "ResetGPU"
    MEASURE = "Measure"
    COLLECT = "Collect"
    """Measure, and bring what the kernel and the tools say besides: the node's part of the evidence."""
    REBOOT = "Reboot"


class ResetOutcome(StrEnum):
    """What became of a reset, or of the attempt."""

    DONE = "done"
    """Proven."""
    BUSY = "busy"
    """Somebody holds a GPU."""
    UNSUPPORTED = "unsupported"
    NEEDS_PEERS = "needs-peers"
    """This GPU cannot be reset by itself: all GPUs of the node have to be, in one command."""
    LOST = "lost"
    """The GPU is not there to be reset."""
    UNRESPONSIVE = "driver-unresponsive"
    """No answer in time: a second reset would hang as well, only a reboot helps."""
    UNKNOWN = "unknown"
    UNVERIFIED = "unverified"
    """Said to be done, and the proof does not hold."""


class RunNodeTask(Wire):
    """Ask the agent of a node to act; the task's name follows from incident, rung and attempt."""

    identity: NodeIdentity
    incident: str
    run_id: str
    kind: NodeTaskKind
    attempt: int
    gpu_uuid: str | None = None
    """GPU to reset; None resets all."""
    gpu_pci_address: str | None = None
    start_deadline: datetime
    """Not started by then: the agent is gone."""
    deadline: datetime


class Facts(Wire):
    """Base of what a node agent writes into the status of a NodeTask, where names are camelCase."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class GpuFacts(Facts):
    """What NVML says of one GPU. None is unknown, and unknown is never healthy."""

    index: int
    uuid: str | None = None
    pci_address: str | None = None
    recovery_action: int | None = None
    """NVML field 230: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 and up: a person."""
    ecc_uncorrected: int | None = None
    """Volatile uncorrected errors, of the time since the last reset."""
    remap_pending: bool | None = None
    """Memory to be mended at the next reset: rows to remap, before Ampere pages to retire."""
    remap_failed: bool | None = None
    """Memory that cannot be mended any more. Before Ampere: as many pages are retired as a GPU can."""
    nvlinks_active: int | None = None
    nvlinks: int | None = None
    processes: int | None = None
    """Processes that hold the device, for compute or for graphics."""
    pod_uids: tuple[str, ...] | None = Field(default=None, max_length=64)
    """Pods that these processes belong to, by their cgroups. A static pod has the UID that its kubelet gave,
    which is not the one of its Pod object. None where nobody knows who holds the device."""
    host_processes: int | None = None
    """Those that belong to no pod, such as daemons of the driver. None where one could not be placed: it may
    be of a pod that is not listed."""
    allocated_pod_uids: tuple[str, ...] | None = Field(default=None, max_length=64)
    """Pods that the kubelet gave this GPU to, whether they use it or not. None where nobody knows."""
    serial: str | None = None
    board: str | None = None
    """Serial number of the board or chassis that the GPU shares with others, where the driver tells it."""
    reset_alone: bool | None = None
    """Whether it can be reset while its peers work on. None where nobody knows."""
    mig_enabled: bool | None = None


class HardwareFacts(Facts):
    """What a node agent measured."""

    driver_version: str | None = None
    gpus: tuple[GpuFacts, ...] = Field(default=(), max_length=64)
    efa_interfaces: int | None = None
    boot_id: str | None = None


class NodeTaskResult(Wire):
    """How a NodeTask ended. `not_started` means that no agent took it in time."""

    task: str
    outcome: Literal["succeeded", "failed", "not_started", "timed_out"]
    message: str = ""
    facts: HardwareFacts | None = None
    reset: ResetOutcome | None = None
    """Of a reset that was tried, or refused."""


class DeleteNodeTask(Wire):
    task: str


class ExamineNode(Wire):
    """Gather the evidence for a repair, and what has to be known to choose it."""

    identity: NodeIdentity
    incident: str
    run_id: str
    attempt: int
    """No two examinations of an incident have the same."""
    reason: str
    start_deadline: datetime
    """An agent that has not begun by then is gone: the bundle is made without its part."""
    deadline: datetime


class Examination(Wire):
    facts: HardwareFacts | None = None
    """None where the agent gave none."""
    agent_silent: bool = False
    """No agent took its task in time: what needs one is not worth trying."""
    evidence: EvidenceReference
    missing: tuple[str, ...] = Field(default=(), max_length=10)
    """Parts of the bundle that could not be had, in words."""
    other_repairer: str = ""
    """Somebody else is about to repair or remove this node and cannot be held off, or another Node names its
    machine: who, when, what to do."""


class RunTestPod(Wire):
    """Run the test pod on all GPUs of a node, scheduled like any pod."""

    identity: NodeIdentity
    incident: str
    run_id: str
    attempt: int
    gpus: int
    free_only: bool = False
    """Other pods work on the node: only the GPUs that none of them has are tested, at most `gpus`."""
    template: TestPodTemplate
    deadline: datetime


class TestPodResult(Wire):
    __test__ = False  # not a test case of pytest

    outcome: Literal["succeeded", "failed", "timed_out"]
    pod: str
    gpus: int = 0
    """GPUs that it had."""
    message: str = ""
