"""What stands against a reset before anything is touched. Pure."""

from dataclasses import dataclass

from gpu_runbooks.activities.model.node_task import HardwareFacts, ResetOutcome
from gpu_runbooks.workers.node_agent.nvml import Measurement
from gpu_runbooks.workers.node_agent.reset_proof import Target
from gpu_runbooks.workers.node_agent.verdict import name

NOTHING = "nothing was reset"


@dataclass(frozen=True)
class ResetReport:
    """`DONE` means proven."""

    outcome: ResetOutcome
    message: str
    facts: HardwareFacts | None = None


def refusal(target: Target, before: Measurement) -> ResetReport | None:
    """Why this reset must not even be tried, if so."""
    facts = before.facts
    picked = target.of(before)
    if not picked:
        wanted = target.uuid or target.pci_address or "any GPU"
        return ResetReport(ResetOutcome.LOST, f"NVML does not see {wanted}; {NOTHING}", facts)
    if target.uuid and target.pci_address and picked[0][0].pci_address != target.pci_address:
        places = f"{target.uuid} is at {picked[0][0].pci_address}, the task says {target.pci_address}"
        return ResetReport(ResetOutcome.UNKNOWN, f"{places}; {NOTHING}", facts)
    for gpu, device in picked:
        if gpu.index in before.lost:
            return ResetReport(ResetOutcome.LOST, f"{name(gpu)} is lost; {NOTHING}", facts)
        if gpu.uuid is None:
            # nvidia-smi is told UUIDs, and what has to be restored is noted by UUID.
            return ResetReport(ResetOutcome.UNKNOWN, f"{name(gpu)} does not tell its UUID; {NOTHING}", facts)
        if device.vgpu:
            slice_ = f"{name(gpu)} is a vGPU, which its guest cannot reset; {NOTHING}"
            return ResetReport(ResetOutcome.UNSUPPORTED, slice_, facts)
        if gpu.reset_alone is False and len(picked) < len(facts.gpus):
            peers = f"{name(gpu)} can only be reset together with all {len(facts.gpus)} GPUs of the node"
            return ResetReport(ResetOutcome.NEEDS_PEERS, f"{peers}; {NOTHING}", facts)
    return None
